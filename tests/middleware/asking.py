"""A tool and a budget for agents that are asked after a history that is too long for it."""

from __future__ import annotations

BUDGET = 1_500
LOOK = [("look", {"path": "a"})]


def look(path: str) -> str:
    return f"{path} has many lines " * 20
