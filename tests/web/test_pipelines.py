"""Runs of pipelines in the inspector."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from starlette.testclient import TestClient

from context_compiler.pipeline import RunConfig, parse_dot, resume_pipeline, run_pipeline
from context_compiler.web.app import create_app
from tests.pipeline.resuming import half

LOCAL: Any = {"base_url": "http://127.0.0.1"}

GRAPH = """digraph plan {
    goal="Plan <b>the</b> garden"
    start [shape=Mdiamond]
    build [prompt="Build it", fidelity="full", thread_id="coding"]
    check [prompt="Check it", fidelity="compact"]
    done [shape=Msquare]
    start -> build -> check -> done
}"""


async def test_a_run_shows_its_graph_and_the_path_it_took(db: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs.db"
    await run_pipeline(parse_dot(GRAPH), RunConfig(runs=runs, simulate=True), run_id="first <i>")
    client = TestClient(create_app(db, system=None, runs=runs), base_url="http://127.0.0.1")
    [run] = client.get("/api/pipelines").json()["runs"]
    assert run["run_id"] == "first <i>" and run["status"] == "success"
    hops = client.get("/api/pipeline", params={"run": "first <i>"}).json()["hops"]
    assert [hop["node"] for hop in hops] == ["start", "build", "check", "done"]
    assert (hops[1]["fidelity"], hops[1]["thread"]) == ("full", "coding")
    page = client.get("/pipeline", params={"run": "first <i>"}).text
    assert "&lt;b&gt;the&lt;/b&gt;" in page and "coding" in page
    for number, node in enumerate(("start", "build", "check", "done"), 1):
        assert f'<a class="stage ran-success" href="#hop{number}">' in page and f'<tr id="hop{number}">' in page
        assert html.escape(urlencode({"name": f"first <i>/{node}"})) in page
    assert "<style>" not in page and "style=" not in page
    assert client.get("/pipeline?run=none").status_code == 404


async def test_a_visit_that_was_interrupted_and_done_again_is_not_shown_as_two_successes(
    db: Path, tmp_path: Path
) -> None:
    runs, client = tmp_path / "runs.db", TestClient(create_app(db, system=None, runs=tmp_path / "runs.db"), **LOCAL)

    def path() -> list[tuple[str, str]]:
        hops = client.get("/api/pipeline", params={"run": "r"}).json()["hops"]
        return [(hop["node"], hop["status"]) for hop in hops]

    await half(GRAPH, runs, "build", simulate=True)
    assert path() == [("start", "success"), ("build", "interrupted")]
    await resume_pipeline("r", RunConfig(runs=runs, simulate=True))
    assert path() == [
        *(
            ("start", "success"),
            ("build", "interrupted"),
            ("build", "success"),
            ("check", "success"),
            ("done", "success"),
        )
    ]
    assert ">interrupted</span>" in client.get("/pipeline", params={"run": "r"}).text


async def test_a_visit_that_failed_has_its_reason(db: Path, tmp_path: Path) -> None:
    text = GRAPH.replace('check [prompt="Check it"', 'check [shape=parallelogram, tool_command="exit 3"')
    await run_pipeline(text, RunConfig(runs=tmp_path / "runs.db", simulate=True), run_id="r")
    client = TestClient(create_app(db, system=None, runs=tmp_path / "runs.db"), **LOCAL)
    last = client.get("/api/pipeline", params={"run": "r"}).json()["hops"][-1]
    assert (last["node"], last["status"], last["failure"]) == ("check", "fail", "exit code 3")


def test_without_runs_the_page_shows_how_to_start_one_and_creates_no_store(db: Path, tmp_path: Path) -> None:
    runs = tmp_path / "none" / "runs.db"
    client = TestClient(create_app(db, system=None, runs=runs), base_url="http://127.0.0.1")
    assert "pipeline run FILE" in client.get("/pipelines").text
    assert client.get("/pipeline?run=x").status_code == 404 and not runs.parent.exists()
