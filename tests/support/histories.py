"""Any history that Pydantic AI may hand over, whole or broken, as a hypothesis strategy; and plain ones by hand.

@given(histories())
def test_something(history): ...
"""

from __future__ import annotations

import warnings
from copy import deepcopy
from datetime import timedelta
from typing import Any, Literal

from hypothesis import strategies as st
from pydantic_ai.messages import (
    LoadCapabilityCallPart,
    LoadCapabilityReturnPart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    ToolAvailabilityDeltaPart,
    ToolCallPart,
    ToolSearchCallPart,
    ToolSearchReturnPart,
)
from pydantic_ai.usage import RequestUsage

from tests.support import parts
from tests.support.builders import (
    WHEN,
    Drawn,
    answer,
    answered_id,
    assert_pairs_whole,
    assistant,
    call,
    exchange,
    long_history,
    prose,
    snapshot,
    texts_of,
    tokens_of,
    user,
)
from tests.support.texts import texts

__all__ = [
    "answer",
    "answered_id",
    "assert_pairs_whole",
    "assistant",
    "call",
    "exchange",
    "histories",
    "long_history",
    "prose",
    "snapshot",
    "texts_of",
    "tokens_of",
    "user",
]

Ends = Literal["any", "prompt", "results"]


@st.composite
def histories(
    draw: st.DrawFn,
    *,
    min_turns: int = 1,
    max_turns: int = 4,
    max_steps: int = 3,
    broken: bool = True,
    wire: bool = False,
    future: bool = True,
    surrogates: bool = False,
    ends: Ends = "any",
) -> list[ModelMessage]:
    """A history of user turns with tool steps; it begins with a prompt and ends with a request.

    Args:
        draw: Given by hypothesis.
        min_turns: User turns at least, the last and open one among them.
        max_turns: User turns at most.
        max_steps: Tool steps of one turn at most.
        broken: With unanswered, late, repeated and orphaned results, ids used again, lost answers, and
            provider's own calls without their returns. False: every pair is whole.
        wire: Only what a provider takes: no blank prompts, parts from the future, files to download, ids used
            again, or results that come late.
        future: With parts of a kind that no host knows; a host's own models fail on these.
        surrogates: Also user texts that cannot be written as UTF-8.
        ends: With what the last request comes: a new prompt, the results of the last calls, or any of both.
    """
    writer = _Writer(draw, broken=broken, wire=wire, future=future and not wire, surrogates=surrogates)
    turns = draw(st.integers(min_turns, max_turns))
    for turn in range(turns):
        writer.begin(turn)
        steps = draw(st.integers(0, max_steps))
        if turn == turns - 1:
            final = steps or 1 if ends == "results" else steps * (ends != "prompt")
            for step in range(final):
                writer.step(whole=step == final - 1)
        else:
            for _ in range(steps):
                writer.step()
            writer.end()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # copying a `RetryPromptPart` warns, like making one
        return Drawn(deepcopy(writer.messages))


