"""The o200k encoding comes with the package: it is built from our own packed ranks and asks no network for them.

Importing this module imports tiktoken, so `tokens` does it only when something is first counted.

The packed file is xz over one byte a token (its length) and then the tokens themselves, both in the order
of their ranks: ranks are contiguous, so the order says them. What is unpacked is checked against `DIGEST`.
"""

from __future__ import annotations

import lzma
from hashlib import sha256
from importlib.resources import files
from itertools import accumulate, pairwise

import tiktoken

PUBLISHED = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
"""SHA-256 of OpenAI's `o200k_base.tiktoken`, as it stands in tiktoken's own source."""

DIGEST = "440741350e7cfa1c0f4869ce742d1b043550adbda5187adcac9e787edac6fba9"
"""SHA-256 of the same ranks as they are after unpacking."""

TOKENS = 199_998

PATTERN = "|".join(
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
"""How text is split before merging, as published with o200k."""


def unpack(packed: bytes) -> dict[bytes, int]:
    """Every token of o200k with its rank.

    Raises:
        lzma.LZMAError: `packed` is no xz file, or a damaged one.
        ValueError: it holds something other than the published ranks.
    """
    payload = lzma.decompress(packed)
    if sha256(payload).hexdigest() != DIGEST:
        raise ValueError("the packed o200k ranks are not the published ones; reinstall the package")
    ends = accumulate(payload[:TOKENS], initial=TOKENS)
    return {payload[start:end]: rank for rank, (start, end) in enumerate(pairwise(ends))}


def load() -> tiktoken.Encoding:
    """The o200k encoding, built anew (about 0.3 s); special tokens are ordinary text to it.

    Raises:
        OSError: the file of ranks is missing.
        lzma.LZMAError: it is damaged.
        ValueError: it holds something else.
    """
    packed = files("context_compiler").joinpath("data/o200k.xz").read_bytes()
    return tiktoken.Encoding("o200k", pat_str=PATTERN, mergeable_ranks=unpack(packed), special_tokens={})
