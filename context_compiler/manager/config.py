"""What a manager is told once: how much a session may hold, and when it is summarised, checkpointed and rolled back."""

from __future__ import annotations

from dataclasses import dataclass, fields

from context_compiler.errors import SettingsError
from context_compiler.settings import MOST

FLAGS = ("auto_summarize", "auto_checkpoint", "auto_rollback", "coherence")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextConfig:
    """The settings of a manager; every value is checked, none is bent into shape.

    Raises:
        SettingsError: a value is wrong; it is a ValueError, and says what is allowed.
    """

    max_tokens: int = 8192
    """Tokens that what is sent may have."""
    summarize_at_ratio: float = 0.8
    """At this share of `max_tokens`, and above, older turns are summarised."""
    quality_threshold: float = 0.6
    """Below this score a session is degraded."""
    checkpoint_interval: int = 10
    """Turns between two automatic checkpoints."""
    grounding_memories: int = 5
    """Memories that a turn is grounded in, at most; 0 grounds in none."""
    recent_turns_to_keep: int = 3
    """Turns that stay verbatim when older ones are summarised, the open one among them."""
    auto_summarize: bool = True
    auto_checkpoint: bool = True
    """Has no effect on a manager without versioning."""
    auto_rollback: bool = False
    """Roll back when the score falls below the threshold; without it, the score is only told."""
    coherence: bool = False
    """Let the model rate each answer; costs one more call a turn."""
    timeout: float = 60.0
    """Seconds that one summary or rating may take."""

    def __post_init__(self) -> None:
        for name in ("max_tokens", "checkpoint_interval", "recent_turns_to_keep"):
            self._whole(name, 1)
        self._whole("grounding_memories", 0)
        self._number("quality_threshold", "from 0 to 1", 0 <= self._real("quality_threshold") <= 1)
        self._number("summarize_at_ratio", "a share above 0, at most 1", 0 < self._real("summarize_at_ratio") <= 1)
        self._number("timeout", "seconds above 0", 0 < self._real("timeout") < float("inf"))
        for name in FLAGS:
            self._number(name, "True or False", isinstance(getattr(self, name), bool))
        if self.summarization_threshold < 1:
            self._number("summarize_at_ratio", f"a share of which {self.max_tokens} tokens leave at least one", False)

    @property
    def summarization_threshold(self) -> int:
        """The tokens at which a session is summarised."""
        return int(self.max_tokens * self.summarize_at_ratio)

    def _whole(self, name: str, least: int) -> None:
        value: object = getattr(self, name)
        fits = isinstance(value, int) and not isinstance(value, bool) and least <= value <= MOST
        self._number(name, f"a whole number from {least}", fits)

    def _real(self, name: str) -> float:
        value: object = getattr(self, name)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MOST:
            return float(value)
        return float("nan")

    def _number(self, name: str, allowed: str, fits: bool) -> None:
        if not fits:
            raise SettingsError(f"ContextConfig {name}={getattr(self, name)!r:.80}: give {allowed}")


def check_config(config: ContextConfig | None) -> ContextConfig:
    """The settings as given, or the defaults.

    Raises:
        SettingsError: it is something else; the message names the fields that there are.
    """
    if config is not None and not isinstance(config, ContextConfig):  # pyright: ignore[reportUnnecessaryIsInstance]
        names = ", ".join(field.name for field in fields(ContextConfig))
        raise SettingsError(f"config={config!r}: give a ContextConfig, whose fields are {names}")
    return config or ContextConfig()


def check_input(where: str, text: object) -> str:
    """What somebody said, as it is.

    Raises:
        SettingsError: there is nothing in it.
    """
    if not isinstance(text, str) or not text.strip():
        raise SettingsError(f"{where}: the input is empty; give what the user said, as text")
    return text
