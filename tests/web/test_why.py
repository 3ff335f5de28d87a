"""What is said not to be in a request is not there, and what is said to be there is, in every form that a view has."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelRequest, SystemPromptPart
from pydantic_ai.models.function import AgentInfo
from starlette.testclient import TestClient
from typer.testing import CliRunner

from context_compiler import ContextCompiler
from context_compiler.cli.records import open_record, recorded_messages
from context_compiler.cli.root import app
from context_compiler.compiler.origins import align, gaps
from context_compiler.messages.bodies import load_messages
from context_compiler.template import Template
from context_compiler.web.app import create_app
from tests.cli.conftest import record_views
from tests.support.agents import Notes, Step, Talker

WORDS = (
    "ledger invoice gateway retry payment refund webhook table migration deploy release branch review ticket customer"
    " order price index cache worker queue token budget summary layer answer question folder module function handler"
    " orange violet copper silver granite harbour meadow lantern compass feather marble timber saddle anchor"
).split()
RULES = (
    "Never {0} the {1} without my explicit yes.",
    "From now on keep every {0} {1} in euros.",
    "Always name the {0} {1}.",
)


def sentence(draw: Random) -> str:
    words = [draw.choice(WORDS) for _ in range(draw.randint(4, 9))]
    words.insert(
        draw.randrange(len(words)), draw.choice([f"ORD-{draw.randint(1000, 9999)}", f"/srv/{words[0]}/{words[1]}.py"])
    )
    return f"{' '.join(words).capitalize()}."


def said(draw: Random) -> str:
    """A prompt: sentences, a list, now and then a rule, a question about what was said, or a long paste."""
    kind = draw.random()
    lines = [sentence(draw) for _ in range(draw.randint(1, 4))]
    if kind < 0.25:
        lines.append(draw.choice(RULES).format(draw.choice(WORDS), draw.choice(WORDS)))
    if kind < 0.1:
        lines += [f"- {sentence(draw)}" for _ in range(3)]
    if 0.3 < kind < 0.35:
        lines += [sentence(draw) for _ in range(60)]
    if kind > 0.7:
        lines = [f"What did I say about the {draw.choice(WORDS)} and the {draw.choice(WORDS)}?"]
    return draw.choice(["\n", " ", "\n\n"]).join(lines)


class Drawn:
    """A model and its tools that say what is drawn."""

    def __init__(self, draw: Random, *, tools: bool) -> None:
        self.draw, self.tools = draw, tools

    def answer(self, messages: list[ModelMessage], info: AgentInfo) -> Step:
        first = messages[-1].parts[-1].part_kind == "user-prompt"
        if self.tools and info.function_tools and self.draw.random() < (0.7 if first else 0.3):
            path = f"/srv/{self.draw.choice(WORDS)}/{self.draw.choice(WORDS)}.py"
            about = sentence(self.draw) if self.draw.random() < 0.5 else f"{self.draw.choice(WORDS)} on {path} now"
            return [("read_file", {"path": path, "about": about})]
        return " ".join(sentence(self.draw) for _ in range(self.draw.randint(1, 5)))

    def read_file(self, path: str, about: str) -> str | dict[str, Any]:
        lines = [sentence(self.draw) for _ in range(self.draw.choice([1, 3, 30]))]
        return "\n".join([path, *lines]) if self.draw.random() < 0.5 else {"path": path, "lines": lines}


def summary(draw: Random) -> str:
    return "\n".join([f"- {sentence(draw)}" for _ in range(4)])


QUOTES_ALL = Template.parse(
    "---\ncompiler: none\n---\n{{ constraints }}\n{{ topic }}\n{{ plan }}\n{{ recent_turns }}\n{{ latest_input }}\n",
    name="all",
)

SETTINGS: dict[str, dict[str, Any]] = {
    "chat": {"budget": 1_000},
    "small": {"budget": 300},
    "user": {"budget": 1_500, "notes": True, "every_turn": True, "recall": 0},
    "system": {"budget": 1_200, "notes": True, "inject": "system", "every_turn": True},
    "compaction": {"budget": 1_200, "notes": True, "inject": "compaction", "every_turn": True},
    "compact": {"budget": 1_500, "notes": True, "fidelity": "compact", "recall": 0},
    "every-turn": {"budget": 1_500, "notes": True, "every_turn": True},
    "tools": {"budget": 1_500, "tools": True},
    "render": {"budget": 2_000, "tools": True, "tool_history": "render"},
    "drop": {"budget": 2_000, "tools": True, "tool_history": "drop"},
    "own-note": {"budget": 1_500, "template": QUOTES_ALL},
    "across": {"budget": 1_500, "recall_across": 0.2},
    "tools-notes": {"budget": 1_500, "tools": True, "notes": True, "recall": 0.5},
}


@dataclass(kw_only=True)
class Recorded:
    """A record, and what the model was really sent at each of its requests."""

    db: Path
    sent: list[str]
    """Messages, instructions and tools of each request, in order, on one line."""


async def converse(db: Path, name: str, seed: int, turns: int) -> list[str]:
    draw, options = Random(seed), dict(SETTINGS[name])
    world = Drawn(draw, tools=options.pop("tools", False))
    model = Notes(lambda _: summary(draw)).model if options.pop("notes", False) else "none"
    compiler = ContextCompiler(store=db, system=None, model=model, **options)
    talker = Talker(world.answer)
    agent = Agent(
        talker.model,
        tools=[world.read_file] if world.tools else [],
        capabilities=[compiler],
        instructions="Answer in a few words.",
        system_prompt=f"You work for Larkfield Books. {sentence(draw)}",
    )
    history: list[ModelMessage] = []
    for turn in range(turns):
        if turn == 3:  # what an application puts between
            text = f"The office is closed today. {sentence(draw)}"
            history.append(ModelRequest(parts=[SystemPromptPart(content=text)]))
        result = await agent.run(said(draw), message_history=history, conversation_id=f"{name}-{seed}")
        history = result.all_messages()
    return [
        spoken("\n".join([*texts_of_all(request.messages), request.instructions, request.tools]))
        for request in talker.sent
    ]


def texts_of_all(messages: list[ModelMessage]) -> Iterator[str]:
    for body in ModelMessagesTypeAdapter.dump_python(messages, mode="json"):
        yield from texts_in(body["parts"])


def spoken(text: str) -> str:
    return " ".join(text.split())


IDENTITY = {"timestamp", "part_kind", "kind", "tool_call_id", "run_id", "conversation_id", "metadata", "outcome", "id"}


def texts_in(value: Any) -> Iterator[str]:
    """Every text in the JSON of parts; arguments of calls by their values too."""
    if isinstance(value, str):
        yield value
        if value[:1] == "{":
            with suppress(ValueError):
                yield from texts_in(json.loads(value))
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from texts_in(item)
    elif isinstance(value, dict):
        for name, item in cast("dict[str, Any]", value).items():
            if name not in IDENTITY:
                yield name
                yield from texts_in(item)


def sentences(parts: Any) -> set[str]:
    """Sentences of four words or more, without list marks."""
    collected: set[str] = set()
    for text in texts_in(parts):
        if text[:1] == "{":
            continue  # by its values
        for piece in re.split(r"(?<=[.!?])\s+|\n+", text):
            plain = spoken(piece).lstrip("-*• ")
            if len(plain.split()) >= 4:
                collected.add(plain)
    return collected


def make(db: Path, seeds: range, turns: int, names: Iterable[str] = SETTINGS) -> Recorded:
    async def converse_all() -> list[str]:
        return [one for seed in seeds for name in names for one in await converse(db, name, seed, turns)]

    return Recorded(db=db, sent=asyncio.run(converse_all()))


def raw_messages(db: Path) -> dict[int, list[Any]]:
    """Raw messages of each request, as JSON, read by the store."""

    async def load() -> dict[int, list[Any]]:
        async with open_record(db) as store:
            views = await store.views(None, limit=None)
            return {
                view.id or 0: [json.loads(body) for body in await recorded_messages(store, view, raw=True)]
                for view in views
            }

    return asyncio.run(load())


def check(client: TestClient, recorded: Recorded) -> Counter[str]:
    """Compare what is said of every message at every request with what was sent; the verdicts that occurred."""
    raw, seen = raw_messages(recorded.db), Counter[str]()
    for number, sent in enumerate(recorded.sent, 1):
        messages, page = list[Any](), 1
        while True:
            answer = client.get(f"/api/requests/{number}/why", params={"page": page}).json()
            messages += answer["messages"]
            if len(messages) >= answer["pages"]["total"]:
                break
            page += 1
        assert len(messages) == len(raw[number])
        kept = {
            position: sentences(raw[number][position]["parts"])
            for position, entry in enumerate(messages)
            if entry["verdict"] in ("verbatim", "shortened")
        }
        for index, message in enumerate(messages):
            seen[message["verdict"]] += 1
            seen.update(f"echo {echo['form']}" for echo in message["echoes"])
            said_here = sentences(raw[number][index]["parts"])
            where = (number, index, message["verdict"], message["fate"])
            assert answer["strip"][index] == message["verdict"][0]
            if message["verdict"] == "verbatim":
                assert all(text in sent for text in said_here), where
            if message["verdict"] in ("told", "absent", "identifier", "carried"):
                system = sentences(
                    [part for part in raw[number][index]["parts"] if part["part_kind"] == "system-prompt"]
                )
                there = {text for text in said_here - system if text in sent}
                assert all(any(text in others for others in kept.values()) for text in there), (where, there)
            there = re.findall(r"\w+", sent.casefold().replace("\\n", " "))
            for form, text in ((echo["form"], text) for echo in message["echoes"] for text in echo["words"]):
                words = re.findall(r"\w+", text.casefold())
                in_a_row = f" {' '.join(words)} " in f" {' '.join(there)} "
                true = in_a_row if form not in ("identifier", "verbatim", "shortened") else {*words} <= {*there}
                assert true, (where, form, text)
    return seen


FORMS = {
    "chat": {"verbatim", "absent", "partial", "echo recalled", "carried"},
    "user": {"told"},
    "system": {"told"},
    "compaction": {"told"},
    "tools": {"shortened", "identifier", "echo quoted", "echo identifier"},
    "render": {"shortened", "echo rule"},
    "own-note": {"echo quoted", "echo recalled"},
}
"""What must occur in the sessions of some settings, so that nothing is said because there was nothing to say."""


@pytest.mark.parametrize("name", SETTINGS)
def test_the_fate_shown_for_each_message_is_true(name: str, tmp_path: Path) -> None:
    turns = 14 if "echo quoted" in FORMS.get(name, ()) else 10  # only longer sessions quote
    seed = 1 if name == "tools" else 2  # with 2 it shortens nothing
    recorded = make(tmp_path / "context.db", range(seed, seed + 1), turns, [name])
    with TestClient(create_app(recorded.db, system=None), base_url="http://127.0.0.1") as client:
        seen = check(client, recorded)
    assert FORMS.get(name, set()) <= seen.keys(), seen


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A record of three views of the bundled conversation."""
    db = record_views(tmp_path_factory.mktemp("demo") / "context.db")

    async def load() -> list[str]:
        async with open_record(db) as store:
            records = sorted(await store.views(None, limit=None), key=lambda record: record.id or 0)
            views = [load_messages(await recorded_messages(store, record, raw=False)) for record in records]
        return [spoken("\n".join(texts_of_all(view))) for view in views]

    return Recorded(db=db, sent=asyncio.run(load()))


