"""The counts are taken from the raw files, by other means than those of the importers."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from pydantic_ai.messages import ModelMessage, ModelResponse

from context_compiler.messages.importers import read_transcripts
from tests.messages.importers.samples import parts, survives, the


def ids(messages: Iterable[ModelMessage], kind: str) -> list[str]:
    return [part.tool_call_id for part in parts(messages, kind)]


def runs(roles: Iterable[str], role: str) -> int:
    """How many unbroken runs of a role there are."""
    return sum(1 for key, _ in groupby(roles) if key == role)


def test_every_tau_bench_conversation_is_read(data_folder: Path):
    (path,) = the(data_folder, "tau_bench/airline.json")
    raw = [task["traj"] for task in json.loads(path.read_text())]
    transcripts = read_transcripts(path)
    assert len(transcripts) == len(raw) == 100
    assert {transcript.format for transcript in transcripts} == {"openai"} and not any(
        transcript.notes for transcript in transcripts
    )
    assert len({transcript.name for transcript in transcripts}) == 100
    for transcript, messages in zip(transcripts, raw, strict=True):
        roles = Counter(message["role"] for message in messages)
        leading = sum(
            a["role"] == "system" and b["role"] != "assistant" for a, b in zip(messages, messages[1:], strict=False)
        )
        requests = roles["user"] + roles["system"] + runs((m["role"] for m in messages), "tool") - leading
        assert len(transcript.messages) == requests + roles["assistant"]
        text = json.dumps(messages)
        called = re.findall(r'"id": "(call_\w+)"', text)
        assert ids(transcript.messages, "tool-call") == called
        assert ids(transcript.messages, "tool-return") == re.findall(r'"tool_call_id": "(call_\w+)"', text)
        assert len(called) == roles["tool"]
        survives(transcript.messages)


def test_the_coding_agent_session_is_read(data_folder: Path):
    (path,) = the(data_folder, "pi_sessions/*.jsonl")
    raw = path.read_text()
    roles = re.findall(r'^\{"type":"message".*?"message":\{"role":"(\w+)"', raw, re.MULTILINE)
    (transcript,) = read_transcripts(path)
    assert transcript.format == "pi"
    assert len(transcript.messages) == roles.count("user") + roles.count("assistant") + runs(roles, "toolResult")
    assert Counter(roles) == {"user": 88, "assistant": 453, "toolResult": 373}
    called, answered = ids(transcript.messages, "tool-call"), ids(transcript.messages, "tool-return")
    assert (len(called), len(answered)) == (391, 373) == (raw.count('"type":"toolCall"'), raw.count('"toolCallId":'))
    assert set(answered) < set(called)
    survives(transcript.messages)


def test_the_session_s_usage_is_what_its_provider_reported(data_folder: Path):
    (path,) = the(data_folder, "pi_sessions/*.jsonl")
    reported = Counter[str]()
    for key, number in re.findall(
        r'"(input|output|cacheRead|cacheWrite)":(\d+)[,}]', re.sub(r'"cost":\{[^}]*\}', "", path.read_text())
    ):
        reported[key] += int(number)
    (transcript,) = read_transcripts(path)
    usages = [message.usage for message in transcript.messages if isinstance(message, ModelResponse)]
    assert sum(usage.output_tokens for usage in usages) == reported["output"] > 0
    assert sum(usage.cache_read_tokens for usage in usages) == reported["cacheRead"] > 0
    cached = reported["cacheRead"] + reported["cacheWrite"]
    assert sum(usage.input_tokens for usage in usages) == reported["input"] + cached


def test_interrupted_responses_of_the_session_are_kept_and_noted(data_folder: Path):
    (path,) = the(data_folder, "pi_sessions/*.jsonl")
    raw = path.read_text()
    (transcript,) = read_transcripts(path)
    cut = [m for m in transcript.messages if isinstance(m, ModelResponse) and m.state == "interrupted"]
    assert len(cut) == raw.count('"stopReason":"aborted"') + raw.count('"stopReason":"error"') == 22
    assert any(note.startswith("response error, 'terminated' (at ") for note in transcript.notes)
    assert any("thinking_level_change" in note and "and 98 more" in note for note in transcript.notes)


def test_every_swe_agent_trajectory_is_read(data_folder: Path):
    for path in the(data_folder, "swe_agent/*.traj"):
        history = json.loads(path.read_text())["history"]
        roles = [message["role"] for message in history]
        (transcript,) = read_transcripts(path)
        assert transcript.format == "swe-agent"
        assert len(transcript.messages) == len(history) - roles.count("system")
        calls = [call["id"] for message in history for call in message.get("tool_calls", ())]
        assert ids(transcript.messages, "tool-call") == calls == ids(transcript.messages, "tool-return")
        said = [part.content for part in parts(transcript.messages, "text")]
        assert said == [message["content"] for message in history if message["role"] == "assistant"]
        assert all(part.tool_name != "unknown" for part in parts(transcript.messages, "tool-return"))
        survives(transcript.messages)
