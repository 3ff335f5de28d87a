"""Ratio of a model family's tokens to ours, learnt from the usage that its provider reports.

We count with o200k, as OpenAI's models do. Every other family has its own tokenizer; its ratio also covers overhead
that cannot be derived offline, such as the rendering of tools.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

START = {"anthropic": 1.25}
"""Claude's tokenizers gave 1.23 to 1.27 times our count on real sessions."""

EXACT = frozenset({"openai", "exact"})
"""Families that count as we do: their ratio is 1.0 and stays so."""

SHARE = 0.3
"""Weight of the newest report against all before it."""

FEWEST = 200
"""Reports on fewer tokens than this teach nothing: framing outweighs text."""

PLAUSIBLE = (0.5, 3.0)

_NAMES = {
    r"claude|anthropic": "anthropic",
    r"gemini|gemma": "google",
    r"mistral|mixtral|codestral|devstral|ministral|magistral|pixtral": "mistral",
    r"llama": "meta",
    r"qwen|qwq": "qwen",
    r"deepseek": "deepseek",
    r"grok": "xai",
    r"kimi|moonshot": "moonshot",
    r"command-[ra]": "cohere",
    r"\bglm": "zhipu",
    r"minimax": "minimax",
    r"amazon|\bnova-|titan": "amazon",
    r"\bgpt-?3|\bgpt-?4(?![\d.o])|davinci|babbage": "openai-legacy",
    r"\bgpt-?(\d|oss|audio|realtime)|chatgpt|(^|[/:])o\d\b|\bcodex|computer-use": "openai",
}
"""Tokenizer family by model name, first match, whatever the provider."""

_SYSTEMS = {
    "function": "exact",
    "test": "exact",
    "google-gla": "google",
    "google-vertex": "google",
    "google-cloud": "google",
    "vertexai": "google",
    "moonshotai": "moonshot",
}


def model_family(system: str | None, model_name: str | None) -> str:
    """Tokenizer family of a model, by its name or else by its provider.

    "openai" means o200k; "openai-legacy" OpenAI's tokenizers before it; "exact" the host's own models
    for tests. A model of another name behind the OpenAI protocol is "openai-compatible": it may be
    anything, so its ratio is learnt.
    """
    served = (system or "").strip().lower()
    if _SYSTEMS.get(served) == "exact":
        return "exact"
    name = (model_name or "").strip().lower()
    for pattern, family in _NAMES.items():
        if re.search(pattern, name):
            return family
    if served == "openai" and name:
        return "openai-compatible"
    return _SYSTEMS.get(served, served) or "unknown"


class Ratios:
    """Ratios of reported tokens to o200k tokens per model family, learnt from usage."""

    def __init__(self) -> None:
        self._learnt: dict[str, float] = {}

    def of(self, family: str) -> float:
        """Factor for our count; never below 1.0, so that budgets err on the safe side."""
        return 1.0 if family in EXACT else self._learnt.get(family, START.get(family, 1.0))

    def learn(self, family: str, *, exact: int, reported: int) -> float:
        """Take in one report and give the ratio from now on.

        Args:
            family: Who reported; the families that count as we do are not learnt.
            exact: Our count of what was sent, in o200k tokens; under 200 the report is ignored.
            reported: The provider's count of the same, in its own tokens; ignored where it is less than
                half or more than three times ours.
        """
        low, high = PLAUSIBLE
        if family in EXACT or exact < FEWEST or not low <= reported / exact <= high:
            return self.of(family)
        before = self.of(family)
        self._learnt[family] = max(1.0, before + SHARE * (reported / exact - before))
        return self._learnt[family]

    def state(self) -> dict[str, float]:
        """Learnt ratios by family, for `restore`."""
        return dict(self._learnt)

    def restore(self, state: Mapping[str, object]) -> None:
        """Restore ratios from `state()`; implausible entries are ignored."""
        self._learnt = {
            family: float(ratio)
            for family, ratio in state.items()
            if isinstance(ratio, int | float) and 1.0 <= ratio <= PLAUSIBLE[1]
        }