def test_the_demo_keeps_the_rule_of_its_last_prompt_and_marks_it(demo: Recorded) -> None:
    with TestClient(create_app(demo.db, system=None), base_url="http://127.0.0.1") as client:
        seen = check(client, demo)
        (asked, *_) = client.get("/api/sessions/1/steering").json()["prompts"]
        assert asked["text"].startswith("Morning. I'm Ines"), "a prompt begins with what the user said"
        assert {"verbatim", "partial", "identifier", "absent", "echo quoted", "echo outline"} <= seen.keys()
        for number, sent in enumerate(demo.sent, 1):
            assert "my explicit yes" in sent
            first = client.get(f"/api/requests/{number}/why").json()["messages"][0]
            assert first["verdict"] == "partial"
            words = {
                form: words for form, words in ((echo["form"], " ".join(echo["words"])) for echo in first["echoes"])
            }
            assert "my explicit yes" in words["rule"]
            assert "production data is read-only" in words["carried"].casefold()
            page = client.get(f"/requests/{number}/why").text
            assert "never deploy anything without my explicit yes</mark>" in page


def test_the_terminal_shows_the_same_fate_of_each_message_as_the_pages(demo: Recorded) -> None:
    def why(*args: object) -> str:
        made = CliRunner().invoke(app, ["views", "why", *map(str, args), "--db", str(demo.db)], env={"COLUMNS": "240"})
        assert made.exit_code == 0, made.output
        return made.output

    with TestClient(create_app(demo.db, system=None), base_url="http://127.0.0.1") as client:
        messages = client.get("/api/requests/1/why?page=1").json()["messages"]
    told = json.loads(why(1, "--json"))["messages"]
    for message, other in zip(messages, told, strict=False):
        assert (message["verdict"], message["echoes"]) == (other["verdict"], other["echoes"])
    shown = " ".join(why(1, "my explicit yes").split())
    assert (
        "the words are in it: listed as a rule" in shown
        and "words of it: quoted (message 1 as sent), listed as a rule" in shown
    )


