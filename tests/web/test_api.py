"""The API against its OpenAPI document: whatever is asked, the answer is one that the document describes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from context_compiler.web.api import RESOURCES
from context_compiler.web.app import create_app

# Imported as a whole now, because an import beside other threads can fail on Python 3.11 ("AST constructor recursion").
schemathesis: Any = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
pytest.importorskip("schemathesis.specs.openapi.schemas")

LOOPBACK = {"host": "127.0.0.1"}


@pytest.fixture(scope="module")
def api(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    db = Path(shutil.copytree(recorded.parent, tmp_path_factory.mktemp("api") / "record")) / recorded.name
    app = create_app(db, system=None, runs=db.parent / "runs.db")
    return schemathesis.openapi.from_asgi("/api/openapi.json", app, headers=LOOPBACK)


@pytest.mark.parametrize("path", [f"/api{resource.path}" for resource in RESOURCES])
def test_every_answer_is_described(api: Any, path: str) -> None:
    @settings(
        max_examples=10,
        deadline=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=api[path]["GET"].as_strategy())
    def check(case: Any) -> None:
        case.call_and_validate(headers=LOOPBACK)

    check()


def test_every_resource_is_in_the_document(api: Any) -> None:
    assert {f"/api{one.path}" for one in RESOURCES} <= set(api.raw_schema["paths"])
