"""A reader follows one request through few files, whose imports form layers."""

from __future__ import annotations

import pytest

from tests.support import walks

WALKS = {"a raw request": 35, "a request with a summary": 65, "a pipeline of one stage": 64}


@pytest.mark.parametrize(("name", "files"), WALKS.items())
async def test_a_request_runs_through_few_files(name: str, files: int) -> None:
    measured = {"middleware/metrics.py", "tokens/prices.py"}  # if a test has set a provider of metrics before
    older = {"middleware/overflow.py"}  # hosts that cannot try a request again by themselves
    entered = set(await walks.walk(walks.WALKS[name])) - measured - older
    assert 20 < len(entered) <= files, entered


def test_the_packages_form_layers_without_cycles() -> None:
    figures = walks.structure()
    assert figures["in import cycles"] == 0
    assert 0 < figures["levels"] < figures["packages and top-level modules"] < figures["imports between them"]
