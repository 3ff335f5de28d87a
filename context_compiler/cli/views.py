"""`views`: list, show, explain, compare and replay recorded requests."""

from __future__ import annotations

import asyncio
import json as json_
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Annotated, Any, cast

import typer

from context_compiler.cli.compile import ViewRequest
from context_compiler.cli.diff import Comparison, compare, comparison_document, print_comparison, print_diff, unified
from context_compiler.cli.facts import load_why, print_why
from context_compiler.cli.inputs import check_model
from context_compiler.cli.options import (
    DB,
    RECALL,
    SYSTEM,
    TRIGGER,
    Db,
    FidelityName,
    Json,
    ModelName,
    Owner,
    Place,
    System,
    Vault,
    ViewId,
    agent_arguments,
    example,
    find_session,
    find_view,
    group,
    open_record,
    parse_amount,
    print_look,
    recorded_messages,
)
from context_compiler.cli.screen import Column, Screen, print_list
from context_compiler.cli.show import TOKEN_COLUMNS, print_messages, read_history, token_rows
from context_compiler.cli.templates import choose_template, parse_fidelity, recorded_fidelity, recorded_template
from context_compiler.cli.text import first_word, json_text, number, plural, sent_share, share, timestamp
from context_compiler.compiler.view import View
from context_compiler.errors import SettingsError
from context_compiler.messages.history import History, load_messages, message_body
from context_compiler.middleware.again import compile_again, fixed_tokens
from context_compiler.middleware.request import tool_tokens
from context_compiler.paths import vault_of
from context_compiler.record.costs import compile_cost, request_cost
from context_compiler.record.totals import IMPORTED
from context_compiler.record.values import Record, Tool
from context_compiler.settings import Amount
from context_compiler.template import TemplateLibrary
from context_compiler.tokens import TokenCounter
from context_compiler.tokens.prices import NANO_USD, dollars

app = group("List, show, diff and replay the recorded requests.", shown="views list")

VIEWS = (
    Column("view", right=True, style="bold"),
    Column("session", names=True),
    Column("turn", right=True, spare=1),
    Column("when (UTC)", spare=2),
    Column("status"),
    Column("raw", right=True),
    Column("sent", right=True),
    Column("", right=True, style="green"),
    Column("budget", right=True, spare=3),
    Column("template", elastic=True, spare=4),
    Column("fidelity", spare=5),
)
TOOLS = (
    Column("tool", names=True),
    Column("kind"),
    Column("tokens", right=True),
    Column("description", style="dim", elastic=True),
)
KEPT = (Column("why", style="green"), Column("messages", right=True))
RULES = (Column("rule"), Column("state", style="green"))
LEFT_OUT = (
    Column("why", style="yellow", elastic=True),
    Column("how many", right=True),
    Column("tokens", right=True),
    Column("what", style="dim", wraps=True),
)
NAMED = 6
"""Maximum names per reason in the list of what was left out, on a terminal."""


def view_table(found: Sequence[Record]) -> tuple[Sequence[Column], list[Sequence[object]]]:
    """Columns and rows of a table of requests; it names the vaults, such as the nodes of layers, if there are any."""
    vaults = any(record.vault_name for record in found)
    columns = (*VIEWS[:2], Column("vault"), *VIEWS[2:]) if vaults else VIEWS
    return columns, [_record_row(record, vaults=vaults) for record in found]


def _record_row(record: Record, *, vaults: bool) -> tuple[object, ...]:
    compiled, sent = record.compile, not record.status.startswith(IMPORTED)
    return (
        record.id,
        record.session_id,
        *((record.vault_name,) if vaults else ()),
        record.turn_index + 1,
        timestamp(record.created_at),
        first_word(record.status),
        number(record.tokens_raw),
        number(record.tokens_sent) if sent else "",
        sent_share(record.tokens_sent, record.tokens_raw) if sent else "",
        number(record.budget) if record.budget is not None else "",
        compiled.template_name if compiled else "",
        compiled.fidelity if compiled else "",
    )


