"""Several questions at once, and what is told without a question."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import Any

import pytest

from context_compiler.pipeline import (
    AnswerValue,
    AutoApprove,
    CallbackInterviewer,
    ConsoleInterviewer,
    Option,
    Question,
    QueueInterviewer,
    RecordingInterviewer,
    Reply,
    resume_pipeline,
    run_pipeline,
)
from context_compiler.pipeline.interviewers import Interviewer
from tests.pipeline.playing import Script, graph, play

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
        (ConsoleInterviewer(iter(["y\n", ""]).__next__, lambda line: None), ["Y", "unavailable"]),
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


YES_OR_NO = graph('a; b; h [shape=hexagon MORE]; start->h; h->a [label="Yes"]; h->b [label="No"]; a->done; b->done')


async def gate_of(interviewer: Any, text: str = YES_OR_NO, more: str = "") -> tuple[str, str]:
    """The stage that the gate led to, or the reason why it failed."""
    ended = await run_pipeline(text.replace("MORE", more), interviewer=interviewer, simulate=True)
    return (ended.completed[2] if len(ended.completed) > 2 else ""), ended.outcomes["h"].failure_reason


UNCLEAR = "{} is none of the choices: [Y] Yes, [N] No"


async def test_a_line_that_matches_no_choice_is_asked_again_with_the_choices() -> None:
    shown: list[str] = []
    console = ConsoleInterviewer(iter(["nope\n", "\n", "no\n"]).__next__, shown.append)
    assert await gate_of(console) == ("b", "")
    assert shown[3:] == [UNCLEAR.format(said) + "; answer again" for said in ("'nope'", "an empty line")]


async def test_lines_that_are_never_a_choice_fail_the_gate() -> None:
    shown: list[str] = []
    for lines in (["maybe\n"] * 5, ["maybe\n", ""]):
        console = ConsoleInterviewer(iter(lines).__next__, shown.append)
        assert await gate_of(console) == ("", UNCLEAR.format("'maybe'"))
        assert shown[-1] == "h: " + UNCLEAR.format("'maybe'")


async def test_an_empty_line_takes_the_default_alone() -> None:
    shown: list[str] = []
    for target, choice in (("a", "  [Y] Yes (default)"), ("b", "  [N] No (default)")):
        console = ConsoleInterviewer(lambda: "\n", shown.append)
        assert await gate_of(console, more=f"human.default_choice={target}") == (target, "")
        assert choice in shown


@pytest.mark.parametrize("answer", ["nope", "", "not yet", Option(key="M", label="Yes"), Reply(value="what")])
async def test_a_program_whose_answer_matches_no_choice_fails_the_gate(answer: Any) -> None:
    taken, reason = await gate_of(CallbackInterviewer(lambda question: answer))
    assert not taken and reason.endswith("is none of the choices: [Y] Yes, [N] No")


@pytest.mark.parametrize("special", ["timeout", "skipped"])
async def test_a_text_that_is_spelled_like_a_special_value_is_only_a_text(special: str) -> None:
    answers = QueueInterviewer([special])
    assert await gate_of(answers, more="human.default_choice=a") == ("", UNCLEAR.format(repr(special)))


async def test_a_gate_that_nobody_answers_is_never_a_partial_success() -> None:
    async def never(question: Question) -> None:
        await asyncio.sleep(60)

    taken, reason = await gate_of(CallbackInterviewer(never), more='human.timeout="20ms" allow_partial=true')
    assert (taken, reason) == ("", "max retries exceeded: human gate timeout, no default")


async def test_the_time_limit_of_a_question_holds_for_a_plain_function() -> None:
    free = Event()

    def never(question: Question) -> str:
        free.wait(10)
        return "No"

    taken = await gate_of(CallbackInterviewer(never), more='human.timeout="20ms" human.default_choice=a')
    free.set()
    assert taken == ("a", "")


NO = (False, "no", "n", "False", AnswerValue.NO, Reply(value=AnswerValue.NO), Reply(value="N", text="because"))
YES = (True, "yes", "y", "true", AnswerValue.YES, Reply(value=AnswerValue.YES), Reply(value="Y"))


async def test_yes_and_no_take_the_choice_with_that_label() -> None:
    for yes, no in (("Yes", "No"), ("[Y] go", "[N] back"), ("Yes, ship it", "No, again")):
        text = YES_OR_NO.replace('"Yes"', f'"{yes}"').replace('"No"', f'"{no}"')
        for answer in (*YES, *NO):
            taken = "a" if answer in YES else "b"
            assert await gate_of(CallbackInterviewer(lambda question, said=answer: said), text) == (taken, ""), answer


@pytest.mark.parametrize(("first", "second"), [("Now", "Yesterday"), ("Yes, now", "Yes, later"), ("Stop", "Go")])
async def test_yes_and_no_take_no_choice_unless_exactly_one_has_that_label(first: str, second: str) -> None:
    text = YES_OR_NO.replace('"Yes"', f'"{first}"').replace('"No"', f'"{second}"')
    for answer in (True, "yes", False, "no"):
        taken, reason = await gate_of(CallbackInterviewer(lambda question, said=answer: said), text)
        assert not taken and "is none of the choices" in reason, answer


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

    for person in (Plain(), CallbackInterviewer(lambda question: "what?", broken)):
        ended = await run_pipeline(GATE, interviewer=person)
        assert ended.failure_reason == "h: 'what?' is none of the choices: [Y] Yes"


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
async def test_a_line_that_came_too_late_for_one_question_does_not_answer_the_next(before: bool) -> None:
    typed: SimpleQueue[str] = SimpleQueue()
    shown: list[str] = []

    def show(line: str) -> None:
        shown.append(line)
        if line == "Now?" and not before:
            typed.put("Y\n")
        if line == ("Now?" if before else LATE):
            typed.put("N\n")

    console = ConsoleInterviewer(typed.get, show)
    assert (await console.ask(replace(QUESTIONS[0], timeout_seconds=0.02))).value == AnswerValue.TIMEOUT
    if before:
        typed.put("Y\n")
        while not typed.empty():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
    reply = await asyncio.wait_for(console.ask(Question(text="Now?")), 10)
    assert reply.text == "N" and shown[2:] == ([LATE, "Now?"] if before else ["Now?", LATE])


LATE = "'Y' came too late for an earlier question, and is ignored"


async def test_questions_are_shown_and_answered_without_escape_sequences() -> None:
    shown: list[str] = []
    labels = {'"Yes"': '"[\x1b[1mY] \x1b[2JYes\nplease"', '"No"': '"No\x1b]0;pwn\x07"', "MORE": 'label="Ship\x1b[8m?"'}
    text = YES_OR_NO
    for plain, escaped in labels.items():
        text = text.replace(plain, escaped)
    lines = iter(["\x1b[31mwhat\n", "yes please\n"])
    assert await gate_of(ConsoleInterviewer(lambda: next(lines), shown.append), text) == ("a", "")
    await ConsoleInterviewer(show=shown.append).inform("told\x1b[8m", "h\x07")
    assert shown[:3] == ["Ship?", "  [Y] Yes please", "  [N] No"] and shown[-1] == "h: told"
    assert not any("\x1b" in line or "\x07" in line for line in shown)


async def test_lines_that_are_there_before_they_are_asked_for_are_answers_in_order() -> None:
    lines = iter(["Y\n", "N\n", ""])
    console = ConsoleInterviewer(lambda: next(lines), lambda line: None)
    assert [(await console.ask(QUESTIONS[1])).text for _ in range(3)] == ["Y", "N", ""]


def nobody() -> ConsoleInterviewer:
    return ConsoleInterviewer(lambda: "", lambda line: None)


async def test_a_run_stops_where_nobody_can_be_asked_and_resumes_where_somebody_can(tmp_path: Path) -> None:
    options: dict[str, Any] = {"runs": tmp_path / "runs.db", "simulate": True}
    for _ in range(2):
        stopped = await run_pipeline(YES_OR_NO.replace("MORE", ""), run_id="r", interviewer=nobody(), **options)
        assert (stopped.ended, stopped.failure_reason) == (False, "h: nobody is there to answer")
        stopped = await resume_pipeline("r", interviewer=nobody(), **options)
        assert (stopped.ended, stopped.completed) == (False, ("start",))
        ended = await resume_pipeline("r", interviewer=QueueInterviewer(["no"]), **options)
        assert ended.ok and ended.completed == ("start", "h", "b", "done") and ended.visits["h"] == 1
        options = {"runs": tmp_path / "runs", "simulate": True}


BRANCHES = graph(
    "p [shape=component MORE]; h [shape=hexagon]; x; f [shape=tripleoctagon]; start->p; p->h; p->x; h->f; x->f; f->done"
)


async def test_other_branches_end_before_a_run_stops_and_do_not_run_again(tmp_path: Path) -> None:
    options: dict[str, Any] = {"runs": tmp_path / "runs.db"}
    stopped, script = await play(BRANCHES.replace("MORE", ""), run_id="r", interviewer=nobody(), **options)
    assert not stopped.ended and script.seen == ["x"]
    script = Script()
    ended = await resume_pipeline("r", handlers={"codergen": script}, interviewer=AutoApprove(), **options)
    assert ended.ok and script.seen == [] and {"h", "x"} < set(ended.completed)


async def test_a_branch_that_is_not_needed_stops_no_run() -> None:
    ended, script = await play(BRANCHES.replace("MORE", "join_policy=first_success"), interviewer=nobody())
    assert ended.ok and script.seen == ["x"]


@pytest.mark.parametrize("actions", ["observe,wait", "observe"])
async def test_a_child_that_stops_stops_its_parent(actions: str, tmp_path: Path) -> None:
    (tmp_path / "child.dot").write_text(YES_OR_NO.replace("MORE", ""))
    text = graph(
        f'm [shape=house stack.child_dotfile="child.dot" stack.child_workdir="{tmp_path.as_posix()}"'
        f' manager.actions="{actions}" manager.poll_interval=10ms]; start->m->done'
    )
    options: dict[str, Any] = {"runs": tmp_path / "runs.db", "simulate": True}
    stopped = await run_pipeline(text, run_id="r", interviewer=nobody(), **options)
    assert (stopped.ended, stopped.failure_reason) == (False, "h: nobody is there to answer")
    ended = await resume_pipeline("r", interviewer=AutoApprove(), **options)
    assert ended.ok and ended.outcomes["m"].notes == "Child completed"


async def test_two_concurrent_questions_are_answered_one_after_the_other() -> None:
    typed: SimpleQueue[str] = SimpleQueue()
    shown: list[str] = []

    def show(line: str) -> None:
        shown.append(line)
        typed.put(f"to {line}\n")

    console = ConsoleInterviewer(typed.get, show)
    replies = await asyncio.gather(*(console.ask(Question(text=text)) for text in ("One?", "Two?")))
    assert shown == ["One?", "Two?"] and [reply.text for reply in replies] == ["to One?", "to Two?"]


def test_a_console_asks_for_one_event_loop_after_another() -> None:
    console = ConsoleInterviewer(iter(["Y\n", "N\n"] * 2).__next__, lambda line: None)

    async def two() -> list[str]:
        return [reply.text for reply in await asyncio.gather(*map(console.ask, QUESTIONS))]

    assert [asyncio.run(two()) for _ in range(2)] == [["Y", "N"]] * 2


@pytest.mark.parametrize("recorded", [False, True])
async def test_the_time_of_a_question_starts_when_it_is_shown(recorded: bool) -> None:
    text = graph(
        "p [shape=component]; one [shape=hexagon]; two [shape=hexagon label=Two human.timeout=20ms];"
        'f [shape=tripleoctagon]; start->p; p->one; p->two; one->f [label="Yes"]; two->f [label="Yes"]; f->done'
    )
    answered, shown = Event(), list[str]()

    def read() -> str:
        answered.wait()
        return "y\n"

    console = ConsoleInterviewer(read, shown.append)
    interviewer = RecordingInterviewer(console) if recorded else console
    running = asyncio.create_task(run_pipeline(text, interviewer=interviewer, simulate=True))
    await asyncio.sleep(0.2)  # longer than the limit of the question that waits for its turn
    assert "Two" not in shown
    answered.set()
    await asyncio.wait_for(running, 30)
    assert "Two" in shown


async def test_an_unreadable_terminal_fails_the_stage_instead_of_blocking_it() -> None:
    def broken() -> str:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    gate = GATE.replace('human.timeout="20ms"', "")
    result = await asyncio.wait_for(run_pipeline(gate, interviewer=ConsoleInterviewer(broken, lambda line: None)), 10)
    assert "invalid start byte" in result.outcomes["h"].failure_reason


async def test_an_interviewer_with_a_limit_of_its_own_leads_to_the_default_choice() -> None:
    text = graph("h [shape=hexagon human.default_choice=b]; a; b; start->h; h->a->done; h->b->done")
    result, _ = await play(text, interviewer=QueueInterviewer([Reply(value=AnswerValue.TIMEOUT)]))
    assert result.ok and "b" in result.completed and "a" not in result.completed
