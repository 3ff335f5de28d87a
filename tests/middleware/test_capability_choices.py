"""What a user chooses counts in every request: fidelity, recent turns, tool history, templates."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from string import ascii_letters
from typing import Any, cast

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from context_compiler import ContextCompiler, TokenCounter, compile_view
from context_compiler.errors import SettingsError
from tests.middleware.chatting import BUDGET, Chat, extends
from tests.support.agents import Notes, Talker, run
from tests.support.histories import assert_pairs_whole, long_history, prose

FIDELITIES = {"truncate": 0, "compact": 500, "summary:low": 600, "summary:medium": 1_500, "summary:high": 3_000}


@pytest.mark.parametrize("fidelity", FIDELITIES)
async def test_a_fidelity_caps_summary_and_quotes(fidelity: str) -> None:
    cap = FIDELITIES[fidelity]
    random = Random(3)
    words = ("".join(random.choices(ascii_letters, k=3)) for _ in range(4_000))
    notes = TokenCounter().head(" ".join(words), cap * 3 // 2)
    chat = Chat(fidelity=fidelity, budget=14_000, notes=Notes(notes))
    await chat.turn(0, long_history(120, words=30))
    tokens = chat.views[0].ledger["tokens"]
    assert tokens["summary"] + tokens["quotes"] <= cap
    assert bool(chat.notes.asked) == bool(cap)
    assert tokens["summary"] > cap * 0.7 if cap else not chat.views[0].summary
    assert chat.talker.sent[0].tokens <= 14_000


async def test_fidelity_full_sends_everything_up_to_the_budget() -> None:
    chat = Chat(fidelity="full", trigger=500, budget=8_000)
    await chat.turn(0, long_history(15))
    await chat.turn(1, long_history(60))
    assert chat.statuses == ["raw", "raw", "compiled", "cycle"]
    assert chat.talker.sent[2].tokens <= 8_000


@pytest.mark.parametrize("wanted", [1, 3])
async def test_the_recent_turns_that_the_caller_counts_stay_at_a_small_budget(wanted: int) -> None:
    chat = Chat(steps=0, words=150, recent_turns=wanted, budget=4_000, trigger=None)
    for number in range(22):
        await chat.turn(number)
        prompts = [f"Question {turn}: {prose(turn + 1_000, 150)}" for turn in range(max(0, number - wanted), number)]
        assert all(prompt in chat.talker.last.text for prompt in prompts), number
    assert 2 <= chat.statuses.count("compiled") <= 8 and not chat.errors


async def test_recent_turns_that_cannot_be_kept_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    chat = Chat(steps=0, recent_turns=9, budget=1_500)
    for number in range(12):
        await chat.turn(number, long_history(30) if not number else None)
    (said,) = [record.getMessage() for record in caplog.records if "recent_turns=9" in record.getMessage()]
    assert "a larger budget or fewer turns would do" in said


@pytest.mark.parametrize("named", [{"trigger": 2_000}, {"template": "mine"}], ids=["trigger", "template"])
async def test_a_threshold_far_below_the_budget_is_where_compiling_begins(named: Any, tmp_path: Path) -> None:
    folder = tmp_path / "ContextTemplates"
    folder.mkdir()
    (folder / "mine.md").write_text("---\ntoken_threshold: 2000\n---\nSum it up.\n{{ recent_turns }}")
    chat = Chat(steps=0, budget=50_000, recall=0, system=tmp_path, **{"trigger": None, **named})
    for number in range(16):
        await chat.turn(number, long_history(16) if not number else None)
    assert chat.statuses[0] == "compiled" and max(sent.tokens for sent in chat.talker.sent) <= 2_100
    assert chat.statuses.count("compiled") <= 8


@pytest.mark.parametrize("budget", [1, 20])
async def test_a_tiny_budget_is_kept_or_exceeded_with_a_report(budget: int) -> None:
    chat = Chat(steps=0, budget=budget)
    for number in range(3):
        await chat.turn(number, long_history(3) if not number else None)
    for sent, view in zip(chat.talker.sent, chat.views, strict=True):
        assert sent.tokens <= budget or view.status == "floor_over_budget"
    assert len(chat.errors) == chat.statuses.count("floor_over_budget")


@pytest.mark.parametrize("recent", [0, 1, 3, "all"])
async def test_recent_turns_stay_as_they_are_if_they_fit(recent: Any) -> None:
    chat = Chat(steps=0, recent_turns=recent, budget=30_000, every_turn=recent != "all")
    await chat.turn(99, long_history(60, tools_per_turn=1))
    kept = [number for number in range(60) if f'"Answer {number}: ' in chat.talker.last.text]
    assert kept == (list(range(60)) if recent == "all" else list(range(61 - recent, 60)))
    assert chat.statuses == ["raw" if recent == "all" else "compiled"]


@pytest.mark.parametrize("way", ["paired", "drop", "render"])
async def test_tool_exchanges_of_kept_turns_are_sent_in_the_requested_form(way: str) -> None:
    chat = Chat(steps=1, tool_history=way, budget=30_000, every_turn=True)
    await chat.turn(99, long_history(60)[:-1])
    assert_pairs_whole(chat.talker.last.messages)
    parts = [part for message in chat.talker.last.messages for part in message.parts]
    calls = [part for part in parts if part.part_kind == "tool-call"]
    assert len(calls) == (7 if way == "paired" else 1), "the active turn keeps its own"
    kept = [part for part in parts if not re.search("BEGIN (QUOTED|RECALLED)", str(part))]
    assert any("[tool]" in str(part) for part in kept) == (way == "render")


TEMPLATE = """---
recent_turns: 1
---
Write notes, {word}.

