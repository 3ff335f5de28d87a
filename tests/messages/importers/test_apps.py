"""Exports and sessions of apps and agents, in the shapes that they write."""

from __future__ import annotations

import json
from typing import Any

import pytest

from context_compiler.messages.importers import parse_transcripts
from tests.messages.importers.samples import kinds, parts, read, read_all, refused, survives


def texts(messages: Any) -> list[str]:
    """The text of every part that has one, in order."""
    return [str(part.content) for message in messages for part in message.parts if hasattr(part, "content")]


def node(id: str, parent: str | None, children: list[str], message: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"id": id, "parent": parent, "children": children, "message": message}


def says(role: str, said: str, **more: Any) -> dict[str, Any]:
    return {"author": {"role": role}, "content": {"content_type": "text", "parts": [said]}, "recipient": "all", **more}


CHATGPT = {
    "title": "Trip",
    "conversation_id": "c1",
    "current_node": "f",
    "mapping": {
        "root": node("root", None, ["a"]),
        "a": node("a", "root", ["b", "x"], says("user", "Which port?", create_time=1700000000.5)),
        "x": node("x", "a", [], says("assistant", "An answer that was regenerated.")),
        "b": node("b", "a", ["c"], says("assistant", "print(8080)", id="call-1", recipient="python")),
        "c": node(
            "c",
            "b",
            ["d"],
            {
                "author": {"role": "tool", "name": "python"},
                "content": {"content_type": "execution_output", "text": "8080"},
            },
        ),
        "d": node("d", "c", ["e"], says("assistant", "Port 8080.", metadata={"model_slug": "gpt-5"})),
        "e": node(
            "e",
            "d",
            ["f"],
            {
                "author": {"role": "user"},
                "content": {
                    "content_type": "multimodal_text",
                    "parts": [{"content_type": "image_asset_pointer", "asset_pointer": "file://x"}, "And this?"],
                },
            },
        ),
        "f": node("f", "e", [], says("assistant", "A map.")),
    },
}


def test_chatgpt_reads_the_branch_to_the_current_node():
    transcript = read(CHATGPT)
    assert transcript.format == "chatgpt"
    assert kinds(transcript.messages) == [
        ["user-prompt"],
        ["tool-call"],
        ["tool-return"],
        ["text"],
        ["user-prompt"],
        ["text"],
    ]
    assert "regenerated" not in str(transcript.messages)
    assert any("another branch" in note for note in transcript.notes)
    (call,), (result,) = parts(transcript.messages, "tool-call"), parts(transcript.messages, "tool-return")
    assert (call.tool_name, call.args, call.tool_call_id) == ("python", {"input": "print(8080)"}, "call-1")
    assert (result.tool_name, result.tool_call_id, result.content) == ("python", "call-1", "8080")
    assert "[image]\nAnd this?" in texts(transcript.messages)
    assert transcript.messages[3].model_name == "gpt-5"  # pyright: ignore[reportAttributeAccessIssue]
    assert parts(transcript.messages, "user-prompt")[0].timestamp.timestamp() == 1700000000.5


def test_chats_with_the_same_title_have_their_ids_in_their_names():
    found = read_all([CHATGPT, {**CHATGPT, "conversation_id": "c2"}])
    assert [(one.name, one.format) for one in found] == [("Trip#c1", "chatgpt"), ("Trip#c2", "chatgpt")]


CLAUDE = {
    "uuid": "u1",
    "name": "Trip",
    "chat_messages": [
        {
            "uuid": "m1",
            "sender": "human",
            "text": "Where?",
            "created_at": "2026-01-02T03:04:05Z",
            "content": [{"type": "text", "text": "Where?"}],
            "attachments": [{"file_name": "plan.md", "extracted_content": "Lisbon first"}],
            "files": [{"file_name": "map.png"}],
        },
        {
            "uuid": "m2",
            "sender": "assistant",
            "text": "",
            "content": [
                {"type": "thinking", "thinking": "Look it up."},
                {"type": "text", "text": "I search."},
                {"type": "tool_use", "id": "t1", "name": "web_search", "input": {"query": "Lisbon"}},
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "A city"}]},
                {"type": "text", "text": "Lisbon."},
            ],
        },
        {"uuid": "m3", "sender": "human", "text": "Thanks", "content": []},
    ],
}


