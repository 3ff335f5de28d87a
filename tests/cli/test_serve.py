"""`serve` on a terminal, from its address to Ctrl-C."""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

if sys.platform == "win32":
    pytest.skip("Windows has no pseudo-terminals that a test could type into", allow_module_level=True)

from tests.cli.terminal import terminal


def test_ctrl_c_ends_the_server_without_a_message(tmp_path: Path) -> None:
    with terminal(tmp_path, "serve", "--db", "context.db", "--model", "scripted") as screen:
        address = screen.wait_for("/\n").strip()
        with urlopen(f"{address}chat", timeout=60) as page:  # it waits until the pages are served
            assert page.status == 200
        screen.interrupt()
        assert screen.ended() == 0
    assert screen.text.partition(address)[2].replace("^C", "").strip() == ""
