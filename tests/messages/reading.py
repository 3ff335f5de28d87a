"""Messages as a history, and what in it answers what."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic_ai.messages import ModelMessage

from context_compiler.messages.history import History, Reader
from context_compiler.messages.turns import Pairing, pair
from tests.support.views import counter


def read(messages: Sequence[ModelMessage]) -> History:
    return Reader(counter).read(messages)


def paired(*messages: ModelMessage) -> Pairing:
    return pair(read(messages))