class _Writer:
    """Writes one history, message by message."""

    def __init__(self, draw: st.DrawFn, *, broken: bool, wire: bool, future: bool, surrogates: bool) -> None:
        self.messages: list[ModelMessage] = []
        self._draw, self._broken, self._surrogates = draw, broken, surrogates
        self._wire, self._future = wire, future
        self._stamped = draw(st.sampled_from(["all", "none", "some"]))
        self._reuse = broken and not wire and draw(st.booleans())
        self._ids = 0
        self._run: dict[str, Any] = {}
        self._late: list[ToolCallPart] = []
        self._spent: list[Any] = []

    def begin(self, turn: int) -> None:
        """The user's prompt, and what came late or twice before it."""
        stamped = self._stamped == "all" or (self._stamped == "some" and self._sometimes(2))
        self._run = {"run_id": f"run-{turn}", "conversation_id": "conversation"} if stamped else {}
        if self._reuse:
            self._ids = 0
        said: list[Any] = []
        if turn == 0 and self._sometimes(2):
            said += [
                SystemPromptPart(content=text, timestamp=WHEN)
                for text in self._draw(st.lists(texts(huge=False), min_size=1, max_size=2))
            ]
        if self._broken:
            said += self._strays()
        said.append(self._draw(parts.prompts(wire=self._wire, surrogates=self._surrogates)))
        if self._sometimes(3):
            said.insert(
                self._draw(st.integers(0, len(said))), self._draw(parts.control(wire=self._wire, future=self._future))
            )
        if len(said) > 1 and self._sometimes(4):
            self._request([said.pop(0)])
        self._request(said)

    def step(self, *, whole: bool = False) -> None:
        """A response with calls and the request that answers; `whole` leaves nothing open."""
        if self._sometimes(8):
            self._loaded()
            return
        calls = [self._call() for _ in range(self._draw(st.sampled_from([1, 1, 1, 2, 3])))]
        self._response([*self._opening(), *self._extra(), *calls, *self._native(whole)])
        returned: list[Any] = []
        for made in calls:
            fate = self._draw(st.sampled_from(["answered"] * 7 + ["lost", "late", "twice"]))
            if whole or not self._broken or fate in ("answered", "twice"):
                answers = self._answers(made)
                returned += answers
                self._spent += answers[:1]
                returned += answers[:1] if fate == "twice" and self._broken and not whole else []
            elif fate == "late" and not self._wire:
                self._late.append(made)
        if self._sometimes(8):
            returned.append(self._control())
        if returned:
            self._request(returned)

    def end(self) -> None:
        """What the assistant says last; when pairs may be broken, now and then nothing."""
        if self._broken and self._sometimes(6):
            return
        self._response([*self._opening(), *self._native(False), *self._extra(), self._draw(parts.final_text())])

    def _strays(self) -> list[Any]:
        """Results of earlier calls, of calls answered before, and of calls that nobody made."""
        results: list[Any] = []
        if self._late and self._sometimes(2):
            results += self._answers(self._late.pop(0))
        if self._spent and self._sometimes(5):
            results.append(self._draw(st.sampled_from(self._spent)))
        if self._sometimes(8):
            results.append(answer(f"orphan-{len(self.messages)}", "nobody asked"))
        return results

    def _opening(self) -> list[Any]:
        """Thinking and text before calls; either may be missing."""
        said = [self._draw(parts.thinking())] if self._sometimes(4) else []
        return said + ([self._draw(parts.final_text())] if self._sometimes(3) else [])

    def _extra(self) -> list[Any]:
        return [self._draw(parts.extras(wire=self._wire, future=self._future))] if self._sometimes(4) else []

    def _control(self) -> Any:
        return self._draw(parts.control(wire=self._wire, future=self._future))

    def _native(self, whole: bool) -> list[Any]:
        if not self._sometimes(6):
            return []
        pair = parts.native_pair(f"native-{len(self.messages)}", self._draw(texts(huge=False)))
        if self._broken and not whole and self._sometimes(4):
            del pair[self._draw(st.integers(0, 1))]
        return pair

    def _call(self) -> ToolCallPart:
        name = self._draw(st.sampled_from(["look", "search", "write"]))
        return ToolCallPart(tool_name=name, args=self._draw(parts.arguments()), tool_call_id=self._fresh_id())

    def _loaded(self) -> None:
        """A capability is loaded, or a tool is found: the host reads these exchanges again later."""
        ident = self._fresh_id()
        if self._sometimes(2):
            asked: Any = LoadCapabilityCallPart(args={"id": "maps"}, tool_call_id=ident)
            told: Any = LoadCapabilityReturnPart(content={"message": "loaded"}, tool_call_id=ident, timestamp=WHEN)
        else:
            asked = ToolSearchCallPart(args={"queries": ["maps"]}, tool_call_id=ident)
            discovered: Any = {"discovered_tools": [{"name": "maps_find"}]}
            told = ToolSearchReturnPart(content=discovered, tool_call_id=ident, timestamp=WHEN)
        self._response([asked])
        delta = ToolAvailabilityDeltaPart(tools_added=["maps_find"], tool_call_id=ident)
        self._request([told, delta] if self._sometimes(2) else [told])

    def _answers(self, made: ToolCallPart) -> list[Any]:
        return parts.answers_to(made, *self._draw(parts.outcomes(wire=self._wire)))

    def _fresh_id(self) -> str:
        self._ids += 1
        return f"call_{self._ids}"

    def _request(self, said: list[Any]) -> None:
        self.messages.append(ModelRequest(parts=said, timestamp=self._now(), **self._run))

    def _response(self, said: list[Any]) -> None:
        usage = RequestUsage(input_tokens=100 + len(self.messages), output_tokens=7)
        self.messages.append(
            ModelResponse(parts=said, timestamp=self._now(), usage=usage, model_name="fake", **self._run)
        )

    def _now(self) -> Any:
        return WHEN + timedelta(seconds=len(self.messages))

    def _sometimes(self, often: int) -> bool:
        """True once in about `often` times; hypothesis shrinks towards False."""
        return self._draw(st.integers(0, often - 1)) == often - 1
