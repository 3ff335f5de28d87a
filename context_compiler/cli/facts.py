"""Fate of messages and facts: `views why` in one request, `sessions find` in all requests of a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from context_compiler.cli.deferred import load_remedy
from context_compiler.cli.options import DB, SYSTEM, Db, Json, Owner, Place, System, Vault, ViewId, example, group
from context_compiler.cli.records import find_session, find_view, list_command, recorded_messages, with_record
from context_compiler.cli.screen import Column, Screen, progress_bar
from context_compiler.cli.show import excerpt, read_recorded
from context_compiler.cli.text import first_word, json_text, number, one_line, plural
from context_compiler.compiler.echoes import LISTED
from context_compiler.compiler.facts import FactPage, FactSearch, Mention, Stretch, pinned_positions, span
from context_compiler.compiler.origins import Fate
from context_compiler.compiler.trace import Cut, Echo, Tracer, cuts_of, fate_of, request_of, verdict_of
from context_compiler.errors import SettingsError, StoreError
from context_compiler.messages.display import ABSENT, FORMS, IDENTIFIER, PARTIAL, VERBATIM, role
from context_compiler.messages.history import History, Reading
from context_compiler.messages.turns import REFERENCE, outline, pair
from context_compiler.record import browse
from context_compiler.record.browse import RequestRow
from context_compiler.record.database import Database
from context_compiler.record.store import SQLStore
from context_compiler.record.values import Record

if TYPE_CHECKING:  # compiling a history again needs the host
    from context_compiler.middleware.remedies import Remedy

app = group("Explain recorded requests, and search recorded conversations.")

FATES = (
    Column("message", right=True),
    Column("role"),
    Column("tokens", right=True, spare=2),
    Column("in this request", style="bold", wraps=True),
    Column("because", style="yellow", wraps=True),
    Column("begins", style="dim", elastic=True, spare=1),
)
STRETCHES = (
    Column("requests"),
    Column("turns", spare=1),
    Column("the words are", style="bold", wraps=True),
    Column("because", style="yellow", wraps=True),
)
SAID = (
    Column("session", style="bold", names=True),
    Column("message", right=True),
    Column("role", spare=1),
    Column("words", wraps=True),
    Column("requests with it", right=True),
)
SESSIONS = 20
"""Maximum number of sessions in which a fact is looked up at once."""

MENTIONS = (Column("message", right=True), Column("role"), Column("words", wraps=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFate:
    """A message of a raw history, and its fate in one request."""

    index: int
    role: str
    tokens: int
    fate: Fate
    verdict: str
    """Form in which the request contains it, taking echoes and the summary into account."""
    echoes: tuple[Echo, ...]
    """Places in the request that repeat some of its words."""
    told: int | None
    """Position of a summary that may repeat its content in other words; None if there is none."""
    begins: str
    last_words: int | None = None
    """Request at which the last words of it left, if they stayed longer than the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """Fate of messages in one request."""

    record: Record
    messages: tuple[MessageFate, ...]
    words: Stretch | None
    """Fate of the given words at this request; None if the message was not named by words."""
    cuts: tuple[Cut, ...]
    remedy: Remedy | None
    """Changes that would have kept the first of the named messages that is not there word for word."""


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
    """Show in which form a message or words are in a request, or why not, and what would have kept them."""
    answer = with_record(lambda store: _load_why(store, view, message, vault=vault, system=system), db, owner)
    screen = Screen()
    if json:
        session = answer.record.session_id
        said = {"words": answer.words, "messages": answer.messages, "cuts": answer.cuts, "remedy": answer.remedy}
        screen.raw(json_text({"view": view, "session": session, **said}))
    elif answer.messages:
        _print_why(screen, answer)
    else:
        screen.line(f"no message before request {view} contains {one_line(message or '', 60)!r}")
    if message is not None and not answer.messages:
        raise typer.Exit(1)


