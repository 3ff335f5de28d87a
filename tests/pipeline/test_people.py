"""Several questions at once, and what is told without a question."""

from __future__ import annotations

import asyncio
from queue import SimpleQueue
from typing import Any

import pytest

from context_compiler.pipeline import (
    AutoApprove,
    CallbackInterviewer,
    ConsoleInterviewer,
    Option,
    Question,
    QueueInterviewer,
    RecordingInterviewer,
    Reply,
    run_pipeline,
)
from context_compiler.pipeline.interviewers import Interviewer
from tests.pipeline.playing import graph

GATE = graph(
    'h [shape=hexagon label="Ship it?" human.timeout="20ms" human.default_choice=done]; start->h; h->done [label=Yes]'
)
QUESTIONS = [Question(text="One?", options=(Option(key="Y", label="Yes"),)), Question(text="Two?")]


@pytest.mark.parametrize(
    ("interviewer", "said"),
    [
        (AutoApprove(), ["Y", "yes"]),
        (QueueInterviewer(["yes", "why"]), ["Y", "why"]),
        (CallbackInterviewer(lambda question: question.text), ["One?", "Two?"]),
        (ConsoleInterviewer(iter(["y\n", ""]).__next__, lambda line: None), ["Y", "skipped"]),
        (RecordingInterviewer(QueueInterviewer(["Yes"])), ["Y", "skipped"]),
    ],
)
async def test_several_questions_are_asked_in_order(interviewer: Interviewer, said: list[str]) -> None:
    assert [reply.value for reply in await interviewer.ask_multiple(QUESTIONS)] == said


async def test_a_person_is_informed_of_a_decision_made_without_an_answer() -> None:
    class Silent(CallbackInterviewer):
        async def ask(self, question: Question) -> Reply:
            await asyncio.sleep(60)
            raise AssertionError

    recording = RecordingInterviewer(Silent(lambda question: None))
    assert (await run_pipeline(GATE, interviewer=recording)).ok
    assert recording.told == [("nobody answered within 0.02 s, so 'Yes' was chosen", "h")]

    shown: list[str] = []
    console = ConsoleInterviewer(lambda: "maybe\n", shown.append)
    assert (await run_pipeline(GATE.replace("20ms", "1h"), interviewer=console)).ok
    assert shown[-1] == "h: 'maybe' is none of the choices, so the first, 'Yes', was chosen"


@pytest.mark.parametrize(
    ("edges", "answers"),
    [
        ('h->b [label="Accept"]; h->a [label="Back"]', {"A": "b", "b": "a", "accept": "b", "Back": "a"}),
        ('h->a [label="[2] two"]; h->b [label="[2] also"]', {"2": "a", "3": "b", "also": "b"}),
        ('h->a [label="Yes"]; h->b [label="No"]', {"a": "a", "B": "b", "n": "b"}),
    ],
)
async def test_a_shown_label_of_a_choice_takes_precedence_over_the_name_of_a_stage(
    edges: str, answers: dict[str, str]
) -> None:
    text = graph(f"a; b; h [shape=hexagon]; start->h; {edges}; a->done; b->done")
    for answer, stage in answers.items():
        ended = await run_pipeline(text, interviewer=QueueInterviewer([answer]), simulate=True)
        assert ended.state.completed == ("start", "h", stage, "done"), answer


async def test_messages_go_to_a_plain_or_async_function() -> None:
    heard: list[Any] = []

    async def tell(message: str, stage: str) -> None:
        heard.append((message, stage))

    await CallbackInterviewer(lambda question: None, tell).inform("done", "a")
    await CallbackInterviewer(lambda question: None, lambda message, stage: heard.append(message)).inform("plain")
    await AutoApprove().inform("nobody hears this")
    assert heard == [("done", "a"), "plain"]


async def test_an_interviewer_without_inform_or_with_a_failing_one_does_not_stop_a_run() -> None:
    class Plain:
        async def ask(self, question: Question) -> Reply:
            assert question.metadata["visit"] == 1
            return Reply(value="what?", text="what?")

    def broken(message: str, stage: str) -> None:
        raise RuntimeError("not listening")

    assert (await run_pipeline(GATE, interviewer=Plain())).ok
    assert (await run_pipeline(GATE, interviewer=CallbackInterviewer(lambda question: "what?", broken))).ok


async def test_a_line_that_came_too_late_for_one_question_answers_the_next() -> None:
    typed: SimpleQueue[str] = SimpleQueue()

    def show(line: str) -> None:
        if line == "Now?":
            typed.put("N\n")

    console = ConsoleInterviewer(typed.get, show)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(console.ask(QUESTIONS[0]), 0.02)
    reply = await asyncio.wait_for(console.ask(Question(text="Now?")), 10)
    assert reply.text == "N"


async def test_two_concurrent_questions_are_answered_one_after_the_other() -> None:
    typed: SimpleQueue[str] = SimpleQueue()
    shown: list[str] = []

    def show(line: str) -> None:
        shown.append(line)
        typed.put(f"to {line}\n")

    console = ConsoleInterviewer(typed.get, show)
    replies = await asyncio.gather(*(console.ask(Question(text=text)) for text in ("One?", "Two?")))
    assert shown == ["One?", "Two?"] and [reply.text for reply in replies] == ["to One?", "to Two?"]


async def test_an_unreadable_terminal_fails_the_stage_instead_of_blocking_it() -> None:
    def broken() -> str:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    gate = GATE.replace('human.timeout="20ms"', "")
    result = await asyncio.wait_for(run_pipeline(gate, interviewer=ConsoleInterviewer(broken, lambda line: None)), 10)
    assert "invalid start byte" in result.outcomes["h"].failure_reason
