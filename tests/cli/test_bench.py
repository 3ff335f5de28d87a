"""A transcript lived through again: figures for three ways of sending it, printed, as JSON, and drawn."""

from __future__ import annotations

import builtins
import importlib
import json
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from context_compiler.paths import install_command
from tests.cli.conftest import DEMO, Command, Said, chat, message, one_line, written
from tests.support.warm import python

WAYS = ["everything", "the newest that fit", "context-compiler"]


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    """Eight turns of some 400 tokens each, all answered."""
    return written(tmp_path / "talk.json", chat(8, words=40)[:-1])


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """The first messages of the bundled session, with calls of tools."""
    return written(tmp_path / "work.json", json.loads(DEMO.read_text(encoding="utf-8"))[:16])


def test_every_request_of_the_transcript_is_sent_three_ways(cc: Command, talk: Path) -> None:
    said = cc("bench", talk, "--budget", 600, "--json")
    assert said.code == 0
    rows = {row["way"]: row for row in said.json["ways"]}
    assert list(rows) == WAYS
    assert [row["requests"] for row in rows.values()] == [8, 8, 8]
    assert rows["everything"]["over_budget"] > 0 == rows["context-compiler"]["over_budget"]
    assert rows["everything"]["cost"] == 1
    assert rows["everything"]["largest"] > 600 >= rows["context-compiler"]["largest"]
    assert rows["context-compiler"]["compiles"] > 0
    assert_progress(said)


def assert_progress(said: Said) -> None:
    """Progress is written as lines to standard error."""
    first, *measured = said.err.splitlines()
    assert first == "talk: replaying 8 requests in 3 ways, then with 6 settings"
    assert sorted(line.split(": 8 requests in ")[0] for line in measured[:3]) == sorted(WAYS)
    assert re.fullmatch(r"trying 6 settings, about [\d.]+ s", measured[3])
    tried = [line.split(": 8 requests in ")[0] for line in measured[4:]]
    assert tried == [f"budget {budget:,}, recall {recall}" for budget in (300, 600, 1_200) for recall in (0.15, 1.0)]
    assert "replaying" not in said.out


def test_the_figures_are_printed_before_other_settings_are_tried(talk: Path) -> None:
    """On one stream, as in a terminal or with `2>&1`."""
    command = [python(), "-m", "context_compiler", "bench", str(talk), "--budget", "600"]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    table, tries, verdict = map(run.stdout.index, ("replayed within a budget", "trying 6 settings", "use budget"))
    assert table < tries < verdict


def test_a_model_without_a_known_price_is_refused(cc: Command, talk: Path) -> None:
    said = cc("bench", talk, "--price", "nobody")
    assert said.code == 2 and "--price 'nobody': no price is known for this model" in one_line(said)
    assert cc("bench", talk, "--price", "openai:gpt-5", "--json").json["priced_as"] == "openai:gpt-5"


def test_a_transcript_that_fits_costs_the_same_every_way(cc: Command, talk: Path) -> None:
    rows = cc("bench", talk, "--budget", 1_000_000, "--json").json["ways"]
    assert [row["cost"] for row in rows] == [1, 1, 1]
    assert [row["over_budget"] for row in rows] == [0, 0, 0]
    assert rows[2]["compiles"] == 0


def test_the_verdict_is_the_cheapest_setting_tried_and_agrees_with_the_table(cc: Command, work: Path) -> None:
    report = cc("bench", work, "--budget", 2000, "--recall", 0.5, "--price", "openai:gpt-5", "--json").json
    verdict, rows = report["verdict"], {row["way"]: row for row in report["ways"]}
    everything, ours = (float(rows[way]["money"]) for way in (WAYS[0], WAYS[2]))
    assert verdict["everything"] == pytest.approx(everything) and verdict["cost"] <= ours * 1.001
    assert rows[WAYS[2]]["cost"] == pytest.approx(ours / everything)
    best = f"this costs ${verdict['cost']:.4f}, sending everything ${everything:.4f}"
    assert report["said"] == f"use budget {verdict['budget']:,}, recall 0.5: {best}"
    again = cc("bench", work, "--budget", verdict["budget"], "--recall", 0.5, "--price", "openai:gpt-5", "--json").json
    assert float(again["ways"][2]["money"]) == pytest.approx(verdict["cost"])


