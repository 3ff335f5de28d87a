"""The benchmarks measure what they say: known answers for each measure, and one command that can be stopped."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import pytest
from pydantic_ai.messages import (
    CachePoint,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.test import TestModel

from benchmarks import answering, facts, fitting, goals, lived, money, overhead, page, recall
from benchmarks.__main__ import main as command
from benchmarks.approaches import HOMES, Approach, Missing, load
from benchmarks.data import Data, generated_conversations, generated_sessions
from benchmarks.lives import SUMS, PointedCache, SessionLife, look_up
from benchmarks.measures import ablations, evidence, sessions
from benchmarks.measures import lived as lived_measure
from benchmarks.peers.baselines import price
from benchmarks.recall import Conversation, interval
from benchmarks.results import Cell, Result, Results
from context_compiler.messages.history import Reader
from context_compiler.middleware.replay import LiveSession, PlainSession, everything, newest, replay, request_points
from context_compiler.recall import ranking
from context_compiler.tokens import TokenCounter
from tests.support.histories import assistant, user
from tests.support.warm import python

ROOT = Path(__file__).parents[1]
NO_DATA = Data(None, fast=True)
READER = Reader(TokenCounter())


def approach(view: object, **more: object) -> Approach:
    """A one-off approach; what it makes is what its session sends."""
    return Approach(name="one", title="one", view=view, session=lambda budget: PlainSession(view, budget), **more)  # pyright: ignore


# --- a session


def test_an_approach_that_breaks_pairs_is_detected() -> None:
    async def last_two(messages: list[ModelMessage], budget: int) -> Sequence[ModelMessage]:
        return messages[-2:] if budget else messages[-1:]

    async def last_one(messages: list[ModelMessage], budget: int) -> Sequence[ModelMessage]:
        return messages[-1:]

    whole = sessions.run(Cell("sessions", "one", "generated", 1_000), approach(last_two), NO_DATA)
    cut = sessions.run(Cell("sessions", "one", "generated", 1_000), approach(last_one), NO_DATA)
    assert isinstance(whole, dict) and isinstance(cut, dict)
    assert (whole["requests"], whole["broken"]) == (82, 0)
    assert (cut["requests"], cut["broken"]) == (82, 80), "all but the two requests that begin a session"


async def test_sending_everything_has_relative_cost_one() -> None:
    messages = generated_sessions()[0]
    sent = await replay(messages, PlainSession(everything, 1), Reader(TokenCounter()))
    assert sum(one.cost for one in sent) == pytest.approx(sessions.everything(messages))


async def test_a_strict_window_is_within_its_budget_and_ends_with_the_last_message() -> None:
    messages = [user("a" * 40), assistant("b " * 40), user("c")]
    room = READER.one(messages[1]).tokens + READER.one(messages[2]).tokens
    assert await newest(READER)(messages, room) == messages[1:]
    assert await newest(READER)(messages, room - 1) == messages[2:]
    assert await newest(READER)(messages, 1) == messages[2:], "the last one always goes"


# --- replaying


async def test_a_session_is_replayed_request_by_request_and_stored_whole() -> None:
    messages = generated_sessions()[0]
    session = LiveSession([])
    lengths: list[int] = []
    sent = await replay(messages, session, READER, seen=lambda point, view: lengths.append(len(view)))
    assert lengths == request_points(messages) == list(range(1, 83, 2))
    assert len(sent) == 41
    assert sessions.names(session.stored) == sessions.names(messages[:-1])


async def test_the_usage_of_a_replayed_answer_is_that_of_the_request_sent() -> None:
    messages = generated_sessions()[0]
    session = PlainSession(newest(READER), 300)
    sent = await replay(messages, session, READER)
    reported = [message.usage.input_tokens for message in session.stored if isinstance(message, ModelResponse)]
    assert reported == [request.tokens for request in sent[:-1]]


def test_an_approach_that_shortens_the_stored_history_loses_it() -> None:
    class Forgetful(PlainSession):
        async def request(self, new: Sequence[ModelMessage]) -> Sequence[ModelMessage]:
            sent = await super().request(new)
            self.stored = list(sent)
            return sent

    plain = approach(newest(READER))
    forgetful = Approach(name="one", title="one", session=lambda budget: Forgetful(newest(READER), budget))
    cell = Cell("sessions", "one", "generated", 1_000)
    kept, lost = (sessions.run(cell, which, NO_DATA) for which in (plain, forgetful))
    assert isinstance(kept, dict) and isinstance(lost, dict)
    assert (kept["intact"], lost["intact"]) == (True, False)


# --- evidence, references


def recalled(name: str, view: object = None, budget: int = 1_000, measure: str = "evidence") -> float:
    chosen = load(name) if view is None else approach(view)
    assert isinstance(chosen, Approach)
    result = evidence.run(Cell(measure, name, "generated", budget), chosen, NO_DATA)
    assert isinstance(result, dict), result
    return interval(result["groups"])[0]


def test_the_whole_history_holds_all_evidence_and_an_empty_view_none() -> None:
    async def nothing(messages: list[ModelMessage], budget: int) -> Sequence[ModelMessage]:
        return messages[-1:]

    assert recalled("everything") == 1
    assert recalled("one", nothing) == 0


def test_half_of_the_evidence_scores_one_half() -> None:
    wanted = {
        question.evidence[0] for conversation in generated_conversations() for question in conversation.questions[::2]
    }

    async def half(messages: list[ModelMessage], budget: int) -> Sequence[ModelMessage]:
        return [*(message for message in messages[:-1] if _said(message) in wanted), messages[-1]]

    assert recalled("one", half) == pytest.approx(0.5)


def _said(message: ModelMessage) -> str:
    return "".join(str(part.content) for part in message.parts if isinstance(part, UserPromptPart | TextPart))


def test_the_oracle_finds_the_evidence_within_the_budget() -> None:
    assert recalled("oracle", budget=500) == 1


def test_a_question_helps_approaches_that_read_it() -> None:
    assert recalled("ours", budget=500) > recalled("ours", budget=500, measure="evidence-blind")
    assert recalled("tail", budget=500) == recalled("tail", budget=500, measure="evidence-blind")


def test_references_are_all_in_the_whole_history_and_lost_without_it() -> None:
    async def nothing(messages: list[ModelMessage], budget: int) -> Sequence[ModelMessage]:
        return messages[-1:]

    cell = Cell("sessions", "one", "generated", 1_000)
    whole, none = (sessions.run(cell, approach(view), NO_DATA) for view in (everything, nothing))
    assert isinstance(whole, dict) and isinstance(none, dict)
    assert {score for group in whole["references"] for score in group} == {1}
    assert {score for group in none["references_long"] for score in group} == {0}


# --- lived turn by turn


def lived_through(view: object, conversation: Conversation, scenario: str = "plain") -> lived.Lived:
    life = SessionLife(PlainSession(view, 1_000))  # pyright: ignore
    return asyncio.run(lived.live(conversation, life, 1_000, scenario=scenario, paired=False))


def test_sending_everything_holds_all_facts_at_full_cost() -> None:
    found = lived_through(everything, generated_conversations()[0])
    assert found.held == found.unasked == [1.0] * 10
    assert found.cost == pytest.approx(found.whole)
    assert found.over > 0 and found.broken == 0


def test_sending_only_the_question_holds_nothing() -> None:
    async def nothing(messages: list[ModelMessage], budget: int) -> Sequence[ModelMessage]:
        return messages[-1:]

    result = lived_through(nothing, generated_conversations()[0])
    assert result.held == [0.0] * 10
    assert result.over == 0


def test_questions_are_separate_turns_after_their_evidence_and_asked_once() -> None:
    conversation = generated_conversations()[0]
    _, turns = lived.turns_of(conversation)
    asked = [turn.question for turn in turns if turn.question is not None]
    assert len(turns) == 50 and sorted(question.text for question in asked) == sorted(
        question.text for question in conversation.questions
    )
    prompts = [_said(turn.prompt) for turn in turns]
    for question in asked:
        assert prompts.index(question.evidence[0]) < prompts.index(question.text)


def test_a_tool_session_is_replayed_as_it_was_recorded() -> None:
    messages = generated_sessions()[0]
    sent: list[list[ModelMessage]] = []

    async def noted(messages: list[ModelMessage], budget: int) -> Sequence[ModelMessage]:
        sent.append(messages)
        return messages

    conversation = Conversation(name="one", messages=tuple(messages), questions=(), whole=True)
    lived_through(noted, conversation)
    assert [len(view) for view in sent] == request_points(messages)
    assert sessions.names(sent[-1]) == sessions.names(messages[:-1])


def test_held_counts_in_the_request_that_ends_the_turn() -> None:
    conversation = generated_conversations()[0]

    async def first_only(messages: list[ModelMessage], budget: int) -> Sequence[ModelMessage]:
        last = messages[-1]
        return messages if any(isinstance(part, UserPromptPart) for part in last.parts) else messages[-3:]

    assert lived_through(first_only, conversation).held == [1.0] * 10
    assert lived_through(first_only, conversation, "toolask").held == [0.0] * 10, "gone behind the tool call"


def test_a_live_agent_keeps_its_budget_with_a_tool_in_every_question_turn() -> None:
    conversation = generated_conversations()[0]
    result = asyncio.run(lived.ours(conversation, 2_000, NO_DATA, scenario="toolask", model="bland", paired=True))
    assert (result.over, result.broken) == (0, 0)
    assert result.requests == 40 + 2 * 10
    assert len(result.held) == len(result.one_shot) == 10
    assert 1 <= result.asked <= result.compiles < 20


def test_a_question_omits_the_value_of_its_fact_and_only_its_line_counts_as_held() -> None:
    call = {"user_id": "mia_3668"}
    profile = {"name": "Mia", "dob": "1990-04-05", "cards": [{"id": "card_7447", "brand": "visa"}]}
    page = "# Harbour\n\nThe lantern hangs at quay QX-4711 beside the orchard.\nNothing else."
    messages = [
        user("Look at the profile, please."),
        ModelResponse(parts=[ToolCallPart("profile", call, tool_call_id="one")]),
        ModelRequest(parts=[ToolReturnPart("profile", json.dumps(profile), tool_call_id="one")]),
        ModelResponse(parts=[ToolCallPart("read", {"page": "harbour"}, tool_call_id="two")]),
        ModelRequest(parts=[ToolReturnPart("read", page, tool_call_id="two")]),
        assistant("Both are there."),
    ]
    questions = {question.answer: question for question in facts.questions(messages, "one")}
    assert questions["1990-04-05"].text == "What was the dob of mia_3668?"
    assert questions["QX-4711"].text == "What was it again: The lantern hangs at quay beside the orchard?"
    whole = lived.shown(messages)
    assert [facts.held(question, whole) for question in questions.values()] == [1.0] * len(questions)
    assert facts.held(questions["1990-04-05"], "Somebody was born on 1990-04-05.") == 0
    assert facts.held(questions["1990-04-05"], "profile: dob=1990-04-05") == 1
    assert facts.held(questions["QX-4711"], "quay QX-4711") == 0


def test_a_cache_written_at_breakpoints_reuses_only_prefixes_that_end_at_one() -> None:
    first, second, third, other = (user(f"{word} " * 50) for word in ("one", "two", "three", "four"))
    cost = price([first])
    cache = PointedCache()
    assert cache.charge([first, second]) == pytest.approx(1.25 * 2 * cost)
    assert cache.charge([first, second, third]) == pytest.approx(0.1 * 2 * cost + 1.25 * cost)
    assert cache.charge([first, other]) == pytest.approx(1.25 * 2 * cost), "the first message ended no request"
    pointed = ModelRequest(parts=[UserPromptPart(["one " * 50, CachePoint()])])
    cache = PointedCache()
    cache.charge([pointed, second])
    assert cache.charge([pointed, other]) == pytest.approx(0.1 * cost + 1.25 * cost, abs=2)


def test_a_useless_tool_returns_the_same_for_the_same_input() -> None:
    assert look_up("entry 5") == look_up("entry 5") != look_up("entry 6")


def test_lived_conversations_are_compared_with_a_one_shot_view_at_the_same_points() -> None:
    def result(approach: str, held: float, **more: object) -> Result:
        value = {"held": [[held, 1.0]], "one_shot": [[1.0, 1.0]], "unasked": [[0.0, 0.5]], "worst": 1.0}
        sums = {**dict.fromkeys(SUMS, 0), "requests": 10, "cost": 500.0, "whole": 1_000.0, **more}
        return Result(cell=Cell("lived", approach, "locomo", 4_000), stamp="", value={**value, **sums})

    results = [result("ours-live", 0.5), result("tail", 0.0, over=1)]
    made = lived_measure.tables(results)
    assert "| one view at the same points | 100.0 |" in made["lived-locomo"]
    ours = "| **context-compiler, live agent** | 75.0 | -25.0 | 25.0 | 0.50 | 50 | 0.00 | 0 | 0 | 0 | 0 |"
    assert ours in made["lived-locomo-4000"]
    assert (
        "| the newest that fit | 50.0 | -50.0 | 25.0 | 0.50 | 50 | 0.00 | 1 (10%) | 0 | – | – |"
        in made["lived-locomo-4000"]
    )
    met = goals.table(results)
    assert "| held when asked, live, locomo at 4,000 | ≥ 93.5 % | 75.0 % | **no** |" in met
    assert "| the same less one view, locomo at 4,000 | ≥ -3, interval from -6 | -25.0 [-25, -25] | **no** |" in met
    assert "| tokens a request, live, locomo at 4,000 | ≤ 1,200 | 50 | yes |" in met
    assert made["lived-sample"] == "* LoCoMo, 1 conversation with 2 questions, within 4,000 tokens"
    without = result("ours-live-off", 0.0, cost=200.0)
    shown = lived_measure.dial_table([*results, without, result("everything", 1.0, cost=900.0)])
    assert "| off | `0` | 50 % · 20 |" in shown and "| **default** | `1.0` | 75 % · 50 |" in shown
    assert "| everything, no budget |  | 100 % · 90 |" in shown
    [panel] = lived_measure.dial_panels([*results, without])
    assert (panel.lines[0].x, panel.lines[0].y) == ([20, 50], [50, 75])


# --- approaches


def test_a_session_has_the_price_of_its_requests_and_of_the_whole_history() -> None:
    chat = replace(generated_conversations()[0], questions=())
    tokens = money.measure(chat, 1_500, {})
    sent, everything = tokens.input_cost("openai:gpt-5")
    assert 0 < sent and 0 < everything and len(tokens.sent) == len(tokens.everything)
    assert 0 < tokens.compile_cost("openai:gpt-5-nano") < tokens.compile_cost("openai:gpt-5")
    with pytest.raises(SystemExit, match="no price is known for nobody-1"):
        tokens.input_cost("nobody-1")


def test_a_peer_that_is_not_installed_is_a_dash_with_that_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "benchmarks.peers.langchain", None)
    found = load("langchain-trim")
    assert isinstance(found, Missing)
    assert "not installed" in found.reason or "langchain" in found.reason


def test_an_approach_that_cannot_run_gives_the_reason() -> None:
    oracle = load("oracle")
    assert isinstance(oracle, Approach)
    assert isinstance(sessions.run(Cell("sessions", "oracle", "generated", 1_000), oracle, NO_DATA), str)


@pytest.mark.parametrize("name", HOMES)
async def test_every_approach_that_is_there_ends_its_view_with_the_question(name: str) -> None:
    loaded = load(name)
    if isinstance(loaded, Missing):
        pytest.skip(f"{name}: {loaded.reason}; the extra `bench` has it")
    if loaded.view is None:
        pytest.skip(f"{name} needs more than a history to make a view")
    messages = [*generated_conversations()[0].messages, user("Where is it?")]
    view = await loaded.view(messages, 1_000)
    assert _said(view[-1]).endswith("Where is it?")


# --- the command


def test_a_result_is_reused_only_with_the_same_stamp(tmp_path: Path) -> None:
    cell = Cell("sessions", "tail", "pi", 16_000)
    Results(tmp_path, resume=False).keep(Result(cell=cell, stamp="a", value={"over": 1}))
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"cell": {"measure": "sess')  # as a killed process leaves it
    again = Results(tmp_path, resume=True)
    result = again.find(cell, "a")
    assert result is not None and result.value == {"over": 1}
    assert again.find(cell, "b") is None
    assert Results(tmp_path, resume=False).find(cell, "a") is None


def test_a_page_gets_its_tables_and_keeps_other_text() -> None:
    text = "# Page\n<!-- table: one -->\nold\n<!-- end -->\nprose\n<!-- table: two -->\nkept\n<!-- end -->\n"
    made = page.filled(text, {"one": "| new |"})
    assert made == text.replace("old", "| new |")


@dataclass(frozen=True)
class TwoSets(Data):
    """Two labelled sets, one of which may not be read."""

    @property
    def labelled(self) -> dict[str, tuple[int, ...]]:
        return {"seen": (500,), "unseen": (500,)}

    def conversations(self, name: str) -> list[Conversation]:
        assert name == "seen"
        return generated_conversations()


def test_the_ranking_is_fitted_without_the_set_that_it_is_measured_on() -> None:
    usual, data = (ranking.SETTING_WEIGHT, ranking.LENGTH), TwoSets(None)
    with fitting.fitted_without("unseen", data):
        fitted = ranking.SETTING_WEIGHT, ranking.LENGTH
        assert fitted == fitting.numbers_without("unseen", data) != usual
    assert (ranking.SETTING_WEIGHT, ranking.LENGTH) == usual
    drawn = fitting.samples("seen", data)
    held = [fmean(sample.held(fitting.weights(*own), 100) for sample in drawn) for own in (fitted, (-9, 2.5))]
    assert held[0] > 0.9 > held[1]


def test_leaving_out_the_only_feature_of_the_ranking_loses_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "FEATURES", ranking.FEATURES[:1])
    monkeypatch.setattr(ranking, "SETTING", ())
    (cell,) = ablations.cells(Data(None), ["ours"])
    approach = load("ours")
    assert isinstance(approach, Approach)
    result = ablations.run(cell, approach, Data(None))
    assert isinstance(result, dict) and result["features"]["words"] > 50 and not result["signs"]


def test_a_page_keeps_rows_and_cells_not_measured_again_on_request() -> None:
    text = "<!-- table: one -->\n{}\n<!-- end -->\n"
    old = text.format("|  | 1 | 2 |\n|---|---|---|\n| **a** | 10 | 20 |\n| b | 30 | – |\n\n– b: why.")
    new = "|  | 2 |\n|---|---|\n| **c** | 6 |\n| **a** | 5 |"
    made = page.filled(old, {"one": new}, keep=True)
    rows = "| **a** | 10 | 5 |\n| **c** | – | 6 |\n| b | 30 | – |"
    assert made == text.format(f"|  | 1 | 2 |\n|---|---|---|\n{rows}\n\n– b: why.")
    assert page.filled(old, {"one": new}) == text.format(new)
    other = "|  | 3 |\n|---|---|\n| a | 5 |"
    assert page.filled(old, {"one": other}, keep=True) == text.format(other), "of another kind, so it takes its place"
    twice = "|  | 1 | 2 |\n|---|---|---|\n| a | x | 5 |\n| a | y | 6 |"
    assert page.filled(old, {"one": twice}, keep=True) == text.format(twice), "rows cannot be told apart by their name"


async def test_every_question_has_a_block_with_a_measured_search_time() -> None:
    row = await overhead.measured_blocks(NO_DATA, 600, 120, 4)
    assert (row["messages"], row["blocks"]) == (120, 4)
    assert 0 < row["median"] <= row["p90"]
    assert row["host"] > 0


def test_a_page_keeps_goals_and_machines_of_results_not_measured_again() -> None:
    text = "<!-- table: goals -->\n{}\n<!-- end -->\n<!-- table: machine -->\n{}\n<!-- end -->\n"
    head = "|  | goal |\n|---|---|"
    old = text.format(f"{head}\n| a | 1 |\n| b | 2 |", "* sets, lived: there, 2 cores\n* lived: elsewhere")
    new = {"goals": f"{head}\n| c | 3 |\n| b | 4 |", "machine": "* lived: here"}
    machines = "* sets, lived: there, 2 cores\n* lived: elsewhere\n* lived: here"
    assert page.filled(old, new, keep=True) == text.format(f"{head}\n| a | 1 |\n| b | 4 |\n| c | 3 |", machines)
    assert page.filled(old, new) == text.format(new["goals"], new["machine"])


def test_a_missed_goal_is_marked() -> None:
    def session(budget: int, cost: float) -> Result:
        value = {"relative": cost, "requests": 10, "over": 0, "broken": 1, "references": [], "references_long": []}
        return Result(cell=Cell("sessions", "ours-live", "pi", budget), stamp="", value=value)

    made = goals.table([session(16_000, 0.12), session(64_000, 0.3)])
    assert "| cost with a prompt cache, pi at 16,000 | ≤ 0.15 | 0.120 | yes |" in made
    assert "| cost with a prompt cache, pi at 64,000 | ≤ 0.29 | 0.300 | **no** |" in made
    assert "| requests with a broken pair | 0 | 2 of 20 | **no** |" in made
    assert "| requests over the budget | 0 | 0 of 20 | yes |" in made


@pytest.fixture
def no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data are at hand."""
    monkeypatch.setenv("CONTEXT_COMPILER_DATA", str(tmp_path / "nothing"))


