"""A message in a shape, for tests."""

from __future__ import annotations

from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
)

from context_compiler.messages.history import Reader
from context_compiler.messages.items import read_part
from context_compiler.messages.shapes import Shape, apply_shape
from tests.support.builders import prose
from tests.support.views import counter

LONG = prose(1, 900)


def cut(message: ModelMessage, **shape: Any) -> Any:
    return apply_shape(message, Reader(counter).one(message), Shape(**shape), counter)


def part(message: ModelMessage, **shape: Any) -> Any:
    """The only part that a shape leaves of a message."""
    (left,) = cut(message, **shape).parts
    return left


def cost(piece: Any) -> int:
    return read_part(piece, counter).tokens
