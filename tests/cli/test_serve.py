"""`serve` on a terminal, from its address to Ctrl-C."""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

if sys.platform == "win32":
    pytest.skip("Windows has no pseudo-terminals that a test could type into", allow_module_level=True)

from tests.cli.terminal import terminal


def test_ctrl_c_ends_the_server_without_a_message(tmp_path: Path) -> None:
    with terminal(tmp_path, "serve", "--chat", "--db", "context.db", "--model", "scripted") as screen:
        address = screen.wait_for("/\n").strip()
        with urlopen(f"{address}chat", timeout=60) as page:  # it waits until the pages are served
            assert page.status == 200
        with urlopen(f"{address}sessions", timeout=60) as page:
            assert page.status == 200, "nothing is recorded yet, which is no error"
        screen.interrupt()
        assert screen.ended() == 0
    assert screen.text.partition(address)[2].replace("^C", "").strip() == ""


def test_a_chat_without_a_key_says_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "CONTEXT_COMPILER_CHAT_MODEL"):
        monkeypatch.delenv(name, raising=False)
    with terminal(
        tmp_path, "serve", "--chat", "--db", "context.db", "--model", "anthropic:claude-sonnet-5-5"
    ) as screen:
        address = screen.wait_for("/\n").strip()
        with pytest.raises(HTTPError) as refused, urlopen(f"{address}chat", timeout=60):
            pass
        page = refused.value.read().decode()
        screen.interrupt()
    assert "set the environment variable ANTHROPIC_API_KEY, and start the server again; or start it with" in page
    assert "`context-compiler serve --chat --model scripted`, which needs no key" in page
