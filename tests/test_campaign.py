"""The campaign: a short one finds nothing, and a fault that is there is found, named and shown again."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse

from benchmarks.campaign.case import Case, run_case
from benchmarks.campaign.conversations import converse
from benchmarks.campaign.runner import PARTS, Report
from benchmarks.campaign.strict import refusals
from context_compiler.cli.screen import Screen
from context_compiler.compiler.policy import Plan
from tests.support.builders import answer, assistant, call, exchange, user
from tests.support.warm import python

ROOT = Path(__file__).parents[1]


def test_a_short_campaign_finds_nothing() -> None:
    command = [python(), "-m", "benchmarks.campaign", "--seed", "5", "--jobs", "1", "--cases", "1"]
    done = subprocess.run([*command, "--minutes", "0.2"], cwd=ROOT, capture_output=True, text=True, timeout=600)
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[-1]) == (0, "faults: 0"), done.stdout[-4_000:] + done.stderr[-2_000:]
    assert lines[0] == "seed 5"
    for part in ("fuzz", "hostile", "counts"):
        assert f"{part}: requests over budget: 0" in lines
    assert "processes: requests unrecorded: 0" in lines
    assert {line.partition(":")[0] for line in lines[2:-1]} == set(PARTS)


def test_a_pin_is_searched_in_the_form_of_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """The application goes on with another branch than the one in which it pinned a message."""
    assert run_case(PARTS["counts"].run, "counts", 2026, 22, 5 / 60).faults == []

    def nothing(*_: object) -> frozenset[int]:
        return frozenset()

    monkeypatch.setattr(Plan, "pinned", nothing)
    faults = run_case(PARTS["counts"].run, "counts", 2026, 22, 5 / 60).faults
    assert faults and all("pins that are gone" in fault.text for fault in faults)


@pytest.mark.parametrize(
    ("history", "why"),
    [
        ([], "begins or ends"),
        ([user("a"), assistant("b")], "begins or ends"),
        ([user("a"), user("b")], "in a row"),
        ([user("a"), ModelResponse(parts=[]), user("b")], "empty"),
        ([user("a"), assistant(" "), user("b")], "blank"),
        ([user("a"), assistant(call("look", "1")), user("b")], "answers []"),
        ([user("a"), assistant("b"), user("c", answer("1"))], "answers ['1']"),
        ([user("a"), assistant(call("look", "1"), call("look", "1")), ModelRequest(parts=[answer("1")])], "twice"),
    ],
)
def test_requests_that_providers_refuse_are_detected(history: list[ModelMessage], why: str) -> None:
    assert why in " ".join(refusals(history))


def test_a_whole_history_is_accepted() -> None:
    assert not list(refusals([user("a"), *exchange(1), assistant("b"), user("c")]))


def test_a_case_draws_the_same_again() -> None:
    first, second = (run_case(converse, "fuzz", 3, 5) for _ in range(2))
    assert first.figures == second.figures and first.figures["requests"] > 0


def test_a_fault_names_the_command_that_reproduces_it(capsys: pytest.CaptureFixture[str]) -> None:
    def work(case: Case) -> None:
        case.check(case.random.random() > 2, "requests over budget", "9 tokens")
        raise ValueError("no")

    report = Report()
    report.add("fuzz", run_case(work, "fuzz", 7, 12))
    assert report.show(Screen()) == 1
    said = capsys.readouterr().out
    assert "fuzz: requests over budget: 1\n" in said and "fuzz: exceptions: 1\n" in said
    assert "fault in fuzz: requests over budget: 9 tokens" in said and said.endswith("faults: 2\n")
    assert "python -m benchmarks.campaign --only fuzz --seed 7 --case 12" in said
