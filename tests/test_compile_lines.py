"""What a compile is told of a conversation: the last results whole, and every line, however long."""

from __future__ import annotations

from random import Random

import pytest
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart

from context_compiler.compiler.summary import chunks, tool_results, turn_lines
from context_compiler.messages.history import History, Reader
from context_compiler.tokens import TokenCounter


def worked(results: int) -> History:
    """A conversation with so many tool results of two lines each."""
    messages: list[ModelMessage] = []
    for number in range(results):
        messages.append(ModelResponse(parts=[ToolCallPart("look", {"at": number}, f"c{number}")]))
        messages.append(ModelRequest(parts=[ToolReturnPart("look", f"first {number}\nsecond {number}", f"c{number}")]))
    return Reader(TokenCounter()).read(messages)


@pytest.mark.parametrize("results", range(6))
@pytest.mark.parametrize("wanted", [0, 1, 2, 3, 5, None])
def test_the_last_tool_results_are_shown_in_full_even_if_there_are_fewer(results: int, wanted: int | None) -> None:
    history = worked(results)
    every = range(len(history))
    whole = list(range(results)) if wanted is None else list(range(results))[max(0, results - wanted) :]
    said = [line for line in turn_lines(history, every, wanted) if line.startswith("[tool]")]
    assert [number for number, line in enumerate(said) if f"second {number}" in line] == whole
    assert tool_results(history, every, wanted).count("second") == len(whole)


def test_a_huge_line_is_split_without_loss_in_one_pass() -> None:
    random = Random(1)
    line = " ".join(f"src/file_{random.random()}.py" for _ in range(60_000))
    read: list[int] = []

    def count(text: str) -> int:
        read.append(len(text))
        return len(text)

    told = chunks([line], 16_000, TokenCounter(count))
    (shown,) = told
    assert shown.startswith(line[:1_000]) and shown.endswith(line[-1_000:]) and "left out here" in shown
    assert len(shown) <= 4_000
    assert sum(read) <= 10 * len(line)