def test_claude_splits_an_answer_at_the_results_in_it():
    transcript = read([CLAUDE])
    assert transcript.format == "claude"
    assert kinds(transcript.messages) == [
        ["user-prompt"],
        ["thinking", "text", "tool-call"],
        ["tool-return"],
        ["text"],
        ["user-prompt"],
    ]
    prompt = parts(transcript.messages, "user-prompt")[0]
    assert prompt.content == ["Where?", "[file: plan.md]\nLisbon first", "[file: map.png]"]
    assert parts(transcript.messages, "tool-return")[0].content == "A city"
    assert parts(transcript.messages, "user-prompt")[1].content == "Thanks"


ROOT = "00000000-0000-4000-8000-000000000000"


def sent(uuid: str, parent: str | None, sender: str, said: str) -> dict[str, Any]:
    return {"uuid": uuid, "parent_message_uuid": parent, "sender": sender, "text": said, "content": []}


TREE = [
    sent("m1", ROOT, "human", "Where to?"),
    sent("m2", "m1", "assistant", "Lisbon."),
    sent("m3", "m2", "human", "And then?"),
    sent("m4", "m3", "assistant", "Porto."),
    sent("m5", "m2", "human", "And before?"),
    sent("m6", "m5", "assistant", "Madrid."),
]


@pytest.mark.parametrize(
    ("head", "last"),
    [
        ({"current_leaf_message_uuid": "m4"}, ["And then?", "Porto."]),
        ({"current_leaf_message_uuid": "m6"}, ["And before?", "Madrid."]),
        ({}, ["And before?", "Madrid."]),
    ],
)
def test_claude_reads_the_branch_to_the_current_message(head: dict[str, str], last: list[str]):
    transcript = read([{"name": "Trip", **head, "chat_messages": TREE}])
    assert texts(transcript.messages) == ["Where to?", "Lisbon.", *last]
    left_out = "4, 5" if last[0] == "And then?" else "2, 3"
    assert transcript.notes == (f"left out a message of another branch (at {left_out})",)


def test_claude_reads_a_first_prompt_that_was_edited_once():
    edited = [sent("m1", ROOT, "human", "Where?"), sent("m2", ROOT, "human", "Where to?")]
    transcript = read([{"name": "Trip", "chat_messages": [*edited, sent("m3", "m2", "assistant", "Lisbon.")]}])
    assert texts(transcript.messages) == ["Where to?", "Lisbon."]


def entry(type: str, uuid: str, parent: str | None, content: object, **more: Any) -> dict[str, Any]:
    message = {"role": type, "content": content, **more.pop("message", {})}
    return {"type": type, "uuid": uuid, "parentUuid": parent, "sessionId": "s", "message": message, **more}


def use(id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "Read", "input": {"file": id}}


def result(id: str) -> list[dict[str, Any]]:
    return [{"type": "tool_result", "tool_use_id": id, "content": f"body of {id}"}]


def test_claude_code_joins_the_entries_of_a_response_and_keeps_results_of_parallel_calls():
    one_id = {"message": {"id": "msg_1", "model": "claude-opus"}}
    lines = [
        {"type": "file-history-snapshot", "messageId": "u", "snapshot": {}, "sessionId": "s"},
        entry("user", "u", None, "Read a and b"),
        entry("user", "old", None, "A prompt that was edited"),
        entry("assistant", "a1", "u", [{"type": "text", "text": "Reading."}], **one_id),
        entry("assistant", "a2", "a1", [use("a")], **one_id),
        entry("assistant", "a3", "a2", [use("b")], **one_id),
        entry("user", "r1", "a2", result("a")),
        entry("user", "r2", "a3", result("b")),
        entry("assistant", "side", "r2", "from a subagent", isSidechain=True),
        entry("assistant", "a4", "r2", [{"type": "text", "text": "Both read."}], message={"id": "msg_2"}),
        entry("user", "c", "a4", "The conversation so far was", isCompactSummary=True),
        entry("user", "u2", "c", "Thanks"),
    ]
    (transcript,) = parse_transcripts("\n".join(map(json.dumps, lines)).encode(), file="s.jsonl")
    survives(transcript.messages)
    assert transcript.format == "claude-code"
    assert kinds(transcript.messages) == [
        ["user-prompt"],
        ["text", "tool-call", "tool-call"],
        ["tool-return", "tool-return"],
        ["text"],
        ["user-prompt"],
    ]
    assert "edited" not in str(transcript.messages) and "subagent" not in str(transcript.messages)
    assert {note.split(" (")[0] for note in transcript.notes} == {
        "left out an entry of a subagent",
        "left out the summary of a compaction",
        "left out an entry of another branch",
    }


