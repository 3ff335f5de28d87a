"""Turns that wait for a compile: conversations run turn by turn, with and without `background=True`.

    python -m benchmarks.waiting [--data locomo] [--budget 4000] [--compile 2] [--answer 2] [--pause 10] [--jobs 2]

The clock is virtual, so figures are the same on every machine: an answer takes `--answer` seconds, a compile
`--compile`, and a user pauses `--pause` seconds before the next prompt; computing takes no time. `waits`: share of user
turns in which a request waited for a compile; `waited`: total seconds; `longest`: most seconds in one turn; `held`:
evidence in the request that answers a question (`benchmarks.lived`), in per cent, or – if no questions are asked.
"""

from __future__ import annotations

import argparse
import asyncio
import selectors
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from benchmarks.data import GENERATED, Data, at_hand
from benchmarks.lived import conversations, evidence, life_of, script_of, shown, turns_of
from benchmarks.recall import Conversation
from benchmarks.tables import markdown
from context_compiler import ContextCompiler
from context_compiler.middleware import request

SETS = {"locomo": 4_000, "beam-100k": 16_000, "tau": 2_000, "pi": 16_000}
NOTES = "- **Goal**: go on with what was asked.\n" + "- **Done**: another part of the work, as agreed.\n" * 20


class VirtualClock(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while every task waits."""

    def __init__(self) -> None:
        self.passed = 0.0
        super().__init__(_Selector(self))

    def time(self) -> float:
        """Return virtual seconds since the loop was created."""
        return self.passed


class _Selector(selectors.SelectSelector):
    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(None if timeout is None else 0)
        if not ready and timeout:
            self._clock.passed += timeout
        return ready


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds for an answer, a compile, and a user's pause."""

    answer: float = 2.0
    compile: float = 2.0
    pause: float = 10.0


@dataclass(slots=True, kw_only=True)
class Waited:
    """Figures of the turns of conversations."""

    turns: list[float] = field(default_factory=list[float])
    """Seconds that each turn waited for a compile."""
    held: list[float] = field(default_factory=list[float])
    compiles: int = 0
    over: int = 0

    def add(self, other: Waited) -> None:
        """Add the turns of other conversations."""
        self.turns += other.turns
        self.held += other.held
        self.compiles, self.over = self.compiles + other.compiles, self.over + other.over

    @property
    def row(self) -> tuple[str, ...]:
        """The figures formatted for a table."""
        late = [seconds for seconds in self.turns if seconds > 0]
        return (
            f"{len(self.turns):,}",
            f"{self.compiles:,}",
            f"{len(late) / len(self.turns):.1%}" if self.turns else "–",
            f"{sum(late):,.0f} s",
            f"{max(late, default=0):.0f} s",
            f"{100 * fmean(self.held):.1f}" if self.held else "–",
            str(self.over),
        )


async def live(conversation: Conversation, budget: int, times: Times, **given: Any) -> Waited:
    """Run one conversation; `given` are arguments of `ContextCompiler`."""
    done, over = Waited(), list[bool]()

    async def write(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        done.compiles += 1
        await asyncio.sleep(times.compile)
        return ModelResponse(parts=[TextPart(NOTES)])

    async with ContextCompiler(
        budget=budget,
        model=FunctionModel(write),
        record="off",
        system=None,
        on_view=lambda view: over.append(view.tokens > budget),
        **given,
    ) as compiler:
        life = life_of(conversation, compiler, answer_s=times.answer)
        loop = asyncio.get_running_loop()
        for number, turn in enumerate(turns_of(conversation)[1], 1):
            begun = loop.time()
            requests = await life.turn(turn.prompt, script_of(turn, "plain", number))
            done.turns.append(round(loop.time() - begun - times.answer * len(requests), 6))
            if turn.question is not None:
                done.held.append(evidence(conversation, turn.question, shown(requests[-1], turn.question.text)))
            await asyncio.sleep(times.pause)
    done.over = sum(over)
    return done


def measure(conversation: Conversation, budget: int, times: Times, given: dict[str, Any]) -> Waited:
    """Run one conversation on a new virtual clock."""
    before, request.LONG = request.LONG, 1 << 60  # use no threads, because virtual time does not wait for them
    try:
        with asyncio.Runner(loop_factory=VirtualClock) as runner:
            return runner.run(live(conversation, budget, times, **given))
    finally:
        request.LONG = before


def table(data: Data, sets: dict[str, int], times: Sequence[Times], jobs: int = 1, most: int | None = None) -> str:
    """Build the table, one row per set, mode and compile time."""
    rows: list[tuple[str, ...]] = []
    with ProcessPoolExecutor(jobs) as pool:
        for name, budget in sets.items():
            found = conversations(data, name, budget)[:most]
            for one in times:
                for background in (False, True):
                    waited, given = Waited(), {"background": background}
                    some = pool.map(measure, found, *zip(*[(budget, one, given)] * len(found), strict=True))
                    for each in some:
                        waited.add(each)
                    way = "`background=True`" if background else "without"
                    rows.append((f"{name}, {budget:,}", f"{one.compile:g} s", way, *waited.row))
    return markdown(
        ("", "a compile takes", "", "turns", "compiles", "waits", "waited", "longest", "held", "over budget"), rows
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", choices=sorted(SETS), help="default: all")
    parser.add_argument("--budget", type=int)
    for name in ("answer", "compile", "pause"):
        parser.add_argument(f"--{name}", type=float, help="seconds")
    parser.add_argument("--most", type=int, help="maximum number of conversations of a set")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    data = at_hand(False, 1)
    sets = {name: given.budget or budget for name, budget in SETS.items() if given.data in (None, name)}
    if data.folder is None:
        sets = {GENERATED: given.budget or 600}
    named = {name: value for name in ("answer", "compile", "pause") if (value := getattr(given, name)) is not None}
    times = [Times(**named)] if "compile" in named else [Times(**named), Times(compile=15, **named)]
    print(table(data, sets, times, given.jobs, given.most))


if __name__ == "__main__":
    main()