async def test_in_a_dry_run_every_message_counts_as_sent(tmp_path: Path) -> None:
    db, draw = tmp_path / "context.db", Random(1)
    compiler = ContextCompiler(store=db, system=None, model="none", budget=600, dry_run=True)
    history: list[ModelMessage] = []
    for number in range(8):
        prompt = "The release code is ORCHID-7731." if not number else sentence(draw) * 6
        agent = Agent(Talker().model, capabilities=[compiler])
        history = (await agent.run(prompt, message_history=history, conversation_id="dry")).all_messages()
    with TestClient(create_app(db, system=None), base_url="http://127.0.0.1") as client:
        (stretch,) = client.get("/api/sessions/1/fact", params={"q": "ORCHID-7731"}).json()["stretches"]
        assert (stretch["first"], stretch["last"]) == (1, 8) and stretch["forms"] == ["verbatim"]
        assert client.get("/api/requests/8/why").json()["messages"][0]["verdict"] != "verbatim"
        assert "the model was sent the whole raw history" in client.get("/requests/8/why").text
    made = await asyncio.to_thread(CliRunner().invoke, app, ["views", "why", "8", "ORCHID-7731", "--db", str(db)])
    assert "the model was sent everything" in made.output and "not in it" not in made.output


def test_equal_messages_are_distinguished_by_position() -> None:
    """A view keeps the end of a history, and puts first what is carried for the host."""
    assert align(["yes", "d"], ["yes", "a", "b", "yes", "d"]) == [3, 4]
    assert align(["rule", "a", "d"], ["a", "b", "rule", "d"]) == [2, 0, 3]
    assert align(["x", "a"], ["a", "b"]) == [None, 0]
    assert gaps([2, None, 0, None, 3], 4) == {1: range(0, 0), 3: range(1, 3)}