@app.command("list", epilog=example("views list --session demo"))
def list_(
    session: Annotated[str | None, typer.Option("--session", help="Only this session.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of rows.")] = 50,
    db: Db = DB,
    owner: Owner = None,
    json: Json = False,
) -> None:
    """List recorded requests, newest first."""
    found = asyncio.run(_load_views(db, owner, session, limit))
    empty = f"{db} contains no views yet; create one with `context-compiler compile --db`"
    print_list({"db": str(db), "views": found}, *view_table(found), json=json, empty=empty)
    screen = Screen()
    if found and screen.rich and not json:
        for status in dict.fromkeys(first_word(record.status) for record in found):
            screen.line((f"{status}: {STATUSES.get(status, '')}", "dim"))


async def _load_views(db: Place, owner: str | None, session: str | None, limit: int) -> list[Record]:
    async with open_record(db, owner) as store:
        if session is not None:
            session = (await find_session(store, session))[0].session_id
        return await store.views(session, limit=limit)


@app.command("show", epilog=example("views show 3"))
def show_(
    view: ViewId,
    raw: Annotated[bool, typer.Option("--raw", help="Show the raw history instead.")] = False,
    tools: Annotated[
        bool, typer.Option("--tools", help="Show the tools that were sent with the messages instead.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="On a terminal, name everything that was left out, not only the first few.")
    ] = False,
    db: Db = DB,
    owner: Owner = None,
    json: Json = False,
) -> None:
    """Show the exact messages of a view and its token breakdown."""
    if tools:
        _show_tools(db, owner, view, json=json)
        return
    record, bodies = asyncio.run(_load_view(db, owner, view, raw=raw))
    screen = Screen()
    if json:
        screen.raw(json_text({"view": record, "raw": raw, "messages": [json_.loads(body) for body in bodies]}))
        return
    print_facts(screen, record)
    raw = raw or record.status.startswith(IMPORTED)
    if not raw:
        _print_ledger(screen, record, every=every or not screen.rich)
    history = read_history(load_messages(bodies))
    what = "Raw history" if raw else "Messages as sent"
    screen.heading(f"{what}: {len(history)}, {number(history.tokens)} tokens")
    print_messages(screen, history)


def _show_tools(db: Place, owner: str | None, view: int, *, json: bool) -> None:
    record, tools = asyncio.run(_load_tools(db, owner, view))
    screen = Screen()
    if json:
        screen.raw(json_text({"view": record.id, "tools": tools}))
    elif tools is None:
        screen.line(f"the tools of view {record.id} are not recorded")
    else:
        counter = TokenCounter()
        rows = [(one.name, one.kind, tool_tokens(one, counter), one.description or "") for one in tools]
        screen.table(TOOLS, rows)
        total = number(sum(row[2] for row in rows))
        screen.line(f"{plural(len(rows), 'tool')}, {total} tokens; --json has their schemas")


async def _load_tools(db: Place, owner: str | None, number: int) -> tuple[Record, tuple[Tool, ...] | None]:
    async with open_record(db, owner) as store:
        record = await find_view(store, number)
        return record, await store.scoped(record.owner).tools(number)


async def _load_view(db: Place, owner: str | None, number: int, *, raw: bool) -> tuple[Record, list[bytes]]:
    async with open_record(db, owner) as store:
        record = await find_view(store, number)
        return record, await recorded_messages(store, record, raw=raw)


def print_facts(screen: Screen, record: Record) -> None:
    """Print everything about a request except its messages."""
    compiled = record.compile
    sent = "" if record.status.startswith(IMPORTED) else f" → {number(record.tokens_sent)} sent"
    screen.line((f"view {record.id}", "bold"), f" of session {record.session_id}, turn {record.turn_index + 1}")
    facts = [
        ("when", f"{timestamp(record.created_at)} UTC"),
        ("status", _status(record.status)),
        ("empty columns", _null_reasons(record.status)),
        ("error", record.error),
        ("tokens", f"{number(record.tokens_raw)} raw{sent}"),
        ("cost of input", None if record.status.startswith(IMPORTED) else _cost(record)),
        ("budget", None if record.budget is None else number(record.budget)),
        ("owner", record.owner),
        ("run", None if record.run_id is None else f"{record.run_id}, request {record.request_index}"),
        ("request hash", record.request_hash),
    ]
    if compiled is not None:
        usage = {name: value for name, value in compiled.usage.items() if name != NANO_USD}
        cost = ", ".join(f"{number(value)} {name.replace('_', ' ')}" for name, value in usage.items())
        facts += [
            ("template", f"{compiled.template_name} ({compiled.template_source}) {compiled.template_path or ''}"),
            ("template hash", compiled.template_hash),
            ("fidelity", compiled.fidelity),
            ("model", compiled.model_alias),
            ("compile", _status(compiled.status, COMPILES)),
            ("empty of compile", _null_reasons(compiled.status)),
            ("compile note", compiled.error),
            ("sections", ", ".join(compiled.sections_included)),
            ("left out of prompt", ", ".join(f"{one.what} ({one.reason})" for one in compiled.sections_dropped)),
            (
                "compile cost",
                f"{dollars(compile_cost(compiled))}, {cost}, {number(compiled.latency_ms)} ms" if cost else None,
            ),
            ("identifiers kept", None if compiled.survival is None else f"{compiled.survival:.0%}"),
        ]
    screen.facts(facts)


def _cost(record: Record) -> str:
    cost = request_cost(record)
    if cost.sent is None:
        return f"unknown: no price is known for {cost.model}" if cost.model else "unknown: the request names no model"
    cached = f"{number(cost.cached)} tokens cached"
    return f"{dollars(cost.sent)} of {cost.model}, {cached}; everything {dollars(cost.everything)}"


STATUSES = {
    "raw": "everything fit and was sent unchanged",
    "mended": "everything fit, but calls or results without a partner were left out",
    "compiled": "turns were left out and summarized or quoted for this request",
    "cycle": "the view of the last compile, plus everything since",
    "fallback": "something failed; see error",
    "floor_over_budget": "even the smallest possible request exceeds the budget",
    "dry_run": "the view is only recorded; everything was sent",
    "imported": "from another tool; nothing was sent",
}
"""Explanations of statuses, by first word."""

COMPILES = {
    "ok": "a model wrote the summary",
    "deterministic": "no model was asked",
    "refused": "the answer of the model was not used, or a limit did not allow to ask it",
    "failed": "no summary came of it",
    "skipped": "made in the background, and no longer of use",
}
"""Explanations of the statuses of compiles, by first word."""


def _status(status: str, meanings: Mapping[str, str] = STATUSES) -> str:
    word = first_word(status)
    return f"{word}: {meanings[word]}" if word in meanings else word


def _null_reasons(status: str) -> str:
    """List the columns without a value, and the reasons; skip the note that there was no error."""
    notes = [note.strip() for note in status.split(";")[1:]]
    pairs = [note.partition(": ") for note in notes if note and note != "error: none"]
    return ", ".join(f"{columns} ({why})" if why else columns for columns, _, why in pairs)


def _print_ledger(screen: Screen, record: Record, *, every: bool) -> None:
    screen.heading("Tokens")
    screen.table(TOKEN_COLUMNS, token_rows(record.ledger, record.tokens_sent))
    kept = cast("Mapping[str, int]", record.ledger.get("kept") or {})
    if kept:
        screen.heading("Kept")
        screen.table(KEPT, kept.items())
    rules = cast("list[Mapping[str, Any]]", record.ledger.get("rules") or [])
    if rules:
        screen.heading("Rules")
        screen.table(RULES, [(one.get("rule", ""), one.get("state", "")) for one in rules])
    dropped = record.ledger.get("dropped")
    lines = cast("list[Mapping[str, Any]]", dropped) if isinstance(dropped, list) else []
    if lines:
        screen.heading("Left out")
        screen.table(LEFT_OUT, [_drop_row(line, every=every) for line in lines])


def _drop_row(line: Mapping[str, Any], *, every: bool) -> tuple[object, ...]:
    tokens = number(line.get("tokens", 0))
    return line.get("reason", ""), line.get("count", ""), tokens, _named(line, every=every)


def _named(line: Mapping[str, Any], *, every: bool) -> str:
    """Name the messages that were left out for one reason: all, or the first few and the number of the others."""
    what = [str(one) for one in cast("list[object]", line.get("what", []))]
    if every or len(what) <= NAMED:
        return ", ".join(what)
    return f"{', '.join(what[:NAMED])} … and {len(what) - NAMED} more (--all)"


@app.command("why", epilog=example("views why 3 'my explicit yes'"))
def why(
    view: ViewId,
    message: Annotated[
        str | None,
        typer.Argument(metavar="MESSAGE", help="`turn 3`, `m12`, or words from messages; default: all messages."),
    ] = None,
    vault: Vault = None,
    system: System = SYSTEM,
    db: Db = DB,
    owner: Owner = None,
    json: Json = False,
) -> None:
    """Show in which form a message or words are in a request, or why they are not and what would have kept them."""
    found = asyncio.run(load_why(db, owner, view, message, TemplateLibrary(vault=vault, system=system)))
    screen = Screen()
    if json:
        session = found.record.session_id
        said = {"forms": found.forms, "messages": found.messages, "cuts": found.cuts, "remedy": found.remedy}
        screen.raw(json_text({"view": view, "session": session, **said}))
    else:
        print_why(screen, found)


@app.command("diff", epilog=example("views diff 2 3"))
def diff(
    view: ViewId,
    other: Annotated[int, typer.Argument(metavar="OTHER", help="Number of another view.")],
    db: Db = DB,
    owner: Owner = None,
    json: Json = False,
) -> None:
    """Compare two views: show their common beginning and a diff."""
    first, second = asyncio.run(_load_two(db, owner, view, other))
    compared = compare(first, second, names=(f"view {view}", f"view {other}"))
    screen = Screen()
    if json:
        screen.raw(json_text({"views": [view, other], **comparison_document(compared)}))
    else:
        print_comparison(screen, compared)


async def _load_two(db: Place, owner: str | None, view: int, other: int) -> tuple[History, History]:
    async with open_record(db, owner) as store:
        records = [await find_view(store, number) for number in (view, other)]
        first, second = [await recorded_messages(store, record, raw=False) for record in records]
    return read_history(load_messages(first)), read_history(load_messages(second))


BUDGET = 2_000
"""Default budget in tokens, if neither the record nor the caller gives one."""


@app.command("replay", epilog=example("views replay 3 --template goal_oriented"))
def replay(
    view: ViewId,
    template: Annotated[
        str | None, typer.Option("--template", "-t", help="Template; default: that of the view.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option("--budget", "-b", help="Tokens, or a share; default: that of the view.")
    ] = None,
    fidelity: FidelityName = None,
    model: ModelName = "none",
    recall: Annotated[str | None, typer.Option("--recall", help=f"{RECALL}; cut back as a running agent does.")] = None,
    trigger: Annotated[
        str | None, typer.Option("--trigger", help=f"{TRIGGER}; cut back as a running agent does.")
    ] = None,
    vault: Vault = None,
    system: System = SYSTEM,
    record: Annotated[bool, typer.Option("--record", help="Record the new view.")] = False,
    db: Db = DB,
    owner: Owner = None,
    json: Json = False,
) -> None:
    """Compile a recorded history again with other options, and compare; --record stores the new view."""
    given = agent_arguments(recall, trigger)
    if template is None and budget is None and fidelity is None and model == "none" and not given:
        raise SettingsError("nothing to change: give --template, --budget, --fidelity, --model, --recall or --trigger")
    if given and record:
        raise SettingsError("--record: with --recall or --trigger, the view is that of an agent, and is not recorded")

    def replay_request(old: Record) -> ViewRequest:
        """Combine the recorded request with the options that were given."""
        place = vault_of(vault, old.owner)
        if template is None:
            used = recorded_template(old.compile, model=model, vault=place, system=system)
            if model != "none" and used.compiler != "agent":
                problem = f"template {used.name} of that view asks no model"
                raise SettingsError(f"--model {model!r}: {problem}; name one that does with --template")
        else:
            used = choose_template(template, model=model, vault=place, system=system)
        same = template is None and fidelity is None
        return ViewRequest(
            template=used,
            budget=old.budget or BUDGET if budget is None else parse_amount(budget),
            fidelity=recorded_fidelity(old.compile, used) if same else parse_fidelity(fidelity),
            model=check_model(model),
            session=old.session_id,
        )

    old, request, replayed, compared = asyncio.run(_replay(db, owner, view, replay_request, given, record=record))
    before = (old.compile.summary if old.compile else None) or ""
    names = (f"view {view}", f"template {request.template.name}")
    summaries = unified(before.splitlines(), replayed.summary.splitlines(), names=names)
    screen = Screen()
    if json:
        screen.raw(json_text(_document(old, replayed, compared, summaries)))
        return
    _print(screen, old, replayed, compared)
    _print_summary(screen, summaries, request)
    if replayed.record is not None and replayed.record.id is not None:
        screen.line()
        screen.line(f"recorded as view {replayed.record.id}")
        print_look(screen, db)


async def _replay(
    db: Place,
    owner: str | None,
    number: int,
    replay_request: Callable[[Record], ViewRequest],
    given: Mapping[str, Any],
    *,
    record: bool,
) -> tuple[Record, ViewRequest, View, Comparison]:
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(open_record(db, owner))
        old = await find_view(source, number)
        raw = load_messages(await recorded_messages(source, old, raw=True))
        sent = load_messages(await recorded_messages(source, old, raw=False))
        request = replay_request(old)
        writing = open_record(db, old.owner, writing=True)
        store = await stack.enter_async_context(writing) if record else None
        replayed = await compile_again(
            raw,
            request.template,
            cast("Amount", request.budget),
            fixed=fixed_tokens(old),
            fidelity=request.fidelity,
            model=request.model,
            session=request.session,
            store=store,
            arguments=given,
        )
    names = (f"view {number}", f"template {request.template.name}")
    return old, request, replayed, compare(read_history(sent), read_history(replayed.messages), names=names)


def _document(old: Record, replayed: View, compared: Comparison, summaries: tuple[str, ...]) -> dict[str, object]:
    fixed = fixed_tokens(old)
    tokens, budget = replayed.tokens + fixed, replayed.budget + fixed
    return {
        "view": old.id,
        "before": {"tokens": compared.tokens[0] + fixed, "budget": old.budget, "status": old.status},
        "after": {"tokens": tokens, "budget": budget, "status": replayed.status},
        "comparison": comparison_document(compared),
        "summary_diff": summaries,
        "messages": [json_.loads(message_body(message)) for message in replayed.messages],
        "ledger": replayed.ledger,
        "record": replayed.record,
    }


def _print(screen: Screen, old: Record, replayed: View, compared: Comparison) -> None:
    fixed = fixed_tokens(old)
    before, after = (tokens + fixed for tokens in compared.tokens)
    old_template = old.compile.template_name if old.compile else "none"
    new_template = replayed.record.compile.template_name if replayed.record and replayed.record.compile else "none"
    kept = f"{plural(compared.common_messages, 'message')}, {number(compared.common_tokens)} tokens"
    screen.facts(
        [
            ("template", f"{old_template} → {new_template}"),
            ("status", f"{first_word(old.status)} → {replayed.status}"),
            ("tokens", f"{number(before)} → {number(after)} ({after - before:+,}), raw {number(old.tokens_raw)}"),
            ("budget", f"{'none' if old.budget is None else number(old.budget)} → {number(replayed.budget + fixed)}"),
            ("shared", f"{kept} from the beginning ({share(compared.common_tokens, after) or '0%'})"),
        ]
    )


def _print_summary(screen: Screen, summaries: tuple[str, ...], request: ViewRequest) -> None:
    """Print the diff of the two summaries, and a note if no model wrote the new one although its template asks one."""
    screen.heading("Summary")
    print_diff(screen, summaries)
    if request.model == "none" and request.template.compiler == "agent":
        name = request.template.name
        screen.line()
        screen.line((f"no model was asked, so quotes replace the summary of {name}; --model NAME asks one", "dim"))