@app.command("find", epilog=example("sessions find demo 'my explicit yes'"))
def find(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[ID] TEXT",
            help="Words, a number or a path, in the session ID or in all; case, order and a slip are forgiven.",
        ),
    ],
    db: Db = DB,
    owner: Owner = None,
    json: Json = False,
) -> None:
    """Find which requests contained a fact, in which form, and when and why it was dropped; exit code 1 if none did."""
    *sessions, text = words
    if len(sessions) > 1:
        raise SettingsError(
            f'give one session and one text: put quotes around the words, as in "{" ".join(words[1:])}"'
        )
    if not text.strip():
        raise SettingsError("TEXT is empty: give words, a number, or a path")
    pages = with_record(lambda store: _load_facts(store, sessions[0] if sessions else None, text), db, owner)
    if json:
        facts = [_plain_fact(name, page) for name, page in pages]
        Screen().raw(json_text({"db": str(db), **(facts[0] if sessions else {"sessions": facts})}))
    else:
        _print_facts(Screen(), pages, text, db)
    if not any(page.had or page.mentioned for _, page in pages):
        raise typer.Exit(1)


async def _load_why(store: SQLStore, view: int, message: str | None, *, vault: Path | None, system: Path) -> Why:
    """Load the fate of the named messages, or of all if None, in a request; none if no message contains the words.

    Templates in `vault` and `system` are used to find what would have kept a message.

    Raises:
        SettingsError: the raw history of the request has no message of this number.
        StoreError: there is no such view, or it was recorded without content.
    """
    record = await find_view(store, view)
    bodies = await recorded_messages(store, record, raw=True)
    raw = read_recorded(bodies)
    await recorded_messages(store, record, raw=False)
    wanted = _find_messages(raw, message)
    tracer = Tracer(store.scoped(record.owner))
    named = message is not None and len(wanted) <= LISTED
    fates = await tracer.read(partial(_find_fates, tracer=tracer, view=view, raw=raw, wanted=wanted, named=named))
    row, _ = await tracer.read(partial(request_of, number=view))
    stretch, words = None, ""
    if message is not None and not REFERENCE.fullmatch(message.strip()):
        page = await _fact_page(store.scoped(record.owner), record.session_id, record.vault_name, message)
        stretch = next((some for some in page.stretches if some.first <= view <= some.last), None)
        words = message
    numbers = {number for fate in fates for number in (fate.fate.request, fate.last_words)}
    numbers |= {stretch.request if stretch else None}
    cuts = await tracer.read(partial(cuts_of, numbers=numbers))
    there = stretch is not None and stretch.forms
    lost = next((fate.index for fate in fates if fate.verdict != VERBATIM), None) if message and not there else None
    remedy = None
    if lost is not None:
        with progress_bar("trying other budgets"):
            remedy = await load_remedy().find(bodies, row, record, lost, words, vault=vault, system=system)
        remedy = replace(remedy, pinned=await tracer.read(partial(_is_pinned, tracer=tracer, row=row, position=lost)))
    return Why(record=record, messages=tuple(fates), words=stretch, cuts=cuts, remedy=remedy)


def _is_pinned(db: Database, tracer: Tracer, row: RequestRow, position: int) -> bool:
    return bool(pinned_positions(db, row.session, tracer.chain(db, row.raw_tip, row.session), [position]))


def _find_messages(raw: History, message: str | None) -> Sequence[int]:
    if message is None:
        return range(len(raw))
    named = REFERENCE.fullmatch(message.strip())
    words = " ".join(message.split()).casefold()
    if named and (named[1] or "t").lower().startswith("m"):
        positions = [position for position in range(len(raw)) if position == int(named[2])]
    elif named:
        turns = outline(raw, pair(raw)).turns
        positions = [
            position for turn in turns if turn.index + 1 == int(named[2]) for position in range(turn.start, turn.stop)
        ]
    else:
        positions = [position for position, reading in enumerate(raw.readings) if words and _contains(reading, words)]
    if named and not positions:
        last = outline(raw, pair(raw)).turns[-1].index + 1 if len(raw) else 0
        hint = f"turn 1 to turn {last}, m0 to m{len(raw) - 1}, or words of a message"
        raise SettingsError(f"{one_line(message, 60)!r}: no message before this request has this number; give {hint}")
    return positions


def _contains(reading: Reading, words: str) -> bool:
    return any(words in " ".join(item.text.split()).casefold() for item in reading.items)


