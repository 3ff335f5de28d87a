"""Commands around the tools that an agent calls: told of each call, able to forbid it, else never in its way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler.pipeline import Event, RunResult, run_pipeline
from tests.pipeline.playing import graph


class Calling:
    """An agent that calls one tool and then repeats what came back."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.events: list[Event] = []
        self.agent = Agent(FunctionModel(self._answer), deps_type=type(None))

        @self.agent.tool_plain
        def look_up(word: str) -> str:
            self.called.append(word)
            return f"{word} is 42"

    def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        last = messages[-1]
        assert isinstance(last, ModelRequest)
        for part in last.parts:
            if isinstance(part, ToolReturnPart):
                return ModelResponse(parts=[TextPart(str(part.content))])
        return ModelResponse(parts=[ToolCallPart("look_up", {"word": "it's"}, tool_call_id="c1")])

    async def run(self, node: str = "", attrs: str = "", **options: Any) -> RunResult:
        text = graph(f"a [prompt=go {node}]; start->a->done", attrs=attrs)
        return await run_pipeline(text, agents=self.agent, run_id="r", on_event=self.events.append, **options)

    @property
    def failed(self) -> list[dict[str, Any]]:
        return [dict(event.data) for event in self.events if event.kind == "tool_hook_failed"]


def hook(name: str, command: str) -> str:
    quoted = command.replace("\\", "\\\\").replace('"', '\\"')
    return f'tool_hooks.{name}="{quoted}"'


async def test_both_hooks_get_the_call_in_variables_and_as_json(tmp_path: Path) -> None:
    told = "cat > $HOOK_HOOK.json; echo $HOOK_NODE $HOOK_TOOL $HOOK_CALL_ID $HOOK_RUN_ID > $HOOK_HOOK.txt"
    calling = Calling()
    result = await calling.run(hook("pre", told), hook("post", told), workdir=tmp_path)
    assert result.context["last_response"] == "it's is 42" and calling.failed == []
    assert (tmp_path / "pre.txt").read_text() == (tmp_path / "post.txt").read_text() == "a look_up c1 r\n"
    before, after = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("pre", "post"))
    assert (before["tool"], before["arguments"], before["visit"]) == ("look_up", {"word": "it's"}, 1)
    assert "result" not in before and after["result"] == "it's is 42"


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("echo not today >&2; exit 3", "exit code 3: not today"),
        ("nosuchcommand", "exit code 127"),
        ("kill -9 $$", "exit code -9"),
    ],
)
async def test_a_failing_pre_hook_forbids_the_call_and_informs_the_model(
    command: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    calling = Calling()
    result = await calling.run(hook("pre", command))
    assert calling.called == [] and result.ok
    assert result.context["last_response"].startswith(f"look_up was not called, because a hook forbade it: {why}")
    (failed,) = calling.failed
    assert (failed["hook"], failed["tool"], failed["skipped"]) == ("pre", "look_up", True) and why in failed["reason"]
    assert "tool_hooks.pre of look_up failed: exit code" in caplog.text and "not today" not in caplog.text


async def test_a_last_hook_that_fails_is_only_noted() -> None:
    calling = Calling()
    result = await calling.run(hook("post", "exit 1"))
    assert result.context["last_response"] == "it's is 42" and calling.called == ["it's"]
    assert [one["hook"] for one in calling.failed] == ["post"]


async def test_hooks_of_a_stage_replace_those_of_the_graph() -> None:
    calling = Calling()
    await calling.run(hook("pre", "true"), hook("pre", "false"))
    assert calling.called == ["it's"]
    calling = Calling()
    await calling.run("", hook("pre", "false"))
    assert calling.called == []


async def test_a_hook_need_not_read_its_input() -> None:
    calling = Calling()
    await calling.run(hook("pre", "exec <&-; true"))
    assert calling.called == ["it's"]


async def test_a_missing_folder_counts_as_a_failing_hook(tmp_path: Path) -> None:
    calling = Calling()
    await calling.run(hook("pre", "true"), workdir=tmp_path / "gone")
    assert calling.called == [] and "gone" in calling.failed[0]["reason"]


async def test_hooks_are_not_called_for_the_tool_that_reports_the_outcome() -> None:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[ToolCallPart("report_outcome", {"outcome": "success"})])

    text = graph(f"a [goal_gate=true {hook('pre', 'false')}]; start->a->done")
    result = await run_pipeline(text, model=FunctionModel(answer))
    assert result.ok, result.failure_reason


async def test_a_tool_may_return_bytes_that_are_not_text(tmp_path: Path) -> None:
    calling = Calling()

    @calling.agent.tool_plain
    def load() -> bytes:
        return b"\xff\xfe"

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) > 1:
            return ModelResponse(parts=[TextPart("loaded")])
        return ModelResponse(parts=[ToolCallPart("load", {}, tool_call_id="c1")])

    with calling.agent.override(model=FunctionModel(answer)):
        result = await calling.run(hook("post", "cat > seen.json"), workdir=tmp_path)
    assert result.context["last_response"] == "loaded", result.failure_reason
    assert json.loads((tmp_path / "seen.json").read_text())["result"] == "__4="
