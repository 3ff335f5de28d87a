"""A host without conversation stores is told which version has them."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from context_compiler import RecordConversationStore
from context_compiler.errors import SettingsError


@pytest.mark.skipif(find_spec("pydantic_ai.conversation_store") is not None, reason="this host has them")
def test_an_older_host_is_refused_with_the_required_version() -> None:
    with pytest.raises(SettingsError, match="Pydantic AI 2.68 or newer"):
        RecordConversationStore()
