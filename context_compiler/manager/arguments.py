"""What a manager is made of is checked when it is made, so that no turn stumbles over it."""

from __future__ import annotations

from typing import cast

from context_compiler.errors import SettingsError
from context_compiler.manager.config import ContextConfig
from context_compiler.manager.memory import MemorySystem
from context_compiler.manager.quality import Scorer
from context_compiler.template import Template


def refuse(
    *, memory: object, repo: object, scorer: object, template: object, on_error: object, config: ContextConfig
) -> None:
    """Refuse what is of no use, and what contradicts something else.

    Raises:
        SettingsError: the message says what, and what to give instead.
    """
    if not isinstance(memory, MemorySystem):
        raise SettingsError(f"memory={memory!r}: give a MemorySystem: search and remember")
    if scorer is not None and not isinstance(scorer, Scorer):
        raise SettingsError(f"scorer={scorer!r}: give something that calculates a score")
    if not isinstance(template, Template) and not (isinstance(template, str) and template.strip()):
        raise SettingsError(f"template={template!r}: give the name of a template, or a Template")
    if on_error is not None and not callable(on_error):
        raise SettingsError(f"on_error={on_error!r}: give a function of one error")
    if config.auto_rollback and repo is None:
        raise SettingsError("auto_rollback=True needs checkpoints: use ContextManager.with_versioning")


def text(name: str, given: object, *, empty: bool = False) -> str:
    """A text; only where `empty` says so may there be nothing in it.

    Raises:
        SettingsError: it is none.
    """
    if not isinstance(given, str) or not (empty or given.strip()):
        raise SettingsError(f"{name}={cast(object, given)!r:.80}: give a text{'' if empty else ' that is not empty'}")
    return given
