"""The pytest plugin: the fixture `contexts`, and HTML files and JUnit properties of failures.

Nothing but this file is loaded before a test asks for the fixture.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from context_compiler import testing


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the plugin."""
    group = parser.getgroup("contexts", "contexts of agents")
    group.addoption(
        "--contexts-html",
        metavar="DIR",
        help="Write an HTML file for each failure of a context into this folder; default: beside --junit-xml.",
    )
    group.addoption("--contexts-update", action="store_true", help="Write snapshots instead of comparing with them.")


@pytest.fixture
def contexts(request: pytest.FixtureRequest) -> testing.Contexts:
    """Run agents, and assert what reaches their models."""
    update = bool(request.config.getoption("--contexts-update"))
    return testing.Contexts(request.path, str(request.node.name), update=update)


@pytest.hookimpl(hookwrapper=True)  # which any version of pytest knows
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None]:
    """Add properties and an HTML file to the report of a failed assertion about a context."""
    failure = call.excinfo.value if call.excinfo is not None else None
    if type(failure).__module__.startswith(testing.__name__) and isinstance(failure, testing.ContextFailure):
        item.user_properties += testing.junit_properties(failure)
        folder = _folder(item.config)
        if folder is not None:
            name = re.sub(r"[^\w.-]+", "-", item.nodeid)
            item.user_properties.append(("context_html", str(testing.write_html(failure, folder / f"{name}.html"))))
    yield


def _folder(config: pytest.Config) -> Path | None:
    if folder := config.getoption("--contexts-html"):
        return Path(folder)
    xml = getattr(config.option, "xmlpath", None)
    return Path(xml).parent / "contexts" if xml else None
