"""Settings of a manager: the token limit, and when to summarize, checkpoint and roll back."""

from __future__ import annotations

from dataclasses import dataclass, fields

from context_compiler.errors import SettingsError
from context_compiler.settings import MAX_TOKENS

FLAGS = ("auto_summarize", "auto_checkpoint", "auto_rollback", "coherence")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextConfig:
    """Settings of a manager. Every value is validated; none is silently adjusted.

    Raises:
        SettingsError: A value is invalid; the error is a ValueError whose message gives the allowed values.
    """

    max_tokens: int = 8192
    """Maximum tokens of the messages sent."""
    summarize_at_ratio: float = 0.8
    """Fraction of `max_tokens` at which older turns are summarized."""
    quality_threshold: float = 0.6
    """Score below which a session counts as degraded."""
    checkpoint_interval: int = 10
    """Turns between automatic checkpoints."""
    grounding_memories: int = 5
    """Maximum memories in the grounding of a turn; 0 disables grounding."""
    recent_turns_to_keep: int = 3
    """Number of turns that stay verbatim when older ones are summarized, including the open one."""
    auto_summarize: bool = True
    auto_checkpoint: bool = True
    """Has no effect without versioning."""
    auto_rollback: bool = False
    """Roll back when the score falls below the threshold; otherwise the score is only reported."""
    coherence: bool = False
    """Have the model rate each answer, which costs one more call per turn."""
    timeout: float = 60.0
    """Seconds allowed for a summary, a rating, or a call of the memory or repository."""

    def __post_init__(self) -> None:
        for name in ("max_tokens", "checkpoint_interval", "recent_turns_to_keep"):
            self._check_integer(name, 1)
        self._check_integer("grounding_memories", 0)
        self._check("quality_threshold", "from 0 to 1", 0 <= self._finite_number("quality_threshold") <= 1)
        ratio = self._finite_number("summarize_at_ratio")
        self._check("summarize_at_ratio", "a fraction above 0, at most 1", 0 < ratio <= 1)
        self._check("timeout", "seconds above 0", self._finite_number("timeout") > 0)
        for name in FLAGS:
            self._check(name, "True or False", isinstance(getattr(self, name), bool))
        if self.summarization_threshold < 1:
            self._check("summarize_at_ratio", f"a fraction that is at least one token of {self.max_tokens}", False)

    @property
    def summarization_threshold(self) -> int:
        """Tokens from which a session is summarized."""
        return int(self.max_tokens * self.summarize_at_ratio)

    def _check_integer(self, name: str, least: int) -> None:
        value: object = getattr(self, name)
        fits = isinstance(value, int) and not isinstance(value, bool) and least <= value <= MAX_TOKENS
        self._check(name, f"a whole number from {least}", fits)

    def _finite_number(self, name: str) -> float:
        value: object = getattr(self, name)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MAX_TOKENS:
            return float(value)
        return float("nan")

    def _check(self, name: str, allowed: str, fits: bool) -> None:
        if not fits:
            raise SettingsError(f"ContextConfig {name}={getattr(self, name)!r:.80}: give {allowed}")


def check_config(config: ContextConfig | None) -> ContextConfig:
    """Return the given settings, or the defaults for None.

    Raises:
        SettingsError: The value is not a `ContextConfig`; the message lists its fields.
    """
    if config is not None and not isinstance(config, ContextConfig):  # pyright: ignore[reportUnnecessaryIsInstance]
        names = ", ".join(field.name for field in fields(ContextConfig))
        raise SettingsError(f"config={config!r}: give a ContextConfig, whose fields are {names}")
    return config or ContextConfig()


def check_input(where: str, text: object) -> str:
    """Return a user's text unchanged.

    Raises:
        SettingsError: The value is empty or not a string.
    """
    if not isinstance(text, str) or not text.strip():
        raise SettingsError(f"{where}: the input is empty; give the user's text")
    return text