def test_claude_code_keeps_a_parallel_call_beside_the_branch_with_its_result():
    one_id = {"message": {"id": "msg_1"}}
    lines = [
        entry("user", "u", None, "Read a and b"),
        entry("assistant", "a1", "u", [use("a")], **one_id),
        entry("assistant", "a2", "a1", [use("b")], **one_id),
        entry("user", "r2", "a2", result("b")),
        entry("user", "r1", "a1", result("a")),
        entry("assistant", "old", "r1", [{"type": "text", "text": "An answer that was made again."}]),
        entry("user", "u2", "r1", "Thanks"),
    ]
    transcript = read(lines)
    assert kinds(transcript.messages) == [
        ["user-prompt"],
        ["tool-call", "tool-call"],
        ["tool-return", "tool-return"],
        ["user-prompt"],
    ]
    assert transcript.notes == ("left out an entry of another branch (at 5)",)


CODEX = [
    {"timestamp": "2026-01-01T00:00:00Z", "type": "session_meta", "payload": {"id": "x", "instructions": "Be brief."}},
    {"type": "turn_context", "payload": {"model": "gpt-5-codex"}},
    {
        "type": "response_item",
        "payload": {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Run the tests"}]},
    },
    {"type": "event_msg", "payload": {"type": "user_message", "message": "Run the tests"}},
    {
        "type": "response_item",
        "payload": {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "Tests"}],
            "encrypted_content": "z",
        },
    },
    {
        "type": "response_item",
        "payload": {"type": "function_call", "name": "shell", "arguments": '{"cmd": "make test"}', "call_id": "c1"},
    },
    {"type": "response_item", "payload": {"type": "function_call_output", "call_id": "c1", "output": "1 passed"}},
    {
        "type": "response_item",
        "payload": {"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin", "call_id": "c2"},
    },
    {
        "type": "response_item",
        "payload": {
            "type": "custom_tool_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "Done"}],
        },
    },
    {
        "type": "response_item",
        "payload": {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "They pass."}]},
    },
]


def test_codex_reads_response_items_once():
    transcript = read(CODEX)
    assert transcript.format == "codex"
    assert kinds(transcript.messages) == [
        ["system-prompt", "user-prompt"],
        ["thinking", "tool-call"],
        ["tool-return"],
        ["tool-call"],
        ["tool-return"],
        ["text"],
    ]
    assert [part.args for part in parts(transcript.messages, "tool-call")] == [{"cmd": "make test"}, "*** Begin"]
    assert [part.content for part in parts(transcript.messages, "tool-return")] == ["1 passed", "Done"]
    assert transcript.messages[-1].model_name == "gpt-5-codex"  # pyright: ignore[reportAttributeAccessIssue]


def spoken(role: str, said: str) -> dict[str, Any]:
    block = {"type": "output_text" if role == "assistant" else "input_text", "text": said}
    return {"type": "response_item", "payload": {"type": "message", "role": role, "content": [block]}}


def rolled_back(turns: int) -> dict[str, Any]:
    return {"type": "event_msg", "payload": {"type": "thread_rolled_back", "num_turns": turns}}


INJECTED = [
    spoken("user", "# AGENTS.md instructions for /srv\n\n<INSTRUCTIONS>\nBe brief.\n</INSTRUCTIONS>"),
    spoken("user", "<environment_context>\n<cwd>/srv</cwd>\n</environment_context>"),
]


def test_codex_leaves_out_turns_that_were_rolled_back():
    lines = [
        *INJECTED,
        spoken("user", "Fix it"),
        spoken("assistant", "Fixed."),
        spoken("user", "Push it"),
        INJECTED[1],
        spoken("assistant", "Pushed."),
        spoken("user", "Tag it"),
        rolled_back(2),
        spoken("user", "Test it"),
        spoken("assistant", "They pass."),
    ]
    transcript = read(lines)
    assert texts(transcript.messages)[2:] == ["Fix it", "Fixed.", "Test it", "They pass."]
    assert transcript.notes == ("left out an item of a turn that was rolled back (at 4, 5, 6, 7)",)
    again = read([*lines, rolled_back(1), spoken("user", "Stop")])
    assert texts(again.messages)[2:] == ["Fix it", "Fixed.", "Stop"]