def _find_fates(
    db: Database, tracer: Tracer, view: int, raw: History, wanted: Sequence[int], named: bool
) -> list[MessageFate]:
    row, record = request_of(db, view)
    sent = tracer.trace(db, row, record)
    words = tracer.words(db, row, sent)
    fates: list[MessageFate] = []
    for position in wanted:
        reading, fate = raw.readings[position], fate_of(sent, position)
        repeated, told = words.echoes(position, reading), words.told(position)
        fates.append(
            MessageFate(
                index=position,
                role=role(reading),
                tokens=reading.tokens,
                fate=fate,
                verdict=verdict_of(fate, repeated, told),
                echoes=repeated,
                told=told,
                begins=excerpt(reading, 200),
                last_words=tracer.last_words(db, row, sent, position) if named else None,
            )
        )
    return fates


async def _load_facts(every: SQLStore, session: str | None, text: str) -> list[tuple[str, FactPage]]:
    """Load the fate of a fact in a session, by its full name.

    Without `session`: in at most `SESSIONS` sessions that contain the fact, or else come nearest to it.

    Raises:
        StoreError: there is no such session.
    """
    if session is not None:
        info = (await find_session(every, session))[0]
        page = await _fact_page(every.scoped(info.owner), info.session_id, info.vault_name, text)
        return [(info.session_id, page)]
    search = FactSearch(Tracer(every))
    numbers = sorted((await search.sessions(text)).numbers, reverse=True)[:SESSIONS]
    pages = [await search.session(number, text) for number in numbers]
    return [(page.session.session_id, page) for page in pages]


async def _fact_page(store: SQLStore, session: str, vault_name: str, text: str) -> FactPage:
    row = await store.perform(partial(browse.session_number, session_id=session, vault_name=vault_name))
    if row is None:
        raise StoreError(f"{store.place}: session {one_line(session, 60)!r} is gone")
    return await FactSearch(Tracer(store)).session(row, text)


def _print_why(screen: Screen, why: Why) -> None:
    """Print the fate of messages in one request."""
    record = why.record
    screen.line((f"request {record.id}", "bold"), f" of session {record.session_id}, turn {record.turn_index + 1}")
    if first_word(record.status) == "dry_run":
        screen.line("a dry run: the model was sent everything; this is the view that would have been sent")
    elif why.words is not None:
        because = f": {why.words.because}" if why.words.because else ""
        held = f"in it: {_form_names(why.words.forms)}" if why.words.forms else f"not in it{because}"
        screen.line(f"the words are {held}")
    screen.line()
    reasons = [_reason(message, record.id) for message in why.messages]
    numbers = {reason: f"({index})" for index, reason in enumerate(dict.fromkeys(filter(None, reasons)), 1)}
    rows = [
        (
            message.index,
            message.role,
            number(message.tokens),
            _form_text(message, why.words),
            numbers.get(reason, ""),
            one_line(message.begins, 60),
        )
        for message, reason in zip(why.messages, reasons, strict=True)
    ]
    screen.table(FATES, rows)
    for reason, mark in numbers.items():
        screen.line((f"{mark} ", "bold"), reason)
    for cut in why.cuts:
        screen.line(str(cut))
    if why.remedy is not None:
        screen.line(str(why.remedy))
        if not why.remedy.pinned:
            pin = f"context-compiler sessions pin {quote(record.session_id)} m{why.remedy.message}"
            screen.line(("pin it: ", "dim"), (pin, "cyan"))
    elif numbers and why.words is None:
        screen.line(
            (f"views why {record.id} m{why.messages[reasons.index(next(iter(numbers)))].index}", "cyan"),
            " tells the budget that would have kept that message",
        )


def _form_text(fate: MessageFate, words: Stretch | None) -> str:
    if fate.echoes and fate.verdict in (PARTIAL, IDENTIFIER):
        which = "words of it" if words is None or words.forms else "other words of it"
        return f"{which}: {', '.join(dict.fromkeys(map(_echo_place, fate.echoes)))}"
    return FORMS[fate.verdict]


def _echo_place(echo: Echo) -> str:
    """Describe where words of a message are repeated, by the position in `views show`."""
    name = "in another message" if echo.form == VERBATIM else FORMS[echo.form]
    return name if echo.sent is None else f"{name} (message {echo.sent} as sent)"


def _form_names(forms: Sequence[str] | dict[str, None]) -> str:
    return ", ".join(FORMS[form] for form in forms)


