"""Refusals of requests that are too long, in whatever words, and the numbers that they state.

Providers have no common code for this error. A sentence reports it if it names the input (context, prompt, messages), a
measure of it (length, tokens, window), and an excess (exceeds, too long, maximum). Codes are read as words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic_ai import exceptions
from pydantic_ai.exceptions import ModelAPIError

from context_compiler.resilience import attempt

TOO_LONG: type[Exception] | None = getattr(exceptions, "ModelContextWindowExceededError", None)
"""Error of the host for providers whose words it knows; None if the host has none."""

STATUSES = (400, 413, 422, 500)
"""Statuses of such refusals. 413 says by itself that the request is too long; llama.cpp answers 500."""

MOST_TEXT = 20_000
"""Characters of an error that are read, because some errors repeat the request."""

_NOISE = re.compile(
    r"https?://\S+"
    r"|\binput should\b|\binput schema\b|(?<!'messages': )(?<!'input': )\b(string|array) (above max length|too long)\b"
    r"|'(input|messages)\[[^']*'"
)
"""Addresses, and complaints about a single field."""

_RATE = re.compile(
    r"\brates? ?limit|\bquota|\bthrottl|\btoo many requests\b|\bper (minute|min|hour|day|second)\b|\bplease wait\b"
    r"|\b(tpm|tpd|rpm)\b|\bservice unavailable\b"
)
"""Limits over time, which a shorter request does not respect either."""

_OUTPUT = re.compile(
    r"\bmax(imum)? ?(completion|output|new|gen|response)? ?tokens( to sample)?\b(?! allowed)"
    r"|\b(output|completion) (tokens?|length)\b|\bbudget tokens\b"
)
"""Names of the maximum length of an answer."""

_GIVEN = re.compile(r"\b(prompts?|inputs?|messages?|conversation|request (has|contains))\b")
"""Words for what is sent, in errors that also name the maximum length of an answer."""

_SUBJECT = (
    r"(context|prompts?|inputs?|messages?|conversation|request|requested|seq(uence)?|history|question|model|total)"
)
_MEASURE = r"(lengths?|len|tokens?|windows?|size|context limit|ctx)"
_EXCESS = (
    r"(exceed\w*|too (long|large|many|big)|overflow\w*|(longer|larger|greater|bigger|more|less|fewer) than|max(imum)?"
    r"|at most|up to|only|limit|range of|not enough|reduce|shorten|<=?|>|but the configured|over)"
)
_KINDS = tuple(re.compile(rf"(?<![\w]){kind}(?![\w])") for kind in (_SUBJECT, _MEASURE, _EXCESS))
_TOO = re.compile(
    r"\b(context|prompts?|inputs?|messages|conversation|request)\b[^.;]{0,40}"
    r"\b(is |are )?(too (long|large|big)|overflow\w*)\b"
    r"|\btoo many (input |prompt |total )?tokens\b|\btoken limit exceeded\b|'(input|messages)': array too long"
)
"""Sentences without a measure."""
_SMALL = re.compile(r"\btoo (small|short)\b|\bminimum\b|\b(pixels?|bytes|[mk]b|pages|dimensions?|seconds)\b")
"""Sentences about a lower limit, or about files."""

_NUMBER = r"(\d[\d,]*)\b"
_WINDOW = tuple(
    re.compile(pattern.replace("N", _NUMBER))
    for pattern in (
        r"\bn ctx\W{1,3}N",
        r"\[\s*\d+\s*,\s*N\s*\]",
        r"\bcontext (?:length|window|size|limit)(?: (?:is|of|only|limit)|[ :=(])*N(?!\s*\+)",
        r"(?:\d|tokens) >\s*N",
        r"\bN maximum\b",
        r"\bmax(?:imum)?\b(?:(?!\bby\b)[^\d.;\n]){0,40}N",
        r"<=? N",
        r"\b(?:less than|at most|up to|cannot exceed|(?:greater|longer) than)\b[^\d.;\n]{0,25}N",
        r"\blimit(?: of| is|:|) N",
    )
)
"""Places of the window in an error, the most certain first."""
_COUNTED = tuple(
    re.compile(pattern.replace("N", _NUMBER))
    for pattern in (
        r"\bn prompt tokens\W{1,3}N",
        r"\bN (?:tokens )?(?:(?:inputs?|prompt) tokens|from the input|of text input)",
        r"\bN (?:tokens )?in (?:the|your) (?:prompt|messages?|input)",
        r"\b(?:prompt|inputs?|request|messages?)\b[^\d.;\n]{0,60}?N",
        r"\bN (?:tokens )?>",
        r"\b(?:current length is|given:|contains|actual:|requested:) N",
    )
)
"""Places of the tokens of the refused input."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal of a request as too long, with the numbers that it states, in the provider's tokens."""

    windows: tuple[int, ...] = ()
    """Possible context windows, the most likely first."""
    counts: tuple[int, ...] = ()
    """Possible counts of the refused input, the most likely first."""

    def window(self, least: int) -> int | None:
        """The context window; None if none is stated, or one of less than `least` tokens."""
        window = next(iter(self.windows), 0)  # the next likely number may be that of the refused input
        return window if window >= least else None

    def counted(self, low: float, high: float) -> int | None:
        """The count of the input; None if none is stated between two plausible limits."""
        window = self.windows[:1]
        return next((count for count in self.counts if low <= count <= high and (count,) != window), None)


