from __future__ import annotations

from tests.messages.importers.samples import kinds, parts, read

SYSTEM = {"role": "system", "content": "You fix bugs.", "agent": "main"}
TASK = {"role": "user", "content": "Fix it.", "agent": "main"}


def trajectory(*history: object) -> dict[str, object]:
    steps = [{"action": "ls", "observation": "a.py", "response": "ls", "thought": ""}]
    return {"environment": "main", "trajectory": steps, "history": [SYSTEM, TASK, *history], "info": {}}


def step(content: object, thought: str = "Look.", action: str = "ls", **more: object) -> dict[str, object]:
    return {"role": "assistant", "content": content, "thought": thought, "action": action, "agent": "main", **more}


CALL = {"id": "c1", "type": "function", "function": {"name": "find_file", "arguments": '{"file_name": "a.py"}'}}


def test_the_transcript_is_read_from_the_history_and_not_the_steps():
    transcript = read(trajectory(step("Look.\n```\nls\n```"), {"role": "user", "content": "a.py", "agent": "main"}))
    assert transcript.format == "swe-agent"
    assert kinds(transcript.messages) == [["system-prompt", "user-prompt"], ["text"], ["user-prompt"]]
    assert parts(transcript.messages, "text")[0].content == "Look.\n```\nls\n```"


def test_calls_and_their_answers_are_paired_by_the_listed_ids():
    answer = {"role": "tool", "content": "Found a.py", "agent": "main", "tool_call_ids": ["c1"]}
    messages = read(trajectory(step("Look.", tool_calls=[CALL]), answer)).messages
    assert kinds(messages)[1:] == [["text", "tool-call"], ["tool-return"]]
    (result,) = parts(messages, "tool-return")
    assert (result.tool_call_id, result.tool_name, result.content) == ("c1", "find_file", "Found a.py")


def test_thought_and_action_replace_missing_content():
    messages = read(trajectory(step(None), step("", action=""), step(None, tool_calls=[CALL]))).messages
    assert [part.content for part in parts(messages, "text")] == ["Look.\n```\nls\n```", "Look.", "Look."]


def test_thinking_blocks_come_before_text():
    thinking = [{"type": "thinking", "thinking": "Hm", "signature": "sig"}]
    messages = read(trajectory(step("Look.", thinking_blocks=thinking))).messages
    assert kinds(messages)[1] == ["thinking", "text"]


def test_a_demonstration_is_kept_and_noted():
    demo = {"role": "user", "content": "Here is how.", "agent": "main", "is_demo": True}
    assert read(trajectory(demo)).notes == ("demonstration (at 2)",)