{{{{ recent_turns }}}}
"""


def vault(folder: Path, text: str) -> Path:
    file = folder / "AssistantMD" / "ContextTemplates" / "mine.md"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


async def test_a_template_that_is_edited_between_two_runs_counts_from_the_next_compile_on(tmp_path: Path) -> None:
    file = vault(tmp_path, TEMPLATE.format(word="in short"))
    chat = Chat(steps=0, template="mine", vault=tmp_path)
    await chat.turn(0, long_history(20))
    file.write_text(TEMPLATE.format(word="at length"))
    await chat.turn(1, long_history(60))
    assert ["in short" in prompt for prompt in chat.notes.prompts] == [True, False]
    assert "at length" in chat.notes.prompts[1]
    hashes = [record.compile.template_hash for record in await chat.ours.views() if record.compile]
    assert len(set(hashes)) == 2 and not chat.errors


@pytest.mark.parametrize("harm", ["deleted", "broken"])
async def test_a_missing_or_broken_template_fails_no_run(tmp_path: Path, harm: str) -> None:
    file = vault(tmp_path, TEMPLATE.format(word="in short"))
    chat = Chat(steps=1, template="mine", vault=tmp_path)
    await chat.turn(0, long_history(20))
    file.unlink() if harm == "deleted" else file.write_text("{% if %} nothing")
    await chat.turn(1)
    assert {type(error).__name__ for error in chat.errors} == {"TemplateError"}
    assert chat.statuses[2:] == ["fallback", "fallback"]
    assert max(sent.tokens for sent in chat.talker.sent) <= BUDGET
    assert extends(chat.talker.sent[2], chat.talker.sent[3])
    file.write_text(TEMPLATE.format(word="in short"))
    await chat.turn(2)
    assert chat.statuses[-1] in ("compiled", "cycle")


async def test_the_shipped_default_needs_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    talker = Talker("done")
    agent = Agent(talker.model, capabilities=[ContextCompiler(budget=4_000)])
    await run(agent, "and now?", message_history=long_history(30))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["system"]
    assert (tmp_path / "system" / "ContextTemplates" / "chat_compiler.md").is_file()
    assert (tmp_path / "system" / "context.db").is_file()
    assert talker.last.tokens <= 4_000


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        (lambda: ContextCompiler(8_000), "budget=8000"),  # pyright: ignore[reportArgumentType]
        (lambda: ContextCompiler(budget="8k"), "tokens such as 8_000"),
        (lambda: ContextCompiler(compile_spend_limit="5"), "Money(0.50)"),
        (lambda: asyncio.run(Agent(TestModel(), capabilities=[cast(Any, ContextCompiler)]).run("hi")), "not the class"),
    ],
)
def test_a_common_mistake_is_refused_with_the_right_code(mistake: Callable[[], object], says: str) -> None:
    with pytest.raises(SettingsError) as raised:
        mistake()
    assert says in str(raised.value) and len(str(raised.value)) < 250


@pytest.mark.parametrize("given", ["hello", ["hello"], [{"role": "user", "content": "hello"}], None])
async def test_a_view_consists_of_the_messages_of_the_host(given: Any) -> None:
    with pytest.raises(SettingsError, match=r"result\.all_messages\(\)"):
        await compile_view(given)
