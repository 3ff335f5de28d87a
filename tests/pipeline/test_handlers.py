"""Tools, people, and pipelines that supervise pipelines."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from context_compiler.pipeline import (
    AutoApprove,
    CallbackInterviewer,
    ConsoleInterviewer,
    Event,
    Outcome,
    QueueInterviewer,
    RecordingInterviewer,
    RunResult,
    RunState,
    Stage,
    StageStatus,
    parse_dot,
    run_pipeline,
)
from context_compiler.pipeline.handlers.human import options_of
from context_compiler.pipeline.interviewers import Question, QuestionType, Reply
from tests.pipeline.playing import Heard, Script, graph, no_wait, play


def shell(command: str, more: str = "") -> str:
    quoted = command.replace("\\", "\\\\").replace('"', '\\"')
    return graph(f't [shape=parallelogram tool_command="{quoted}" {more}]; start->t->done')


async def test_a_tool_succeeds_with_its_output() -> None:
    result = await run_pipeline(shell("echo hello; echo oh >&2"))
    assert result.context["tool.output"] == "hello\n" and result.context["tool.stderr"] == "oh\n"
    assert result.context["tool.exit_code"] == 0 and result.outcomes["t"].notes == "hello"


async def test_a_failing_tool_is_a_failure_with_its_whole_output() -> None:
    result = await run_pipeline(shell("echo out; echo bad >&2; exit 3"), strict_failure_edges=True)
    assert result.failure_reason == "t: exit code 3: bad"
    assert (result.context["tool.exit_code"], result.context["tool.output"]) == (3, "out\n")
    held = result.state.artifacts
    assert held["t.1.output"]["data"] == "out\n" and held["t.1.stderr"]["data"] == "bad\n"


async def test_a_tool_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    mark = tmp_path / "late"
    result = await run_pipeline(shell(f"echo before; (sleep 1; touch {mark}) & sleep 60", 'timeout="200ms"'))
    assert result.outcomes["t"].failure_reason == "timed out after 0.2 s"
    assert result.context["tool.output"] == "before\n"
    await asyncio.sleep(1.2)
    assert not mark.exists()


@pytest.mark.skipif(which("setsid") is None, reason="no setsid, which leaves a process group")
@pytest.mark.parametrize("start", ["", "setsid "])
async def test_a_command_that_has_ended_does_not_wait_for_what_it_left_behind(start: str, tmp_path: Path) -> None:
    command = f"{start}sh -c 'echo $$ > pid; exec sleep 600' & until test -s pid; do sleep 0.01; done; echo begun"
    async with asyncio.timeout(60):
        result = await run_pipeline(shell(command), workdir=tmp_path)
    assert result.context["tool.output"] == "begun\n" and result.context["tool.exit_code"] == 0
    pid = int((tmp_path / "pid").read_text())
    if start:
        os.kill(pid, signal.SIGKILL)  # it left the group, and goes on
    else:
        while _is_alive(pid):
            await asyncio.sleep(0.01)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


TWICE = [
    "sh -c 'echo ${params.x}'",
    'echo "$(bash -e -c "echo ${params.x}")"',
    "sh -c ${params.x}",
    "eval echo ${params.x}",
    '"ev"al "echo ${params.x}"',
    "ssh host 'ls ${params.x}'",
    'trap "echo ${params.x}" EXIT',
    "/bin/sh <<EOF\necho ${params.x}\nEOF",
    "cat <<EOF | sh\necho ${params.x}\nEOF",
    "sh <<'EOF'\necho ${params.x}\nEOF",
    "bash -c \\\n 'echo ${params.x}'",
    "sh -ce 'echo ${params.x}'",
    "sh 2>&1 -c 'echo ${params.x}'",
    'echo "echo ${params.x}" | sh',
    'A="echo ${params.x}"; eval "$A"',
    "$SHELL -c 'echo ${params.x}'",
    "S='zs''h -c'; $S 'echo ${params.x}'",
    "script -qc 'echo ${params.x}' /dev/null",
    "echo ${params.x} | xargs -I{} sh -c 'echo {}'",
    "find . -exec sh -c 'echo ${params.x}' ';'",
    "timeout 9 sh -c 'echo ${params.x}'",
    "X=${params.x}; echo $((X + 1))",
    "A=1 . ./file ${params.x}",
    "git rebase --exec 'echo ${params.x}'",
    "tar c . --checkpoint-action=exec='echo ${params.x}'",
    "env -S ${params.x}",
    "make X=${params.x}",
    "sed 's/a/${params.x}/'",
    "awk 'BEGIN { print ${params.x} }'",
    "python3 -c 'print(${params.x})'",
    "echo ${params.x} | python3",
    "echo ${params.x} > file; true && . ./file",
    "cat <<EOF\n$(echo ${params.x})\nEOF",
]


@pytest.mark.parametrize("command", TWICE)
@pytest.mark.parametrize("value", ["$(touch mark)", "a; touch mark", "a\ntouch mark", "`touch mark`", "a'b", 'a"b'])
async def test_a_value_that_something_might_read_as_a_command_is_refused(
    command: str, value: str, tmp_path: Path
) -> None:
    result = await run_pipeline(shell(command), context={"params.x": value}, workdir=tmp_path)
    assert result.outcomes["t"].failure_reason.startswith("tool_command: ${params.x} may contain only letters, ")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("language", "value"), [("perl", "qx/touch mark/"), ("ruby", "%x/touch mark/")])
async def test_a_language_with_quotes_made_of_letters_takes_only_words(language: str, value: str) -> None:
    text = shell(f"{language} -e 'print ${{params.x}}'")
    result = await run_pipeline(text, context={"params.x": value})
    assert "may contain only letters, digits and _, because" in result.outcomes["t"].failure_reason


async def test_a_value_in_arithmetic_is_a_number() -> None:
    result = await run_pipeline(shell("echo $((${params.x} + 1))"), context={"params.x": "a[$(touch mark)]"})
    assert result.outcomes["t"].failure_reason.startswith("tool_command: ${params.x} is not a whole number")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("sh -c 'echo \"$1\"' name ${params.x}", "7\n"),
        ("sh -c 'echo ${params.x}'", "7\n"),
        ("echo $((${params.x} + 1))", "8\n"),
        ('sh -c true; echo "an eval of ${params.x}"', "an eval of 7\n"),
    ],
)
async def test_a_value_that_is_harmless_is_filled_in_anywhere(command: str, said: str) -> None:
    assert (await run_pipeline(shell(command), context={"params.x": "7"})).context["tool.output"] == said


@pytest.mark.parametrize(
    "command",
    [
        "echo ${params.x}",
        "./show.sh ${params.x}",
        "printf '%s\\n' ${params.x}",
        "test -d . && echo ${params.x}",
        "echo ${params.x} | cat -",
        f"{sys.executable} show.py ${{params.x}}",
        "X=${params.x} ./shown.sh",
        "./source/show.sh ${params.x}",
    ],
)
async def test_an_ordinary_command_takes_any_value(command: str, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    for name, text in (("show.sh", 'echo "$1"'), ("shown.sh", 'echo "$X"'), ("source/show.sh", 'echo "$1"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o700)
    (tmp_path / "show.py").write_text("import sys\nprint(sys.argv[1])\n")
    value = 'it\'s; $(touch mark) `touch mark` "quoted" & done'
    result = await run_pipeline(shell(command), context={"params.x": value}, workdir=tmp_path)
    assert result.context["tool.output"] == f"{value}\n" and not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    ("label", "said"),
    [("ship", "ship\n"), ("$(id)", None), ("it's", None), ("it's fine", "it's fine\n")],
)
async def test_a_label_that_a_model_wrote_is_harmless_or_the_label_of_an_edge(label: str, said: str | None) -> None:
    text = graph(
        't [shape=parallelogram tool_command="echo ${preferred_label}"]; a [prompt=a]; '
        'start->a->t; t->done; t->done [label="[F] it\'s fine" weight=-1]'
    )
    result, _ = await play(text, {"a": [Outcome(preferred_label=label)]})
    assert result.context.get("tool.output") == said
    assert said or "because a model wrote it" in result.outcomes["t"].failure_reason


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("cat <<EOF\nGoal: $goal\nEOF", "Goal: Ship it\n"),
        ("cat <<EOF\ndon't: $goal\nEOF\necho '$goal'", "don't: Ship it\nShip it\n"),
        ("cat <<-'EOF'\n\tGoal: $goal\n\tEOF", "Goal: Ship it\n"),
        ('cat <<A - <<"B"\n1\nA\n$goal $HOME\nB', "Ship it $HOME\n"),
        ("echo \"$(cat <<EOF\n'$goal'\nEOF\n)\"", "'Ship it'\n"),
        ("echo $((1 << 2)) $goal\necho $goal", "4 Ship it\nShip it\n"),
    ],
)
async def test_a_here_document_contains_the_value_and_no_quotes_around_it(command: str, said: str) -> None:
    assert (await run_pipeline(shell(command))).context["tool.output"] == said


@pytest.mark.parametrize("goal", ["it's", "EOF", "$(touch mark)"])
async def test_a_here_document_with_a_quoted_end_takes_only_text_that_cannot_end_it(goal: str) -> None:
    result = await run_pipeline(shell("cat <<'EOF'\n$goal\nEOF").replace("Ship it", goal))
    assert "here-document" in result.outcomes["t"].failure_reason
    result = await run_pipeline(shell("cat <<EOF\n$goal\nEOF").replace("Ship it", goal))
    assert result.context["tool.output"] == f"{goal}\n"


async def test_a_command_takes_only_keys_on_the_list_and_quotes_them() -> None:
    text = shell("echo ${graph.goal} ${params.name}").replace("Ship it", "it's; touch x")
    result = await run_pipeline(text, context={"params.name": "$(id)"})
    assert result.context["tool.output"] == "it's; touch x $(id)\n"
    refused = await run_pipeline(shell("echo ${last_response}"), context={"last_response": "x"})
    assert "${last_response} is not allowed" in refused.outcomes["t"].failure_reason


@pytest.mark.parametrize(
    "command",
    [
        "echo $goal",
        'echo "$goal"',
        "echo '$goal'",
        'echo "$(echo "$goal")"',
        "echo \"$(echo '$goal')\"",
        "(echo ${graph.goal})",
        "# don't\necho $goal",
        "printf '%s\\n' '\\'\"$goal\" | cut -c2-",
        'echo "#$goal" | cut -c2-',
    ],
)
async def test_an_inserted_value_is_never_executed_whatever_quotes_surround_it(command: str, tmp_path: Path) -> None:
    goal = "a'; touch one; `touch two` $(touch three) ${graph.goal} ; touch four"
    result = await run_pipeline(shell(command).replace("Ship it", goal), workdir=tmp_path)
    assert result.context["tool.output"] == f"{goal}\n" and not list(tmp_path.iterdir())


async def test_a_long_output_is_an_artifact(tmp_path: Path) -> None:
    result = await run_pipeline(shell(f"{sys.executable} -c 'print(\"x\" * 200000)'"), logs_root=tmp_path)
    assert len(result.context["tool.output"]) == 8 * 1024
    assert result.context["tool.output_ref"] == "artifact://t.1.output"
    assert (tmp_path / "artifacts" / "t.1.output.json").stat().st_size > 200_000


GATE = graph(
    'h [shape=hexagon label="Ship?" HERE]; a; b; start->h; h->a [label="[Y] Yes"]; h->b [label="N) No"];'
    "a->done; b->done"
)


async def asked(interviewer: Any, here: str = "", **options: Any) -> tuple[RunResult, Script]:
    return await play(GATE.replace("HERE", here), interviewer=interviewer, **options)


@pytest.mark.parametrize("answer", ["n", "N", "no", "No", "b"])
async def test_a_choice_is_matched_by_key_label_and_target(answer: str) -> None:
    assert (await asked(QueueInterviewer([answer])))[1].seen == ["b"]


async def test_an_answer_that_matches_no_choice_fails_the_gate_and_is_kept() -> None:
    result, script = await asked(QueueInterviewer(["perhaps later"]))
    assert script.seen == [] and result.context["human_response"] == "perhaps later"
    assert result.failure_reason == "h: 'perhaps later' is none of the choices: [Y] Yes, [N] No"
    _, script = await asked(QueueInterviewer(["perhaps later"]), "retry_target=b")
    assert script.seen == ["b"]


async def test_every_interviewer_can_answer() -> None:
    assert (await asked(AutoApprove()))[1].seen == ["a"]
    assert (await asked(CallbackInterviewer(lambda question: question.options[1])))[1].seen == ["b"]

    async def later(question: Question) -> Reply:
        return Reply(value="N", option=question.options[1])

    assert (await asked(CallbackInterviewer(later)))[1].seen == ["b"]
    shown: list[str] = []
    console = ConsoleInterviewer(io.StringIO("no\n").readline, shown.append)
    assert (await asked(console))[1].seen == ["b"]
    assert shown == ["Ship?", "  [Y] Yes", "  [N] No"]
    recording = RecordingInterviewer(QueueInterviewer(["y"]))
    await asked(recording)
    assert [(question.stage, reply.value) for question, reply in recording.asked] == [("h", "Y")]


async def test_an_unanswered_question_fails_takes_the_default_or_retries() -> None:
    result, script = await asked(QueueInterviewer())
    assert script.seen == [] and result.failure_reason == "h: nobody answered"
    assert result.outcomes["h"].failure_reason == "nobody answered"

    async def never(question: Question) -> None:
        await asyncio.sleep(60)

    _, script = await asked(CallbackInterviewer(never), 'timeout="20ms" human.default_choice=b')
    assert script.seen == ["b"]
    result, _ = await asked(CallbackInterviewer(never), 'human.timeout="20ms"')
    assert "human gate timeout, no default" in result.outcomes["h"].failure_reason


def test_keys_of_choices_are_each_their_own() -> None:
    text = graph("h [shape=hexagon]; start->h; h->done [label=Same]; h->done [label=Simple]; h->done [label=Other]")
    options = options_of(parse_dot(text).outgoing("h"))
    assert [option.key for option in options] == ["S", "2", "O"]


async def test_a_free_question_without_options_is_answered_too() -> None:
    assert (await AutoApprove().ask(Question(text="?", type=QuestionType.FREEFORM))).value == "auto-approved"
    assert (await AutoApprove().ask(Question(text="?", type=QuestionType.YES_NO))).value == "yes"


# Pipelines that supervise pipelines.

CHILD = graph("one; two; start->one->two->done", goal="child")


def supervised(tmp_path: Path, attrs: str = "", child: str = CHILD) -> str:
    path = tmp_path / "child.dot"
    path.write_text(child)
    return graph(f'm [shape=house stack.child_dotfile="{path}" {attrs}]; start->m->done')


async def test_a_child_is_run_to_its_end(tmp_path: Path) -> None:
    script, events = Script(), list[Event]()
    result = await run_pipeline(supervised(tmp_path), handlers={"codergen": script}, on_event=events.append, run_id="r")
    assert result.ok and script.seen == ["one", "two"]
    assert result.context["stack.child.status"] == "completed" and result.context["stack.child.outcome"] == "success"
    assert script.stages[0].run_id == "r.m.1"
    assert "child_started" in [event.kind for event in events]


async def test_a_child_that_fails_is_a_failure(tmp_path: Path) -> None:
    broken = Outcome(status=StageStatus.FAIL, failure_reason="broken")
    script = Script({"two": [broken]})
    result = await run_pipeline(supervised(tmp_path), handlers={"codergen": script}, strict_failure_edges=True)
    assert result.failure_reason == "m: Child failed: two: broken"


async def test_a_child_whose_last_stage_fails_is_a_failure(tmp_path: Path) -> None:
    child = 'digraph c { start [shape=Mdiamond]; end [shape=parallelogram tool_command="exit 3"]; start->end }'
    result = await run_pipeline(supervised(tmp_path, child=child))
    assert result.failure_reason == "m: Child failed: end: exit code 3"


async def test_a_child_is_stopped_on_its_condition_and_after_the_last_cycle(tmp_path: Path) -> None:
    ended: list[str] = []

    async def hang(stage: Stage) -> Outcome:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(stage.node.name)
        return Outcome()

    async def tick(seconds: float) -> None:
        await asyncio.sleep(0.005)

    options: dict[str, Any] = {"handlers": {"codergen": hang}, "sleep": tick}
    condition = 'manager.stop_condition="context.stack.child.current_node=start"'
    result = await run_pipeline(supervised(tmp_path, condition), **options)
    assert result.outcomes["m"].notes == "Stop condition satisfied" and ended == ["one"]
    result = await run_pipeline(supervised(tmp_path, "manager.max_cycles=3"), **options)
    assert result.outcomes["m"].failure_reason == "Max cycles exceeded" and ended == ["one", "one"]
    assert result.context["stack.manager.cycles"] == 3


async def test_a_message_reaches_the_next_stage_of_the_child_and_the_loop_continues(tmp_path: Path) -> None:
    heard: list[Any] = []

    async def work(stage: Stage) -> Outcome:
        await asyncio.sleep(0.02)
        heard.append((stage.node.name, stage.context.get("steer.message")))
        return Outcome()

    async def tick(seconds: float) -> None:
        await asyncio.sleep(0.005)

    said = iter(["look at the tests"])

    def steer(state: RunState) -> str | None:
        return next(said, None)

    result = await run_pipeline(
        supervised(tmp_path, 'manager.actions="observe,steer,wait"'),
        handlers={"codergen": work},
        sleep=tick,
        steer=steer,
    )
    assert result.outcomes["m"].failure_reason == ""
    assert result.ok and result.context["stack.manager.last_steer"] == "look at the tests"
    assert "look at the tests" in [message for _, message in heard]


@pytest.mark.parametrize("fidelity", ["full", "truncate", "compact", "summary:low"])
async def test_a_message_is_heard_whole_at_every_fidelity(tmp_path: Path, fidelity: str) -> None:
    message = "look at the tests. " * 40
    child = graph(f'inner [prompt=inner fidelity="{fidelity}"]; last [prompt=last]; start->inner->last->done')
    heard, said = Heard(), iter([message])

    def steer(state: RunState) -> str | None:
        return next(said, None)

    result = await run_pipeline(
        supervised(tmp_path, 'manager.actions="observe,steer,wait"', child=child),
        model=heard.model,
        steer=steer,
    )
    assert result.ok and [message.strip() in prompt for prompt in heard.prompts] == [True, False]


async def test_a_child_that_cannot_be_supervised_is_a_failure(tmp_path: Path) -> None:
    async def why(text: str) -> str:
        return (await run_pipeline(text, sleep=no_wait)).outcomes["m"].failure_reason

    assert await why(graph("m [shape=house]; start->m->done")) == "no stack.child_dotfile"
    assert "stack.child_dotfile" in await why(supervised(tmp_path, child="digraph {"))
    assert "manager.stop_condition" in await why(supervised(tmp_path, 'manager.stop_condition="a < b"'))


async def test_a_child_starts_its_own_conversations(tmp_path: Path) -> None:
    child = graph("inner [prompt=inner fidelity=full thread_id=t]; start->inner->done")
    text = supervised(tmp_path, child=child).replace(
        "start->m", "one [prompt=one fidelity=full thread_id=t]; start->one->m"
    )
    heard = Heard()
    result = await run_pipeline(text, model=heard.model)
    assert result.ok and [len(request) for request in heard.requests] == [1, 1]


async def test_a_command_has_the_key_of_its_attempt() -> None:
    text = graph(
        't [shape=parallelogram tool_command="echo $STAGE_KEY; test ${STAGE_KEY##*/} -eq 2" max_retries=2];'
        'start->t->u; u [shape=parallelogram tool_command="echo $STAGE_KEY"]; u->done'
    )
    result = await run_pipeline(text, run_id="r", sleep=no_wait)
    assert result.ok and result.state.artifacts["t.1.output"]["data"] == "r/t/1/2\n"
    assert result.context["tool.output"] == "r/u/1/1\n"


async def test_a_stage_in_a_branch_has_its_own_key() -> None:
    keys: list[str] = []
    text = graph("p [shape=component]; x; y; j [shape=tripleoctagon]; start->p; p->x->j; p->y->j; j->done")
    await run_pipeline(text, run_id="r", handlers={"codergen": lambda stage: keys.append(stage.key) or Outcome()})
    assert sorted(keys) == ["r/x/x/1/1", "r/y/y/1/1"]


async def test_a_handler_that_cannot_be_reached_fails_its_stage_and_not_the_run() -> None:
    class Connecting:
        @property
        def execute(self) -> Any:
            raise LookupError("no server")

    text = graph('a [type="lazy"]; start->a->done')
    result = await run_pipeline(text, handlers={"lazy": Connecting()}, sleep=no_wait)
    assert result.outcomes["a"].failure_reason == "LookupError: no server"