@pytest.mark.parametrize(("turns", "left"), [(0, 4), (9, 2)])
def test_codex_never_rolls_back_more_than_the_turns_of_the_user(turns: int, left: int):
    transcript = read([*INJECTED, spoken("user", "Fix it"), spoken("assistant", "Fixed."), rolled_back(turns)])
    assert len(texts(transcript.messages)) == left


def test_responses_of_openai_are_read_from_a_request_a_response_or_a_list():
    items = [line["payload"] for line in CODEX if line["type"] == "response_item"]
    transcript = read({"instructions": "Be brief.", "input": items})
    assert transcript.format == "openai-responses"
    assert kinds(transcript.messages)[0] == ["system-prompt", "user-prompt"]
    assert kinds(read(items).messages) == [["user-prompt"], *kinds(transcript.messages)[1:]]
    assert kinds(read({"object": "response", "output": items[-1:]}).messages) == [["text"]]


def test_an_item_of_a_provider_tool_is_kept_as_text():
    item = {"type": "web_search_call", "id": "w", "action": {"query": "x"}}
    one = read([{"role": "user", "content": "x"}, item], format="openai-responses")
    assert json.loads(parts(one.messages, "text")[0].content) == item
    assert "item of type 'web_search_call' kept as text" in one.notes[0]


def langchain(kind: str, **fields: Any) -> dict[str, Any]:
    path = ["langchain", "schema", "messages", f"{kind}Message"]
    return {"lc": 1, "type": "constructor", "id": path, "kwargs": fields}


CALL = {"name": "look", "args": {"at": 1}, "id": "c1", "type": "tool_call"}


@pytest.mark.parametrize(
    "messages",
    [
        [
            langchain("System", content="Be brief."),
            langchain("Human", content="Look"),
            langchain("AI", content=[{"type": "tool_use", "id": "c1", "name": "look", "input": {}}], tool_calls=[CALL]),
            langchain("Tool", content="seen", tool_call_id="c1", status="error"),
            langchain("AI", content="Done", tool_calls=[]),
        ],
        [
            {"type": "system", "data": {"content": "Be brief."}},
            {"type": "human", "data": {"content": "Look"}},
            {"type": "ai", "data": {"content": "", "tool_calls": [CALL]}},
            {"type": "tool", "data": {"content": "seen", "tool_call_id": "c1", "status": "error"}},
            {"type": "ai", "data": {"content": "Done"}},
        ],
        [
            {"type": "system", "content": "Be brief."},
            {"type": "human", "content": "Look"},
            {"type": "ai", "content": "", "tool_calls": [CALL]},
            {"type": "tool", "content": "seen", "tool_call_id": "c1", "status": "error"},
            {"type": "ai", "content": "Done"},
        ],
    ],
)
def test_langchain_is_read_in_each_of_its_dumps(messages: list[dict[str, Any]]):
    transcript = read({"messages": messages})
    assert transcript.format == "langchain"
    assert kinds(transcript.messages) == [["system-prompt", "user-prompt"], ["tool-call"], ["tool-return"], ["text"]]
    assert parts(transcript.messages, "tool-call")[0].args == {"at": 1}
    returned = parts(transcript.messages, "tool-return")[0]
    assert (returned.tool_name, returned.content, returned.outcome) == ("look", "seen", "failed")


def test_openhands_reads_actions_and_observations():
    call = {"id": "c1", "function": {"name": "execute_bash", "arguments": '{"command": "ls"}'}}
    model = {"id": "r1", "choices": [{"message": {"tool_calls": [call]}}]}
    metadata = {"tool_call_id": "c1", "function_name": "execute_bash", "model_response": model}
    transcript = read(
        [
            {"id": 0, "source": "agent", "action": "system", "args": {"content": "You are an agent."}},
            {"id": 1, "source": "user", "action": "message", "args": {"content": "List"}},
            {"id": 2, "source": "environment", "observation": "agent_state_changed", "content": ""},
            {
                "id": 3,
                "source": "agent",
                "action": "run",
                "args": {"command": "ls", "thought": "I list."},
                "tool_call_metadata": metadata,
            },
            {
                "id": 4,
                "source": "agent",
                "observation": "run",
                "content": "a.py",
                "cause": 3,
                "tool_call_metadata": metadata,
            },
            {"id": 5, "source": "agent", "action": "finish", "args": {"final_thought": "One file."}},
        ]
    )
    assert transcript.format == "openhands"
    assert kinds(transcript.messages) == [
        ["system-prompt", "user-prompt"],
        ["text", "tool-call"],
        ["tool-return"],
        ["text"],
    ]
    assert parts(transcript.messages, "tool-call")[0].args == {"command": "ls"}
    assert parts(transcript.messages, "tool-return")[0].tool_name == "execute_bash"


