"""A room for every test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chat.support import Room


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)
