"""Typed access to the attributes of graphs, stages and edges; `3` and `"3"` are the same number.

Reading never raises. A value that cannot be converted counts as not set, and validation reports it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Generic, Self, TypeAlias, TypeVar, overload

T = TypeVar("T")

Value: TypeAlias = str | int | float | bool
"""An attribute value. A duration is text, such as `900s`."""

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
"""Seconds per unit of a duration."""

_DURATION = re.compile(r"(\d{1,15}(?:\.\d{1,20})?)\s*(ms|s|m|h|d)?")
_WHOLE = re.compile(r"[+-]?\d{1,15}")
_NUMBER = re.compile(r"[+-]?\d{0,15}(?:\d|\.\d{1,20})")

TRUE = frozenset({"true", "yes", "on", "1"})
FALSE = frozenset({"false", "no", "off", "0"})


def as_text(value: object) -> str:
    """Convert a value to text as in DOT; None becomes the empty string."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def as_flag(value: Value | None) -> bool | None:
    """Convert a value to a boolean, quoted or not; None if it is not one."""
    text = as_text(value).strip().lower()
    return True if text in TRUE else False if text in FALSE else None


def as_whole(value: Value | None) -> int | None:
    """Convert a value to a whole number, quoted or not; None if it is not one."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    text = as_text(value).strip()
    return int(text) if _WHOLE.fullmatch(text) else None


def as_number(value: Value | None) -> float | None:
    """Convert a value to a number, quoted or not; None if it is not one."""
    if isinstance(value, bool):
        return None
    text = as_text(value).strip()
    return float(text) if _NUMBER.fullmatch(text) else None


def as_seconds(value: Value | None) -> float | None:
    """Convert `900s`, `15m`, `250ms` or a bare number of seconds to seconds; None if it is not a duration."""
    if isinstance(value, bool):
        return None
    match = _DURATION.fullmatch(as_text(value).strip())
    return float(match[1]) * UNITS[match[2] or "s"] if match else None


READERS = MappingProxyType(
    {"text": as_text, "flag": as_flag, "whole": as_whole, "number": as_number, "duration": as_seconds}
)
"""Converters by attribute type."""

GRAPH_ATTRIBUTES = MappingProxyType(
    {
        **dict.fromkeys(("goal", "label", "model_stylesheet", "retry_target", "fallback_retry_target"), "text"),
        **dict.fromkeys(("default_fidelity", "default_thread_id", "stack.child_dotfile"), "text"),
        **dict.fromkeys(("stack.child_workdir", "tool_hooks.pre", "tool_hooks.post"), "text"),
        **dict.fromkeys(("llm_model", "llm_provider", "reasoning_effort"), "text"),
        "default_max_retries": "whole",
        "strict_failure_edges": "flag",
    }
)
"""Attributes of a graph and their types."""

NODE_ATTRIBUTES = MappingProxyType(
    {
        **dict.fromkeys(("label", "shape", "type", "prompt", "retry_target", "fallback_retry_target"), "text"),
        **dict.fromkeys(("fidelity", "thread_id", "class", "llm_model", "llm_provider", "reasoning_effort"), "text"),
        **dict.fromkeys(("tool_command", "context_helper", "human.default_choice", "join_policy"), "text"),
        **dict.fromkeys(("error_policy", "tool_hooks.pre", "tool_hooks.post", "stack.child_dotfile"), "text"),
        **dict.fromkeys(("stack.child_workdir", "manager.stop_condition", "manager.actions"), "text"),
        **dict.fromkeys(("retry_policy", "workdir"), "text"),
        **dict.fromkeys(("goal_gate", "auto_status", "allow_partial", "stack.child_autostart"), "flag"),
        **dict.fromkeys(("max_retries", "max_parallel", "k", "min_success", "quorum_count"), "whole"),
        **dict.fromkeys(("manager.max_cycles", "max_visits"), "whole"),
        **dict.fromkeys(("quorum_fraction", "quorum_ratio"), "number"),
        **dict.fromkeys(("timeout", "manager.poll_interval", "human.timeout"), "duration"),
    }
)
"""Attributes of a node and their types."""

EDGE_ATTRIBUTES = MappingProxyType(
    {
        **dict.fromkeys(("label", "condition", "fidelity", "thread_id"), "text"),
        "weight": "whole",
        "loop_restart": "flag",
    }
)
"""Attributes of an edge and their types."""

GRAPH_SPELLINGS = MappingProxyType(
    {
        "default_max_retries": ("default_max_retry",),
        "default_fidelity": ("context_fidelity_default",),
        "default_thread_id": ("thread_id", "default_thread", "context_thread_default"),
    }
)
"""Other spellings of graph attributes, of other engines; the first one that is set counts."""

NODE_SPELLINGS = MappingProxyType(
    {
        "type": ("node_type",),
        "prompt": ("llm_prompt",),
        "retry_policy": ("retry_preset",),
        "human.default_choice": ("human_default_choice",),
        "manager.poll_interval": ("manager_poll_interval",),
        "manager.max_cycles": ("manager_max_cycles",),
        "manager.stop_condition": ("manager_stop_condition",),
        "manager.actions": ("manager_actions",),
    }
)
"""Other spellings of node attributes."""

DRAWING = frozenset(
    "bgcolor center charset clusterrank color colorscheme comment compound concentrate constraint dir dpi edgetooltip "
    "fillcolor fixedsize fontcolor fontname fontsize gradientangle group headlabel headport height id image "
    "labelangle labeldistance labelfloat labelfontcolor labelfontname labelfontsize labeljust labelloc landscape "
    "layout len lhead ltail margin minlen newrank nodesep nojustify ordering orientation outputorder pad pencolor "
    "penwidth peripheries pos rank rankdir ranksep ratio regular rotate samehead sametail sep sides size splines "
    "style stylesheet taillabel tailport target tooltip truecolor URL href viewport width xlabel arrowhead arrowtail "
    "arrowsize decorate".split()
)
"""Attributes that only affect a drawing by Graphviz: accepted without a finding, and ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributed:
    """Base of graphs, stages and edges: reads attributes by type, under any of their spellings, and never raises."""

    attrs: Mapping[str, Value] = field(default_factory=dict[str, Value], hash=False)
    """Attributes as written; explicit values override defaults."""

    def spellings(self, name: str) -> tuple[str, ...]:
        """Other spellings of an attribute; subclasses define them."""
        return ()

    def raw(self, name: str) -> Value | None:
        """The value as written; None if it is not set or blank."""
        for spelling in (name, *self.spellings(name)):
            value = self.attrs.get(spelling)
            if value is not None and (not isinstance(value, str) or value.strip()):
                return value
        return None

    def text(self, name: str, default: str = "") -> str:
        """The value as text; `default` if it is not set."""
        value = self.raw(name)
        return default if value is None else as_text(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """The value as a boolean; `default` if it is not set or not a boolean."""
        value = as_flag(self.raw(name))
        return default if value is None else value

    def whole(self, name: str) -> int | None:
        """The value as a whole number; None if it is not set or not a whole number."""
        return as_whole(self.raw(name))

    def number(self, name: str) -> float | None:
        """The value as a number; None if it is not set or not a finite number."""
        return as_number(self.raw(name))

    def seconds(self, name: str) -> float | None:
        """The value in seconds; None if it is not set or not a duration."""
        return as_seconds(self.raw(name))


class Attribute(Generic[T]):
    """Member of a graph, stage or edge that reads the attribute of the same name, with a method of `Attributed`."""

    def __init__(self, read: Callable[[Attributed, str], T]) -> None:
        self.read = read
        self.name = ""

    def __set_name__(self, owner: type[object], name: str) -> None:
        self.name = name

    @overload
    def __get__(self, thing: None, owner: type[object]) -> Self: ...
    @overload
    def __get__(self, thing: Attributed, owner: type[object]) -> T: ...
    def __get__(self, thing: Attributed | None, owner: type[object]) -> Self | T:
        return self if thing is None else self.read(thing, self.name)
