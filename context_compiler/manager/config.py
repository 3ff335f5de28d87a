"""Settings of a manager: token limit, and when to summarize, checkpoint and roll back."""

from __future__ import annotations

from dataclasses import dataclass, fields

from context_compiler.errors import SettingsError
from context_compiler.settings import MOST

FLAGS = ("auto_summarize", "auto_checkpoint", "auto_rollback", "coherence")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextConfig:
    """Settings of a manager; every value is checked, none is adjusted.

    Raises:
        SettingsError: A value is wrong; it is a ValueError, and says what is allowed.
    """

    max_tokens: int = 8192
    """Token limit of what is sent."""
    summarize_at_ratio: float = 0.8
    """Share of `max_tokens` from which older turns are summarized."""
    quality_threshold: float = 0.6
    """Score below which a session is degraded."""
    checkpoint_interval: int = 10
    """Turns between automatic checkpoints."""
    grounding_memories: int = 5
    """Maximum number of memories in the grounding of a turn; 0 disables grounding."""
    recent_turns_to_keep: int = 3
    """Turns that stay verbatim when older ones are summarized, the open one included."""
    auto_summarize: bool = True
    auto_checkpoint: bool = True
    """Has no effect without versioning."""
    auto_rollback: bool = False
    """Roll back when the score falls below the threshold; otherwise the score is only reported."""
    coherence: bool = False
    """Let the model rate each answer; costs one more call a turn."""
    timeout: float = 60.0
    """Time limit of one summary, rating, or call of memory or repository, in seconds."""

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
        """Tokens from which a session is summarized."""
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
    """Return the settings, or the defaults.

    Raises:
        SettingsError: It is something else; the message lists the fields.
    """
    if config is not None and not isinstance(config, ContextConfig):  # pyright: ignore[reportUnnecessaryIsInstance]
        names = ", ".join(field.name for field in fields(ContextConfig))
        raise SettingsError(f"config={config!r}: give a ContextConfig, whose fields are {names}")
    return config or ContextConfig()


def check_input(where: str, text: object) -> str:
    """Return the text of a user.

    Raises:
        SettingsError: It is empty or not a text.
    """
    if not isinstance(text, str) or not text.strip():
        raise SettingsError(f"{where}: the input is empty; give the user's text")
    return text
