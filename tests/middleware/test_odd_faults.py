"""Odd histories, templates, callbacks, counters and settings cost no run, and the log repeats nothing that was said."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, CallDeferred, DeferredToolRequests, DeferredToolResults
from pydantic_ai.messages import (
    BinaryContent,
    FilePart,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturn,
    UploadedFile,
    UserPromptPart,
)
from pydantic_ai.models.test import TestModel

from context_compiler import SQLiteStore
from context_compiler.errors import CompileError, TemplateError
from context_compiler.messages.bodies import load_messages, message_body
from context_compiler.messages.history import reader_of
from context_compiler.middleware.last_exchange import last_exchange
from context_compiler.tokens import as_counter
from tests.middleware.faulty import BUDGET, Faulty
from tests.support.agents import Notes, Talker, compiler, run
from tests.support.histories import answer, assert_pairs_whole, assistant, call, long_history, prose, user
from tests.support.parts import FuturePart

HALF = "half \ud800"


@pytest.mark.parametrize("text", ["{{ 1 // 0 }}", "{% for i in range(10**9) %}x{% endfor %}"])
async def test_a_template_that_raises_fails_no_run(tmp_path: Path, text: str) -> None:
    file = tmp_path / "ContextTemplates" / "mine.md"
    file.parent.mkdir()
    file.write_text(text)
    faulty = Faulty(Notes(), template="mine", system=tmp_path)
    await faulty.ask()
    assert faulty.statuses == ["fallback"] and isinstance(faulty.errors[0], TemplateError)
    assert faulty.talker.last.tokens <= BUDGET


async def test_a_template_deleted_meanwhile_fails_no_run(tmp_path: Path) -> None:
    file = tmp_path / "ContextTemplates" / "mine.md"
    file.parent.mkdir()
    file.write_text("Sum it up.")
    faulty = Faulty(Notes(), template="mine", system=tmp_path)
    file.unlink()
    await faulty.ask()
    assert faulty.kinds == ["TemplateError"] and faulty.statuses == ["fallback"]
    assert faulty.talker.last.tokens <= BUDGET


async def test_a_counter_that_raises_is_replaced() -> None:
    def count(text: str) -> int:
        raise ValueError("no")

    faulty = Faulty(Notes(), counter=count)
    await faulty.ask()
    assert faulty.statuses == ["compiled"] and faulty.talker.last.tokens <= BUDGET


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_failing_callbacks_fail_no_run(asynchronous: bool) -> None:
    def fail(what: Any) -> Any:
        raise ValueError("in a callback")

    async def later(what: Any) -> Any:
        raise ValueError("in a callback")

    callback = later if asynchronous else fail
    faulty = Faulty(Notes(ValueError("bug")), on_view=callback, on_error=callback)
    await faulty.ask()
    assert faulty.done.output == "done" and faulty.talker.last.tokens <= BUDGET


@pytest.mark.parametrize(
    "content",
    [
        TextContent("text", metadata={HALF: HALF}),
        ImageUrl(f"http://example.org/{HALF}.png"),
        UploadedFile(HALF, provider_name="openai", media_type="image/png"),
    ],
)
async def test_a_lone_surrogate_in_content_costs_no_view_and_no_row(tmp_path: Path, content: Any) -> None:
    faulty = Faulty(store=tmp_path / "context.db", budget=100_000)
    seen = [ModelRequest(parts=[UserPromptPart(["see", content])]), ModelResponse(parts=[TextPart("seen")])]
    faulty.history += seen
    await faulty.ask(conversation_id="one")
    assert faulty.statuses == ["raw"] and not faulty.errors
    kept = (await faulty.ours.transcript("one"))[-4]
    assert HALF.replace("\ud800", "\ufffd") in str(kept) and repr(HALF)[1:-1] in str(faulty.history[-2])


async def test_the_error_callback_can_be_a_coroutine() -> None:
    heard: list[Exception] = []

    async def later(error: Exception) -> None:
        await asyncio.sleep(0)
        heard.append(error)

    faulty = Faulty(Notes(ValueError("bug")), on_error=later)
    await faulty.ask()
    assert [type(error) for error in heard] == [CompileError]


WEIRD: dict[str, list[ModelMessage]] = {
    "an empty request": [user("hello"), ModelResponse(parts=[TextPart("hi")]), ModelRequest(parts=[])],
    "an empty response": [user("hello"), ModelResponse(parts=[])],
    "a response first": [ModelResponse(parts=[TextPart("hi")]), user("hello"), ModelResponse(parts=[TextPart("ho")])],
    "an empty prompt": [user("hello"), ModelResponse(parts=[TextPart("hi")]), ModelRequest(parts=[UserPromptPart("")])],
    "a surrogate": [user("half of a pair: \ud83d"), ModelResponse(parts=[TextPart("hi")])],
    "large parts": [user("x" * 200_000), ModelResponse(parts=[TextPart("y" * 200_000)])],
    "nothing": [],
}


@pytest.mark.parametrize("case", WEIRD)
async def test_odd_histories_cost_no_run(case: str) -> None:
    history = WEIRD[case]
    faulty = Faulty(Notes())
    await faulty.ask(message_history=history)
    assert faulty.done.output == "done" and faulty.talker.last.tokens <= BUDGET
    assert not faulty.errors
    await faulty.ask(message_history=[*history, *long_history(40)])
    assert faulty.talker.last.tokens <= BUDGET


async def test_a_number_of_thousands_of_digits_does_not_make_the_agent_forget() -> None:
    ours = compiler(budget=8_000)
    agent = Agent(TestModel(), capabilities=[ours])
    asked = ModelResponse(parts=[call("multiply", "big")])
    done = await agent.run("go on", message_history=[user("I am Ada."), asked, user(answer("big", 10**5_000))])
    assert ours.last_view is not None and ours.last_view.status == "raw"
    (record,) = await ours.views()
    assert len(await ours.transcript(record.session_id)) == len(done.all_messages())


def endless() -> list[ModelMessage]:
    """A history that cannot be read: what a tool returned holds itself."""
    loop: dict[str, Any] = {}
    loop["again"] = loop
    asked = ModelResponse(parts=[call("look", "endless", path="a")])
    return [user("begin"), asked, user(answer("endless", loop)), *long_history(40)[1:]]


async def test_a_history_that_cannot_be_read_is_cut_to_the_last_exchange() -> None:
    faulty = Faulty(Notes(), [[("look", {"path": "a"}), ("look", {"path": "b"})], "done"])
    await faulty.ask("what now? " * 2_000, message_history=endless())
    assert faulty.done.output == "done" and faulty.statuses == ["fallback", "fallback"]
    assert max(sent.tokens for sent in faulty.talker.sent) <= BUDGET
    for sent in faulty.talker.sent:
        assert_pairs_whole(sent.messages)
        assert "what now?" in sent.text
    record = (await faulty.ours.views())[0]
    assert record.raw_tip is None and "raw_tip" in record.status
    assert record.error is not None and record.error.endswith("sent: the last exchange")


async def test_the_last_resort_says_which_rules_it_leaves_out(tmp_path: Path) -> None:
    file = tmp_path / "ContextTemplates" / "mine.md"
    file.parent.mkdir()
    file.write_text("Sum it up.")
    faulty = Faulty(template="mine", system=tmp_path, budget=1_000, rules=["Be kind."])
    file.unlink()
    faulty.agent = Agent(faulty.talker.model, instructions=prose(1, 2_000), capabilities=[faulty.ours])
    history = [user("Never push to the branch main."), *long_history(20)[1:]]
    await faulty.agent.run("Go on.", message_history=history)
    view = faulty.ours.last_view
    assert view is not None and view.status == "floor_over_budget"
    lost = [drop.what for drop in view.drops if drop.reason == "a rule, over budget"]
    assert lost == ["rule of rules=", "rule of message 0"]


async def test_the_smallest_view_keeps_the_call_of_an_answer_with_a_file() -> None:
    def look() -> ToolReturn:
        return ToolReturn(return_value="seen", content=["what it looks like"])

    talker = Talker([[("look", {})], "done"])
    agent = Agent(talker.model, tools=[look], capabilities=[compiler(budget=BUDGET)])
    await run(agent, "look at it", message_history=endless())
    assert_pairs_whole(talker.last.messages)
    assert "seen" in talker.last.text and "look at it" in talker.last.text


@pytest.mark.parametrize("prompt", ["and now?", None], ids=["with a prompt", "without a prompt"])
async def test_the_smallest_view_has_all_answers_of_a_response_with_a_deferred_call(
    prompt: str | None,
) -> None:
    def look(path: str) -> str:
        return "seen at once"

    def wait() -> str:
        raise CallDeferred

    talker = Talker([[("look", {"path": "a"}), ("wait", {})], "done"])
    ours = compiler(budget=BUDGET)
    agent = Agent(talker.model, tools=[look, wait], capabilities=[ours], output_type=[str, DeferredToolRequests])
    paused = await agent.run("look, and wait", message_history=endless())
    assert isinstance(paused.output, DeferredToolRequests)
    (open_call,) = paused.output.calls
    late = DeferredToolResults(calls={open_call.tool_call_id: "seen late"})
    await agent.run(prompt, message_history=paused.all_messages(), deferred_tool_results=late)
    assert ours.last_view is not None and ours.last_view.status == "fallback"
    assert_pairs_whole(talker.last.messages)
    for text in ("seen at once", "seen late", prompt or "look, and wait"):
        assert text in talker.last.text
    assert len(ours.last_view.messages) <= 4


async def test_the_smallest_view_keeps_the_call_of_a_late_answer() -> None:
    history = [*endless(), ModelResponse(parts=[call("look", "early", path="a")]), *long_history(20)]
    least = list(last_exchange([*history, user(answer("early", "late"))], 2_000).values())
    assert_pairs_whole(least)
    assert [type(message).__name__ for message in least] == ["ModelRequest", "ModelResponse", "ModelRequest"]


async def test_instructions_over_the_budget_are_reported_even_if_the_template_fails(tmp_path: Path) -> None:
    file = tmp_path / "ContextTemplates" / "mine.md"
    file.parent.mkdir()
    file.write_text("Sum it up.")
    faulty = Faulty(template="mine", system=tmp_path, budget=1_000)
    file.unlink()
    faulty.agent = Agent(faulty.talker.model, instructions=prose(1, 2_000), capabilities=[faulty.ours])
    await faulty.ask()
    assert faulty.done.output == "done" and faulty.statuses == ["floor_over_budget"]
    assert faulty.kinds == ["TemplateError", "BudgetError"]
    (record,) = await faulty.ours.views()
    assert record.status.startswith("floor_over_budget") and "TemplateError" in (record.error or "")


async def test_the_last_resort_lists_and_shortens_messages(tmp_path: Path) -> None:
    file = tmp_path / "ContextTemplates" / "mine.md"
    file.parent.mkdir()
    file.write_text("Sum it up.")
    faulty = Faulty(template="mine", system=tmp_path, budget=1_000)
    file.unlink()
    faulty.agent = Agent(faulty.talker.model, instructions=prose(1, 2_000), capabilities=[faulty.ours])
    await faulty.agent.run(prose(2, 3_000), message_history=(history := long_history(20)))
    view = faulty.ours.last_view
    assert view is not None and view.status == "floor_over_budget"
    left_out, shortened = view.drops
    assert (left_out.what, shortened.what) == (f"messages 0-{len(history) - 1}", f"message {len(history)}")
    assert "last resort" in left_out.reason and "clamped to fit" in shortened.reason
    raw = reader_of(as_counter(None)).read([*history, ModelRequest.user_text_prompt(prose(2, 3_000))])
    assert left_out.tokens + shortened.tokens == raw.tokens - view.tokens
    (record,) = await faulty.ours.views()
    assert [line["reason"] for line in record.ledger["dropped"]] == [left_out.reason, shortened.reason]


def test_the_smallest_view_replaces_a_picture_by_a_word() -> None:
    picture = FilePart(content=BinaryContent(b"x" * 1_000, media_type="image/png"))
    drawn = ModelResponse(parts=[picture, call("look", "c", path="a")])
    least = list(last_exchange([user("draw it"), drawn, user(answer("c"))], 100).values())
    assert [part.part_kind for part in least[1].parts] == ["text", "tool-call"]
    assert load_messages([message_body(message) for message in least]) == least


def test_the_smallest_view_sends_no_cut_text_under_the_id_of_the_whole() -> None:
    thought = ThinkingPart("hm", id="rs_1", signature="sig", provider_name="openai")
    wrote = ToolCallPart("look", {"path": "a" * 500}, "c", id="fc_1", provider_name="openai")
    history = [user("draw it"), ModelResponse(parts=[thought, wrote]), user(answer("c"))]
    (cut,) = list(last_exchange(history, 100).values())[1].parts
    assert isinstance(cut, ToolCallPart) and (cut.args, cut.id) == ({}, None)
    assert list(last_exchange(history, 9_000).values()) == history


async def test_an_invalid_environment_variable_is_reported_and_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTEXT_COMPILER_RECENT_TURNS", "several")
    faulty = Faulty(Notes())
    await faulty.ask()
    await faulty.ask()
    assert faulty.kinds == ["SettingsError"] and faulty.statuses == ["compiled", "cycle"]


async def test_a_system_folder_that_cannot_be_created_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    faulty = Faulty(Notes(), system=tmp_path / "file")
    await faulty.ask()
    await faulty.ask()
    assert faulty.kinds == ["TemplateError"] and faulty.statuses == ["compiled", "cycle"]


async def test_exceptions_that_stop_a_durable_run_are_raised() -> None:
    stop = type("Stopped", (Exception,), {"__module__": "dbos._error"})
    faulty = Faulty(Notes(stop("until later")))
    with pytest.raises(stop):
        await faulty.ask()


async def test_unknown_parts_fail_as_they_do_without_the_compiler() -> None:
    odd = ModelRequest(parts=[UserPromptPart("hello"), FuturePart("what is this?")])  # pyright: ignore
    history: list[ModelMessage] = [odd, ModelResponse(parts=[TextPart("hi")])]

    async def outcome(*capabilities: Any) -> str:
        talker = Talker("done")
        agent = Agent(talker.model, capabilities=list(capabilities))
        try:
            return (await run(agent, "go", message_history=history)).output
        except Exception as error:
            return type(error).__name__

    assert await outcome(compiler(Notes(), budget=BUDGET)) == await outcome()


async def test_the_log_names_the_failure_without_any_message_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    def repeats(number: int) -> str:
        raise ValueError(f"could not digest {notes.prompts[-1]}")

    notes = Notes(repeats)
    faulty = Faulty(notes)
    await faulty.ask("my password is hunter2")
    logged = "\n".join(record.getMessage() for record in caplog.records if "context_compiler" in record.name)
    assert "CompileError" in logged and "hunter2" not in logged and "Question 1" not in logged


def nested_result(depth: int) -> object:
    found: object = "leaf"
    for level in range(depth):
        found = [found] if level % 2 else {"inner": found}
    return found


@pytest.mark.parametrize("depth", [195, 196, 199, 200, 225, 251])
async def test_a_result_nested_deeper_than_pydantic_reads_is_sent_recorded_and_read_back(
    depth: int, tmp_path: Path
) -> None:
    def nested() -> object:
        return nested_result(depth)

    talker, errors = Talker([[("nested", {})], "done", "sure"]), list[Exception]()
    ours = compiler(budget=8_000, store=tmp_path / "context.db", on_error=errors.append)
    agent = Agent(talker.model, tools=[nested], capabilities=[ours])
    done = await run(agent, "Look.", conversation_id="c")
    await run(agent, "And now?", message_history=done.messages, conversation_id="c")
    assert not errors and ours.last_view is not None and ours.last_view.status == "raw"
    (kept,) = [
        part for message in await ours.transcript("c") for part in message.parts if part.part_kind == "tool-return"
    ]
    assert kept.content == nested_result(depth)


class Exhausting(dict[str, str]):
    """A result that takes more memory than there is once somebody looks into it."""

    tired = False

    def values(self) -> Any:
        if self.tired:
            raise MemoryError
        return super().values()


async def test_memory_that_runs_out_while_a_request_is_measured_stops_no_run(tmp_path: Path) -> None:
    content = Exhausting(found="a vase")
    history = [user("Look."), assistant(call("look", "c1")), user(answer("c1", content)), assistant("There it is.")]
    talker, errors = Talker("sure"), list[Exception]()
    ours = compiler(budget=8_000, store=tmp_path / "context.db", on_error=errors.append)
    content.tired = True
    assert (await run(Agent(talker.model, capabilities=[ours]), "And now?", message_history=history)).output == "sure"


@pytest.mark.parametrize("depth", [300, 900])
async def test_a_result_nested_too_deep_to_be_read_is_recorded_as_it_was_sent(depth: int, tmp_path: Path) -> None:
    def nested() -> object:
        value: object = "leaf"
        for _ in range(depth):
            value = [value]
        return value

    talker, errors = Talker([[("nested", {})], "done"]), list[Exception]()
    ours = compiler(budget=1_500, store=tmp_path / "context.db", on_error=errors.append)
    await run(Agent(talker.model, tools=[nested], capabilities=[ours]), "Look.")
    newest = (await ours.views())[0]
    assert newest.status.startswith("fallback") and "raw_tip: it cannot be read" in newest.status
    assert "the history of a request cannot be read: its row is recorded without" in str(errors[-1])
    kept = load_messages(await SQLiteStore(tmp_path / "context.db").chain(newest.view_tip or ""))
    sent = [part for message in talker.last.messages for part in message.parts if part.part_kind == "tool-return"]
    assert [part.content for part in kept[-1].parts] == [sent[-1].content]