def test_the_verdict_on_a_recorded_session_is_that_of_its_transcript(cc: Command, tmp_path: Path) -> None:
    talk = written(tmp_path / "talk.json", chat(5, words=60))
    cc("compile", talk, "--budget", 700, "--session", "talk", "--db", "talk.db")
    recorded = cc("views", "verdict", "talk", "--db", "talk.db", "--json").json
    measured = cc("bench", talk, "--budget", 700, "--json").json
    now = recorded["verdict"].pop("now")
    assert recorded["verdict"].items() <= measured["verdict"].items() and now > recorded["verdict"]["cost"]
    cost, whole = (f"{measured['verdict'][name]:,.0f}" for name in ("cost", "everything"))
    this = f"this costs like {cost} uncached input tokens"
    assert measured["said"].endswith(f": {this}, sending everything like {whole}")
    assert recorded["said"].endswith(f": {this}, the present settings like {now:,.0f}, sending everything like {whole}")
    said = cc("views", "verdict", "talk", "--db", "talk.db").out
    assert said == f"{recorded['said']}\nOnly prices are compared: a smaller view leaves more out.\n"


def test_the_verdict_of_a_short_session_names_the_size_from_which_a_view_pays(cc: Command, tmp_path: Path) -> None:
    short = written(tmp_path / "short.json", chat(6, words=40)[:-1])
    said = cc("bench", short, "--budget", 4000)
    assert "sending everything costs the same here, like " in said.out and "a view pays from about " in said.out
    whole = cc("bench", short, "--budget", 4000, "--json").json
    assert (
        whole["verdict"]["pays_from"] >= whole["verdict"]["budget"] > 0
        and whole["verdict"]["cost"] >= whole["verdict"]["everything"]
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_text_is_plain_without_a_terminal_and_a_table_that_fits_in_one_and_the_picture_is_the_same(
    cc: Command, talk: Path, tmp_path: Path
) -> None:
    pictures = [tmp_path / "one.svg", tmp_path / "two.svg"]
    drawn = [("--plot", path) if find_spec("matplotlib") else () for path in pictures]
    said = cc("bench", talk, "--budget", 600, *drawn[0])
    assert said.code == 0 and "\x1b" not in said.out and all(way in said.out for way in WAYS)
    assert "replayed within a budget of 600" in said.out
    assert_progress(said)
    said = cc("bench", talk, "--budget", 600, *drawn[1], terminal=80)
    assert said.code == 0 and "\x1b[" in said.out
    assert all(len(line) <= 80 for line in said.plain.splitlines() if "context-compiler" in line)
    if any(drawn):
        one, two = (path.read_text() for path in pictures)
        assert one.startswith("<?xml") and "</svg>" in one and one == two


def test_a_transcript_without_answers_is_refused(cc: Command, tmp_path: Path) -> None:
    said = cc("bench", written(tmp_path / "asked.json", [message("user", "Hello?")]))
    assert said.code == 2
    assert "no request can be replayed" in one_line(said)


def test_a_missing_matplotlib_names_the_extra(
    cc: Command, talk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = importlib.import_module

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("matplotlib"):
            raise builtins.ImportError(name)
        return original(name, *rest)

    monkeypatch.setattr("context_compiler.cli.drawing.import_module", without)
    said = cc("bench", talk, "--budget", 600, "--plot", tmp_path / "one.svg")
    assert said.code == 2
    assert install_command("bench") in one_line(said)
    assert not (tmp_path / "one.svg").exists()


def test_recall_and_trigger_can_be_tried_out_and_a_window_breaks_pairs_where_a_view_does_not(
    cc: Command, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("context_compiler.middleware.verdict.SIZES", (1,))  # the verdict is not read here

    def replayed(*options: object, **env: str) -> list[Any]:
        rows = cc("bench", work, "--budget", 1500, *options, "--json", **env).json["ways"]
        return [{**row, "median_ms": None} for row in rows]

    def ours(*options: object, **env: str) -> Any:
        return replayed(*options, **env)[2]

    _, window, default = replayed()
    assert window["way"] == "the newest that fit" and window["broken"] > 0 == default["broken"]
    off = ours("--recall", 0)
    assert off["tokens"] != default["tokens"] and off == ours(CONTEXT_COMPILER_RECALL="0")
    assert ours("--trigger", 0.5)["compiles"] > default["compiles"]