def is_overflow(error: BaseException) -> bool:
    """True if a provider refused a request as too long; a group counts if one of its errors does."""
    return refusal_of(error) is not None


def refusal_of(error: BaseException) -> Refusal | None:
    """The refusal that an error is, or that a group contains; None if a shorter request would not help."""
    if isinstance(error, BaseExceptionGroup):
        group = cast(BaseExceptionGroup[BaseException], error)
        refusals = [refusal for inner in group.exceptions if (refusal := refusal_of(inner)) is not None]
        return min(refusals, key=lambda refusal: refusal.windows or (10**12,), default=None)
    is_too_long = TOO_LONG is not None and isinstance(error, TOO_LONG)
    status = getattr(error, "status_code", None)  # an error within a stream may have none
    if not is_too_long and not (isinstance(error, ModelAPIError) and status in (*STATUSES, None)):
        return None
    told = getattr(error, "body", None) or (error.message if isinstance(error, ModelAPIError) else None)
    text = _normalized("\n".join(_texts(told))[:MOST_TEXT])
    if is_too_long or (not _RATE.search(text) and (status == 413 or _says_too_long(text))):
        return Refusal(windows=_numbers(_WINDOW, text), counts=_numbers(_COUNTED, text))
    return None


def _texts(body: object) -> Iterator[str]:
    """All texts and named numbers of an error's body; a text may be JSON again, as routers pass errors on."""
    if isinstance(body, Mapping):
        for key, value in cast(Mapping[str, Any], body).items():
            if isinstance(value, int | float):
                yield f"{key}: {value}"
            else:
                yield from _texts(value)
    elif isinstance(body, list | tuple):
        for value in cast(list[Any], body):
            yield from _texts(value)
    elif isinstance(body, str):
        inner = attempt(lambda: json.loads(body)).value if body.lstrip()[:1] in ("{", "[") else None
        if isinstance(inner, dict | list):
            yield from _texts(cast(object, inner))
        else:
            yield body


def _normalized(text: str) -> str:
    """An error in lower case, with codes as words: `context_length_exceeded`, `ContextWindowExceeded`."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).lower()
    words = re.sub(r"\barray with maximum length \d+", " ", re.sub(r"[_`\"*-]", " ", words))  # of messages, not tokens
    return re.sub(r"[ \t]+", " ", words)


def _says_too_long(text: str) -> bool:
    text = _NOISE.sub(" ", text)
    if _OUTPUT.search(text) and not _GIVEN.search(text):
        return False
    return any(_is_excess(sentence) for sentence in re.split(r"[.!?;]+(?:\s|$)|\n", text))


def _is_excess(sentence: str) -> bool:
    """True if a sentence says that the input is longer than it may be."""
    if _SMALL.search(sentence):
        return False
    sentence = _OUTPUT.sub(" ", sentence)
    return bool(_TOO.search(sentence)) or all(kind.search(sentence) for kind in _KINDS)


def _numbers(patterns: tuple[re.Pattern[str], ...], text: str) -> tuple[int, ...]:
    matches = (match for pattern in patterns for match in pattern.findall(text))
    return tuple(dict.fromkeys(number for match in matches if (number := int(match.replace(",", "")[:15])) > 0))