def _reason(message: MessageFate, view: int | None) -> str:
    """The step and reason of a cut in one line; empty for none."""
    fate = message.fate
    if fate.form == VERBATIM:
        return ""
    step = f"step {fate.step.number}, {fate.step.name}: " if fate.step is not None and fate.step.number else ""
    since = f"; since request {fate.request}" if fate.request not in (None, view) else ""
    last = f"; its last words left at request {message.last_words}" if message.last_words else ""
    return f"{step}{fate.reason or 'the record does not name the reason'}{since}{last}"


def _print_facts(screen: Screen, pages: Sequence[tuple[str, FactPage]], text: str, db: Place) -> None:
    """Print the sessions that contain a fact, or else come nearest to it; of a single one, its fate."""
    if len(pages) == 1:
        _print_fact(screen, *pages[0], db)
        return
    if not pages:
        screen.line(f"nothing in any session contains {one_line(text, 60)!r}, or a word of it")
        return
    if not any(page.had or page.mentioned for _, page in pages):
        screen.line(f"nothing contains {one_line(text, 60)!r} as it stands; these come nearest")
    said = ((name, (*page.mentions, *page.near)[:1], page) for name, page in pages)
    screen.table(SAID, ((name, *_mention_row(first[0]), _had(page)) for name, first, page in said if first))
    name, page = pages[0]
    fact = page.fact if page.had or page.mentioned or not page.near else page.near[0].fact
    words = f"sessions find {quote(name)} {quote(fact)}"
    screen.line(("when it left, and why: ", "dim"), (list_command(words, db), "cyan"))


def _had(page: FactPage) -> str:
    return f"{number(page.had)} of {number(page.requests_since)}" if page.requests_since else ""


def _print_fact(screen: Screen, session: str, page: FactPage, db: Place) -> None:
    """Print which requests of a session contained a fact, in which form, and when it was dropped."""
    fact = one_line(page.fact, 60)
    if not page.mentioned and not page.had:
        screen.line(f"nothing in session {session} contains {fact!r}: neither its raw history nor any request")
        if page.near:
            screen.heading("Nearest to it")
            screen.table(MENTIONS, map(_mention_row, page.near))
            words = f"sessions find {quote(session)} {quote(page.near[0].fact)}"
            screen.line(("follow the first: ", "dim"), (list_command(words, db), "cyan"))
        return
    screen.line((f"{fact!r}", "bold"), f" in session {session}: said in {plural(page.mentioned, 'message')} so far")
    if page.answer:
        screen.line(page.answer)
    missing = page.requests_since - page.had
    without = f", {number(missing)} did not" if missing > 0 else ""
    screen.line(
        f"of the {plural(page.requests_since, 'request')} since it was first said, {number(page.had)} had it{without}"
    )
    screen.line()
    screen.table(STRETCHES, map(_stretch_row, page.stretches))
    screen.heading("Said in")
    screen.table(MENTIONS, map(_mention_row, page.mentions))
    if page.mentioned > len(page.mentions):
        screen.line(f"and {number(page.mentioned - len(page.mentions))} more")
    last = page.stretches[-1].last
    screen.line()
    screen.line(("message by message: ", "dim"), (list_command(f"views why {last} {quote(page.fact)}", db), "cyan"))


def _mention_row(mention: Mention) -> tuple[object, ...]:
    return mention.index, mention.role, f"{mention.before}{mention.fact}{mention.after}"


def _plain_fact(session: str, page: FactPage) -> dict[str, object]:
    """Convert the fate of a fact for JSON."""
    return {
        "session": session,
        "fact": page.fact,
        "answer": page.answer,
        "said_in": page.mentioned,
        "messages": page.mentions,
        "near": page.near,
        "requests": page.requests,
        "newest": page.newest,
        "requests_since": page.requests_since,
        "had": page.had,
        "stretches": page.stretches,
    }


def _stretch_row(stretch: Stretch) -> tuple[object, ...]:
    if stretch.forms:
        form = _form_names(stretch.forms)
    else:
        form = f"{FORMS[ABSENT]}{', perhaps in the summary in other words' if stretch.told else ''}"
        form = form if stretch.known else "not said yet"
    return (span(stretch.first, stretch.last), span(*stretch.turns), form, stretch.because)
