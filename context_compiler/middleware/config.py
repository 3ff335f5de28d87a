"""What a user said about how views are written, checked once and turned into `Options`."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeAlias, cast

from context_compiler.compiler.plan import Options
from context_compiler.compiler.summary_request import PROMPT_ROOM
from context_compiler.errors import SettingsError
from context_compiler.fidelity import Fidelity
from context_compiler.messages.failures import ReflectionPolicy
from context_compiler.settings import Count, Settings
from context_compiler.template import Template
from context_compiler.template.library import TemplateLibrary

Many: TypeAlias = Count

RECALL = 0.3
"""What recalled text may take, unless somebody says otherwise."""

CHOICES = {
    "tool_history": ("paired", "drop", "render"),
    "inject": ("user", "system", "compaction"),
    "record": ("full", "metadata", "off"),
}


def chosen(name: str, value: object) -> str:
    """One of the words that `name` allows, or SettingsError naming them."""
    if value not in CHOICES[name]:
        raise SettingsError(f"{name}={value!r}: use one of {', '.join(map(repr, CHOICES[name]))}")
    return cast(str, value)


def share(name: str, value: object) -> float:
    """A share from 0 to 1, or SettingsError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise SettingsError(f"{name}={value!r}: give a share from 0 (nothing) to 1")
    return float(value)


def how_many(name: str, value: object) -> Many | None:
    """A number of turns or results, `"all"`, or None for the template's own; SettingsError for anything else."""
    if value is None or value == "all":
        return cast(Many | None, value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SettingsError(f'{name}={value!r}: give a number from 0 up, or "all"')
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the user asked for about writing; None is the template's choice, then the settings'."""

    template: str | Template
    fidelity: Fidelity | None = None
    recent_turns: Many | None = None
    recent_tool_results: Many | None = None
    tool_history: str = "paired"
    inject: str = "user"
    every_turn: bool = False
    recall: float = RECALL
    reflections: ReflectionPolicy = ReflectionPolicy()

    def options(
        self,
        library: TemplateLibrary,
        settings: Settings,
        *,
        model: str,
        family: str,
        window: int | None,
        scope: str = "",
        refs: bool = False,
    ) -> Options:
        """Look the template up and settle everything that it, the settings and the user have a say in.

        Raises:
            TemplateError: the template is missing or wrong.
        """
        template = library.find(self.template)
        turns = _first(self.recent_turns, template.recent_turns, settings.context_compiler_recent_turns)
        results = _first(
            self.recent_tool_results, template.recent_tool_results, settings.context_compiler_recent_tool_results
        )
        fidelity = self.fidelity or template.fidelity or Fidelity.SUMMARY_MEDIUM
        facts = (
            template.name,
            template.source,
            str(fidelity),
            turns,
            self.tool_history,
            self.inject,
            self.recall,
            model,
            family,
            scope,
            refs,
        )
        return Options(
            template=template,
            extractive=template if template.compiler != "agent" else TemplateLibrary(system=None).find("extractive"),
            fidelity=fidelity,
            named=self.fidelity is not None,
            recent_turns=turns,
            recent_named=self.recent_turns is not None,
            recent_tool_results=results,
            reflections=self.reflections,
            tool_history=self.tool_history,
            inject=self.inject,
            model=model,
            every_turn=self.every_turn,
            recall=self.recall,
            prompt_room=int(window * 0.6) if window else PROMPT_ROOM,
            scope=scope,
            refs=refs,
            config=blake2b(repr(facts).encode(), digest_size=12).hexdigest(),
        )


def _first(*given: Many | None) -> int | None:
    """The first that is said; None stands for all."""
    value = next((one for one in given if one is not None), "all")
    return None if value == "all" else cast(int, value)
