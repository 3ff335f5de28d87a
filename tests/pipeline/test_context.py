"""What stages leave for each other: values under dotted keys, and artifacts under references."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from context_compiler.errors import PipelineError
from context_compiler.pipeline import ArtifactStore, ContextStore, Outcome, Stage
from tests.pipeline.playing import graph, play


def test_context_takes_dotted_names_and_json() -> None:
    store = ContextStore({"a": 1})
    store.apply_updates({"b.c-d_e": [1, {"x": None}]})
    assert store.get("b.c-d_e") == [1, {"x": None}]
    assert (store.get_string("a"), store.get_string("none", "-")) == ("1", "-")
    for key in ("", ".", "a.", "a b", "1a", "a..b", "a" * 257):
        with pytest.raises(ValueError, match="not a key"):
            store.set(key, 1)
    for value in (object(), {1, 2}, float("inf"), b"x"):
        with pytest.raises(ValueError, match="cannot be stored"):
            store.set("k", value)


def test_updates_are_applied_completely_or_not_at_all() -> None:
    store = ContextStore()
    with pytest.raises(ValueError, match="not a key"):
        store.apply_updates({"good": 1, "not good": 2})
    assert store.values() == {}


def test_a_snapshot_and_a_clone_share_nothing() -> None:
    store = ContextStore({"deep": {"list": [1]}}, logs=[{"x": [1]}])
    clone, snapshot = store.clone_isolated(), store.snapshot()
    inner = clone.get("deep")
    inner["list"].append(2)
    clone.set("deep", inner)
    clone.append_log("more")
    snapshot["values"]["deep"]["list"].append(3)
    assert store.snapshot() == {"values": {"deep": {"list": [1]}}, "logs": [{"x": [1]}]}
    assert json.loads(json.dumps(store.snapshot())) == store.snapshot()
    value = {"list": [1]}
    store.set("given", value)
    value["list"].append(2)
    assert store.get("given") == {"list": [1]}


def test_artifact_threshold(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path, threshold=10)
    exact, above = "x" * 8, "x" * 9
    assert not store.store("at", "At", exact).is_file_backed
    info = store.store("above", "Above", above)
    assert info.is_file_backed and info.reference == "artifact://above" and info.size_bytes == 11
    assert (tmp_path / "artifacts" / "above.json").is_file()
    assert store.retrieve("artifact://above") == store.retrieve("above") == above
    assert ArtifactStore(tmp_path).retrieve("above") == above
    store.store("above", "Above", "s")
    assert not (tmp_path / "artifacts" / "above.json").exists() and store.retrieve("above") == "s"
    assert not ArtifactStore(threshold=10).store("big", "Big", "x" * 1_000).is_file_backed
    assert not ArtifactStore(tmp_path).store("usual", "Usual", "x" * (100 * 1024 - 2)).is_file_backed
    assert ArtifactStore(tmp_path).store("usual", "Usual", "x" * (100 * 1024 - 1)).is_file_backed


def test_artifacts_are_listed_and_removed_and_refuse_bad_names(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path, threshold=1)
    store.store("b", "B", [1])
    store.store("a", "A", [2])
    assert [info.id for info in store.list()] == ["a", "b"] and store.has("artifact://a")
    store.remove("a")
    assert not store.has("a") and not (tmp_path / "artifacts" / "a.json").exists()
    store.clear()
    assert store.list() == []
    for id in ("", "../x", "a/b", "..", "a b"):
        with pytest.raises(PipelineError):
            store.store(id, "name", 1)
    with pytest.raises(PipelineError, match="name"):
        store.store("a", " ", 1)
    for reference in ("gone", "artifact://gone", "file://gone"):
        with pytest.raises(PipelineError):
            store.retrieve(reference)


async def test_stages_with_similar_names_have_separate_artifacts() -> None:
    def keep(stage: Stage) -> Outcome:
        return Outcome(context_updates={f"k{len(stage.context.logs())}": stage.keep("said", stage.node.name)})

    names = ["计划", "实现", "a b", "a_b", "a.1", "a"]
    ways = "->".join(f'"{name}"' for name in names)
    text = graph("; ".join(f'"{name}"' for name in names) + f"; start->{ways}->done")
    result, _ = await play(text, {name: [keep] for name in names})
    references = [value for key, value in result.context.items() if key.startswith("k")]
    kept = {f"artifact://{id}": artifact["data"] for id, artifact in result.state.artifacts.items()}
    assert [kept[reference] for reference in references] == names
    assert "artifact://a_b.1.said" in references and "artifact://a.1.said" in references
