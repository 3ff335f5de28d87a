"""Pipelines with rounds of branches, which end alike if they are killed at any moment and resumed."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.campaign.case import Case
from context_compiler.pipeline import (
    CallbackInterviewer,
    Event,
    Outcome,
    Question,
    RunConfig,
    RunState,
    Stage,
    StageStatus,
    resume_pipeline,
    run_pipeline,
)
from tests.pipeline.resuming import told

POLICIES = ("wait_all", "all_success", "any_success", "ignore", "k_of_n", "quorum")
"""Policies whose outcome does not depend on which branch ends first."""


class Plan:
    """A random pipeline in DOT; its stages are made in order, so that edges lead on from the one made last."""

    def __init__(self, random: Random) -> None:
        self._random, self._stages = random, 0
        self._lines = list[str]()
        end = self._sequence("start", random.choice((1, 2, 4)), depth=2)
        self._lines.append(f"{end} -> done;")
        self.text = "\n".join(("digraph g {", "start [shape=Mdiamond]; done [shape=Msquare];", *self._lines, "}"))

    def _stage(self, attributes: str = "") -> str:
        self._stages += 1
        self._lines.append(f"s{self._stages} [{attributes}];")
        return f"s{self._stages}"

    def _after(self, before: str, attributes: str = "") -> str:
        stage = self._stage(attributes)
        self._lines.append(f"{before} -> {stage};")
        return stage

    def _sequence(self, before: str, length: int, depth: int) -> str:
        for _ in range(length):
            kinds = [self._box, self._box, self._asked, *([self._branches, self._rounds] * 2 if depth else [])]
            before = self._random.choice(kinds)(before, depth)
        return before

    def _box(self, before: str, depth: int) -> str:
        return self._after(before, self._random.choice(("", "max_retries=2", "fidelity=full, thread_id=t")))

    def _asked(self, before: str, depth: int) -> str:
        gate, one, other = self._after(before, "shape=hexagon"), self._stage(), self._stage()
        end = self._stage()
        self._lines += [f'{gate} -> {one} [label="[Y] yes"];', f'{gate} -> {other} [label="[N] no"];']
        self._lines += [f"{one} -> {end};", f"{other} -> {end};"]
        return end

    def _branches(self, before: str, depth: int) -> str:
        policy = (
            f"join_policy={self._random.choice(POLICIES)}, error_policy={self._random.choice(('continue', 'ignore'))}"
        )
        fork = self._after(before, f"shape=component, {policy}, max_parallel={self._random.choice((1, 2, 4))}")
        ends = [
            self._sequence(fork, self._random.choice((1, 1, 2)), depth - 1) for _ in range(self._random.choice((2, 3)))
        ]
        join = self._stage("shape=tripleoctagon")
        self._lines += [f"{end} -> {join};" for end in ends]
        return join

    def _rounds(self, before: str, depth: int) -> str:
        first = self._after(before)
        last = self._after(self._sequence(first, self._random.choice((1, 2)), depth - 1), "again=true")
        end = self._stage()
        self._lines += [
            f'{last} -> {first} [condition="outcome=fail"];',
            f'{last} -> {end} [condition="outcome!=fail"];',
        ]
        return end


class Life:
    """One process that works on a run; it can be continued from a copy of its folder."""

    def __init__(self, seed: str, folder: Path, kills: dict[int, Path], saved: set[str]) -> None:
        self.folder, self.kills = folder, kills
        self.events, self.repeated = list[str](), list[str]()
        self.before, self.saved, self.saved_at = saved, set(saved), dict[Path, set[str]]()
        self._seed, self._done = seed, dict[str | None, set[str]]()

    @property
    def config(self) -> RunConfig:
        """The configuration of the run in this process."""
        return RunConfig(
            logs_root=self.folder,
            handlers={"codergen": self._work},
            interviewer=CallbackInterviewer(self._answer),
            on_event=self._hear,
            sleep=_no_wait,
            resume_threads="restore",
            max_visits=8,
        )

    def _answer(self, question: Question) -> str:
        return Random(f"{self._seed} {question.stage}").choice(("Y", "N"))

    async def _work(self, stage: Stage) -> Outcome:
        name, visit = stage.node.name, stage.visit
        attempt = stage.context.get("internal.lineage.attempt")
        random = Random(f"{self._seed} {name} {visit} {attempt}")
        work = f"{name} {visit} {attempt} {stage.context.get('round', 0)}"
        self.repeated += {work} & self.before
        self._done.setdefault(name, set()).add(work)
        for _ in range(random.randrange(4)):
            await asyncio.sleep(0)
        stage.keep("out", work)
        updates = {f"seen.{name}": visit, **({"round": visit} if stage.node.text("again") else {})}
        again = bool(stage.node.text("again")) and visit < 3
        if again or random.random() < 0.03:
            return Outcome(status=StageStatus.FAIL, failure_reason="broken", context_updates=updates)
        if stage.node.whole("max_retries") and random.random() < 0.3:
            return Outcome(status=StageStatus.RETRY, context_updates=updates)
        return Outcome(context_updates=updates, notes=f"visit {visit}")

    def _hear(self, event: Event) -> None:
        self.events.append(event.kind)
        if event.branch and event.kind == "stage_completed":  # it is saved with its branch
            self._done.setdefault(event.branch, set()).update(self._done.pop(event.node, set()))
        saved = {"checkpoint_saved": event.node, "parallel_branch_completed": event.branch}.get(event.kind)
        self.saved |= self._done.pop(saved, set())
        if copy := self.kills.get(len(self.events)):
            shutil.copytree(self.folder, copy)
            self.saved_at[copy] = set(self.saved)


async def _no_wait(seconds: float) -> None:
    await asyncio.sleep(0)


def _moments(random: Random, events: list[str], folder: Path) -> dict[int, Path]:
    """Copies of the folder by the number of the event at which they are made, one of them between two branches."""
    numbers = range(1, len(events) + 1)
    between = [number for number in numbers if events[number - 1] == "parallel_branch_completed"]
    chosen = {*random.sample(numbers, min(2, len(numbers))), random.choice(between or numbers)}
    return {number: folder / f"k{number}" for number in sorted(chosen)}


def _ends(state: RunState) -> dict[str, Any]:
    end = told(state)
    return {key: value for key, value in end.items() if key != "run_id"}


def _differences(want: dict[str, Any], end: dict[str, Any]) -> Iterator[str]:
    for key in sorted(want.keys() | end.keys()):
        if want.get(key) != end.get(key):
            yield f"{key}: {want.get(key)!r} != {end.get(key)!r}"


async def killed(case: Case) -> None:
    """Check that a run ends alike wherever it is killed, and repeats nothing that was saved."""
    random, seed = case.random, f"{case.seed} {case.number}"
    plan = Plan(random)
    whole = Life(seed, case.folder / "whole", {}, set())
    want = _ends(await run_pipeline(plan.text, whole.config, run_id="r"))
    first = Life(seed, case.folder / "first", _moments(random, whole.events, case.folder), set())
    again = _ends(await run_pipeline(plan.text, first.config, run_id="r"))
    case.count("runs of pipelines")
    case.check(again == want, "ends of pipelines that differ", lambda: f"alone: {[*_differences(want, again)]}")
    for folder, saved in first.saved_at.items():
        life = Life(seed, folder, {}, saved)
        end = _ends(await resume_pipeline(folder, life.config))
        case.count("resumed pipelines")
        case.check(end == want, "ends of pipelines that differ", lambda: f"{folder.name}: {[*_differences(want, end)]}")  # noqa: B023
        case.check(not life.repeated, "saved work that is repeated", lambda: f"{folder.name}: {life.repeated[:3]}")  # noqa: B023