def measured(out: Path, *more: str) -> str:
    """What the command prints, in this process."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        command(["--fast", "--out", str(out), *more])
    assert "raises" not in printed.getvalue(), printed.getvalue()
    return printed.getvalue()


def benchmarked(out: Path, *more: str) -> str:
    """What the command prints, in a process of its own."""
    run = subprocess.run(
        [python(), "-m", "benchmarks", "--fast", "--out", str(out), *more],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=800,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "raises" not in run.stdout, run.stdout
    return run.stdout


@pytest.mark.usefixtures("no_data")
def test_the_command_measures_writes_and_resumes(tmp_path: Path) -> None:
    wanted = ("--measure", "sessions", "--approach", "ours-live", "--approach", "tail")
    said = measured(tmp_path, *wanted)
    assert "| **context-compiler, live agent** | 82 | 0 |" in said
    assert "because no data are at hand" in (tmp_path / "sessions.md").read_text()
    pages = tmp_path / "pages"
    pages.mkdir()
    for name in ("one.md", "two.md"):
        (pages / name).write_text("<!-- table: setup -->\n<!-- end -->\n")
    kept = (tmp_path / "results.jsonl").read_text()
    assert len(kept.splitlines()) == len(json.loads((tmp_path / "sessions.json").read_text())["results"]) == 2
    measured(tmp_path, *wanted, "--approach", "everything", "--resume", "--page", str(pages))
    assert all("| everything |" in file.read_text() for file in pages.iterdir())
    after = (tmp_path / "results.jsonl").read_text()
    assert after.startswith(kept) and len(after.splitlines()) == 3, "only what was new was measured"


@pytest.mark.usefixtures("no_data")
def test_several_processes_measure_the_same(tmp_path: Path) -> None:
    wanted = ("--measure", "lived", "--approach", "ours-live", "--approach", "tail")
    one, two = measured(tmp_path / "1", *wanted), benchmarked(tmp_path / "2", *wanted, "--jobs", "2")
    said = [re.sub(r"\d{4}-\d\d-\d\d", "the day", text.partition("written to")[0]) for text in (one, two)]
    assert said[0] == said[1] and "| **context-compiler, live agent** |" in said[0]


@pytest.mark.usefixtures("no_data")
def test_the_fast_benchmark_needs_neither_data_nor_peers(tmp_path: Path) -> None:
    few = [part for name in ("ours", "tail", "harness-window", "langchain-trim") for part in ("--approach", name)]
    said = measured(tmp_path, *few)
    assert "Evidence recall, query-aware" in said and "Sessions, request by request" in said


@pytest.mark.usefixtures("no_data")
def test_answers_are_scored_and_a_stopped_run_asks_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "KEPT", tmp_path / "answers")
    prompts: list[str] = []

    async def read(self: TestModel, messages: list[ModelMessage], *rest: object) -> ModelResponse:
        """Answer with the place that the first fact names."""
        prompts.append(recall.shown(messages))
        match = re.search(r"is kept (in \w+ \d+)", prompts[-1])
        return ModelResponse(parts=[TextPart(match[1] if match else "nobody knows")])

    monkeypatch.setattr(TestModel, "request", read)
    few = [part for name in ("oracle", "tail", "ours") for part in ("--approach", name)]
    few += [part for budget in ("0", "200", "4000") for part in ("--budget", budget)]
    said = measured(tmp_path, "--measure", "answers", "--model", "test", *few)
    assert "| test | oracle (knows the evidence) | 4,000 | 100.0 [100, 100] | 100.0 [100, 100] |" in said
    assert "| test | the question alone | 0 | 0.0 [0, 0] |" in said
    assert "test, 20 questions. Its F1 is 100 from the evidence alone and 0 from the question alone" in said
    asked = len(prompts)
    assert asked > 0
    again = measured(tmp_path, "--measure", "answers", "--model", "test", *few)
    assert len(prompts) == asked
    assert again.partition("| model")[2] == said.partition("| model")[2]


def test_every_benchmark_command_of_the_docs_has_the_options_that_it_is_given() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "Makefile"))]
    texts = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    named: dict[str, set[str]] = {}
    for module, options in re.findall(r"python -m (benchmarks[.\w]*)((?: +(?!#)[^ `\n]+)*)", texts):
        named.setdefault(module, set()).update(re.findall(r"--[\w-]+", options))
    assert len(named) > 5
    for module, options in named.items():
        run = subprocess.run([python(), "-m", module, "--help"], cwd=ROOT, capture_output=True, text=True, check=False)
        if "No module named 'compaction_kit'" not in run.stderr:  # it is in the extra [bench] alone
            assert "usage:" in run.stdout and options <= set(run.stdout.split()), (module, run.stderr)