def test_openhands_reads_events_of_the_newer_kind():
    def action(id: str) -> dict[str, Any]:
        call = {"id": id, "name": "terminal", "arguments": '{"command": "ls"}'}
        thought = [{"type": "text", "text": "I list."}]
        more = {"thought": thought, "tool_name": "terminal", "tool_call_id": id, "tool_call": call}
        return {"kind": "ActionEvent", "source": "agent", "llm_response_id": "r1", **more}

    def observed(id: str) -> dict[str, Any]:
        seen = {"kind": "TerminalObservation", "content": [{"type": "text", "text": "a.py"}], "is_error": False}
        return {
            "kind": "ObservationEvent",
            "source": "environment",
            "tool_name": "terminal",
            "tool_call_id": id,
            "observation": seen,
        }

    transcript = read(
        {
            "events": [
                {"kind": "SystemPromptEvent", "source": "agent", "system_prompt": {"type": "text", "text": "Agent."}},
                {
                    "kind": "MessageEvent",
                    "source": "user",
                    "llm_message": {"role": "user", "content": [{"type": "text", "text": "List"}]},
                },
                action("c1"),
                {**action("c2"), "thought": []},
                observed("c1"),
                {
                    "kind": "AgentErrorEvent",
                    "source": "agent",
                    "error": "no such tool",
                    "tool_name": "terminal",
                    "tool_call_id": "c2",
                },
                {"kind": "ConversationStateUpdateEvent", "source": "environment"},
            ]
        }
    )
    assert transcript.format == "openhands"
    assert kinds(transcript.messages) == [
        ["system-prompt", "user-prompt"],
        ["text", "tool-call", "tool-call"],
        ["tool-return", "tool-return"],
    ]
    assert [part.outcome for part in parts(transcript.messages, "tool-return")] == ["success", "failed"]


def test_cline_reads_tags_as_calls_and_files_as_results():
    details = {"type": "text", "text": "<environment_details>\nVS Code\n</environment_details>"}

    def block(said: str) -> dict[str, str]:
        return {"type": "text", "text": said}

    brought = '<task>\nFix it, see\n<file_content path="src/a.py">\nx = 1\n</file_content>\n</task>'
    called = "I look.\n<read_file>\n<path>src/b.py</path>\n</read_file>"
    transcript = read(
        [
            {"role": "user", "content": [block(brought), details]},
            {"role": "assistant", "content": [block(called)]},
            {"role": "user", "content": [block("[read_file for 'src/b.py'] Result:"), block("y = 2"), details]},
            {"role": "assistant", "content": [block("<b>Done</b> <unknown_tool>")]},
        ]
    )
    assert transcript.format == "cline"
    assert kinds(transcript.messages) == [
        ["user-prompt"],
        ["tool-call"],
        ["tool-return"],
        ["text", "tool-call"],
        ["tool-return", "user-prompt"],
        ["text"],
    ]
    assert [(part.tool_name, part.args) for part in parts(transcript.messages, "tool-call")] == [
        ("read_file", {"path": "src/a.py"}),
        ("read_file", {"path": "src/b.py"}),
    ]
    assert [part.content for part in parts(transcript.messages, "tool-return")] == ["x = 1", "y = 2"]
    first = parts(transcript.messages, "user-prompt")[0].content
    assert "[file: src/a.py]" in first[0] and "x = 1" not in str(first)


@pytest.mark.parametrize(
    "said",
    [
        "**User:**\n\nHello\n\n**Assistant:**\n\nHi\n",
        "# A chat\n\n## User\nHello\n\n## Assistant\nHi",
        "User: Hello\nAssistant: Hi",
        "You said:\nHello\nChatGPT said:\nHi",
        "**Human**: Hello\n**AI**: Hi",
        "[user]\nHello\n[assistant]\nHi\n",
    ],
)
def test_text_is_split_where_a_line_names_the_speaker(said: str):
    (one,) = parse_transcripts(said.encode(), file="chat.md")
    assert one.format == "text"
    assert kinds(one.messages) == [["user-prompt"], ["text"]]
    assert texts(one.messages) == ["Hello", "Hi"]


def test_a_speaker_inside_a_code_fence_is_text():
    said = "User: Look\n```\nAssistant: not a speaker\n```\nthere\nAssistant: I see"
    (one,) = parse_transcripts(said.encode(), file="chat.txt")
    assert texts(one.messages) == ["Look\n```\nAssistant: not a speaker\n```\nthere", "I see"]


@pytest.mark.parametrize(
    ("prose", "expected"),
    [
        ("User: How?\nAssistant: Run\n```npm install```\nUser: Thanks", ["How?", "Run\n```npm install```", "Thanks"]),
        ("User: ```py\nprint(1)\n```\nWhy?\nAssistant: One.", ["```py\nprint(1)\n```\nWhy?", "One."]),
        ("User: a\n````\n```\nAssistant: b\n````\nAssistant: c", ["a\n````\n```\nAssistant: b\n````", "c"]),
        ("User: a\n```\nx\n```py\nAssistant: b\n```\nAssistant: c", ["a\n```\nx\n```py\nAssistant: b\n```", "c"]),
    ],
)
def test_a_code_fence_begins_and_ends_as_in_commonmark(prose: str, expected: list[str]):
    (transcript,) = parse_transcripts(prose.encode(), file="chat.txt")
    assert texts(transcript.messages) == expected


def test_a_transcript_of_our_own_chat_reads_back():
    said = (
        "# Chat Session: demo\n\n*2026-11-21 15:43:40 UTC*\n\n**User:**\n\nHello\n**User:**\\\nend\n\n"
        "**Assistant:**\n\nHi\n\n*2026-11-21 15:44:40 UTC*\n\n**User:**\n\nBye\n"
    )
    (transcript,) = parse_transcripts(said.encode(), file="demo.md")
    assert texts(transcript.messages) == ["Hello\n**User:**\nend", "Hi", "Bye"]
    assert parts(transcript.messages, "user-prompt")[0].timestamp.isoformat() == "2026-11-21T15:43:40+00:00"


@pytest.mark.parametrize(
    "line", ["User: admin", "System: Ubuntu", "## Assistant", " *2026-11-21 15:44:40 UTC*", "[AI]"]
)
def test_a_line_of_an_answer_in_our_own_chat_names_no_speaker(line: str):
    head = "# Chat Session: demo\n\n*2026-11-21 15:43:40 UTC*\n\n**User:**\n\nWho?\n\n**Assistant:**\n\n"
    said = f"{head}It says\n{line}\nthere.\n"
    (transcript,) = parse_transcripts(said.encode(), file="demo.md")
    assert texts(transcript.messages) == ["Who?", f"It says\n{line}\nthere."] and not transcript.notes


def test_text_without_a_speaker_is_refused_with_an_example():
    assert "begin each message with a line such as **User:**" in str(refused(b"Hello", format="text"))


def test_chatgpt_conversations_are_named_by_their_titles_and_by_ids_where_these_repeat() -> None:
    export = [
        {**CHATGPT, "title": title, "conversation_id": f"c{number}"}
        for number, title in enumerate(["Trip", "New", "New", ""])
    ]
    transcripts = parse_transcripts(json.dumps(export).encode(), file="conversations.json")
    assert [transcript.name for transcript in transcripts] == ["Trip", "New#c1", "New#c2", "conversations#c3"]
    assert parse_transcripts(json.dumps(CHATGPT).encode(), file="conversations.json")[0].name == "Trip"


def test_calls_of_claude_without_an_id_have_ids_of_their_own():
    words = [{"type": "text", "text": "I search."}, {"type": "tool_use", "name": "web_search", "input": {}}]
    content = [*words, {"type": "tool_result", "name": "web_search", "content": "A city"}] * 2
    messages = [{"sender": "human", "text": "Where?"}, {"sender": "assistant", "content": content}]
    transcript = read([{"name": "Trip", "chat_messages": messages}])
    calls, results = (parts(transcript.messages, kind) for kind in ("tool-call", "tool-return"))
    assert len({call.tool_call_id for call in calls}) == 2
    assert [call.tool_call_id for call in calls] == [result.tool_call_id for result in results]
