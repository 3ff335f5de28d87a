"""Count tokens exactly and offline in o200k; counting never raises and never accesses the network.

The encoding is built on the first count (about 0.3 s) from ranks packed with this package; tiktoken is imported only
then. If it is missing or fails, a text counts as half its UTF-8 bytes, with one warning. This overestimates ordinary
text, so budgets are kept. The packed file is an xz archive of one byte per token (its length) followed by all tokens,
both in the order of their ranks, which are contiguous. The unpacked ranks are checked against `DIGEST`.

tiktoken panics on inputs such as a million spaces, so long texts are counted in pieces. The split pattern of o200k
never matches across three kinds of place: before a space that follows a sign or word, after a line end, and between a
word and the sign after it. Cutting a text there does not change its tokens.

Other model families have their own tokenizers. `Ratios` learns the ratio of their tokens to o200k tokens from the usage
that providers report; it also covers overhead that cannot be known offline, such as the rendering of tools.
"""

from __future__ import annotations

import importlib
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from hashlib import sha256
from importlib.resources import files
from itertools import accumulate, pairwise
from threading import RLock
from typing import Any, TypeVar, cast
from unicodedata import category

from context_compiler.errors import SettingsError
from context_compiler.tokens.media import audio_tokens, document_tokens, image_tokens, video_tokens

__all__ = [
    "PLAUSIBLE",
    "PROVIDER",
    "Count",
    "Ratios",
    "TokenCounter",
    "as_counter",
    "audio_tokens",
    "document_tokens",
    "image_tokens",
    "media_tokens",
    "model_family",
    "text_of_file",
    "video_tokens",
]

Count = Callable[[str], int]
"""Custom counter: a function from a string to its number of tokens."""

CACHE_CHARACTERS = 8_000_000
"""Default size of a counter's cache, in characters of counted text."""
ENTRY = 128
"""Overhead of one cached string, in characters."""
MIN_CACHED = 32
"""Minimum characters of a cached string; counting a shorter one is as fast as a lookup."""

LABEL = "\n["
"""Beginning of a line with a label. No token spans its line break, or the closing bracket and the space after it."""

ITEM = "\n- "
"""Beginning of a list item; no token spans its line break."""
ITEM_LENGTH = 256
"""Maximum characters of a list item that is cached."""
MIN_ITEMS, KNOWN_ITEMS = 16, 32_768
"""Minimum items of a list that is counted item by item, and number of items that are cached."""

KNOWN_LABELS, MAX_LABEL = 4_096, 128
"""Number of line labels that are cached, and maximum characters of one."""

PROBES = 24
"""Maximum counts in a search for the longest prefix that fits."""

_logger = logging.getLogger(__name__)
_loading = RLock()
_reported: set[str] = set()

_Given = TypeVar("_Given")
_Made = TypeVar("_Made")


class TokenCounter:
    """Counts tokens of text exactly and offline (o200k), with a cache.

    Counting never raises and never accesses the network. Strings over 50,000 characters are counted in pieces; see
    `pieces` for the accuracy. Strings over 2,000,000 characters are estimated from evenly spaced pieces.
    """

    def __init__(self, count: Count | None = None, *, remember: int = CACHE_CHARACTERS) -> None:
        """Create a counter with an empty cache.

        Args:
            count: Function from a string to its number of tokens. If it fails or returns no number, the text is counted
                in o200k, which is also the default.
            remember: Size of the cache in characters of counted text, plus 128 for each text. The least recently used
                texts are evicted first.

        Raises:
            SettingsError: `count` cannot be called.
        """
        if count is not None and not callable(count):
            raise SettingsError(f"counter={count!r}: give a function from a text to its number of tokens")
        self._count = count
        self._custom = None if count is None else partial(_checked_count, count)
        self._failure = f"the counter {getattr(count, '__qualname__', count)} failed, o200k counts instead"
        self._room = remember
        self._known: OrderedDict[str, int] = OrderedDict()
        self._weight = 0
        self._lock = RLock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the cache."""
        return _rebuild, (type(self), self._count, self._room)

    @property
    def is_ready(self) -> bool:
        """True if the next count does not have to load the encoding."""
        return self._custom is not None or _cached_encoder.cache_info().currsize > 0

    def load(self) -> None:
        """Load the encoding now rather than at the first count."""
        _encoder()

    def text(self, text: str) -> int:
        """Count the tokens of `text`; anything that looks like a special token counts as ordinary text."""
        if type(text) is not str:  # a subclass may override comparison and hashing
            text = str(text)
        if len(text) < MIN_CACHED and self._custom is None:
            return self._count_uncached(text)
        with self._lock:
            cached = self._known.get(text)
            if cached is not None:
                self._known.move_to_end(text)
                return cached
        tokens = self._count_uncached(text)
        self._keep(text, tokens)
        return tokens

    def labelled(self, text: str) -> int:
        """Count like `text`, but with labels in brackets and the texts after them cached separately.

        This is faster than `text` if lines recur with different labels.
        """
        if self._custom is not None or len(text) > PIECE:
            return self.text(text)
        *others, last = text.split(LABEL)
        first, *lines = [*(f"{part}\n" for part in others), last]
        tokens = self._count_uncached(first)
        for line in lines:
            label, closed, rest = line.partition("] ")
            if closed and len(label) <= MAX_LABEL:
                tokens += _label_tokens(f"[{label}]") + self.text(f" {rest}")
            else:
                tokens += self._count_uncached(f"[{line}")
        self._keep(text, tokens)
        return tokens

    def __call__(self, text: str) -> int:
        """Count like `text`."""
        return self.text(text)

    def head(self, text: str, tokens: int) -> str:
        """Longest prefix of `text` with at most `tokens` tokens, to within one percent.

        It never ends inside a character, that is, between two surrogates or before a combining mark.
        """
        return self._longest(len(text), tokens, lambda size: text[: character_boundary(text, size, -1)])

    def tail(self, text: str, tokens: int) -> str:
        """Longest suffix of `text` with at most `tokens` tokens, to within one percent."""
        return self._longest(len(text), tokens, lambda size: text[character_boundary(text, len(text) - size, 1) :])

    def _longest(self, size: int, tokens: int, part: Callable[[int], str]) -> str:
        """Largest of `part(0)` to `part(size)` that fits, searched by token density first and then by bisection."""
        best, low, high = "", 0, size + 1
        guess = min(size, 4 * tokens)
        for probe in range(PROBES):
            if tokens < 1 or not low < guess < high:
                break
            piece = part(guess)
            cost = self._count_uncached(piece)
            if cost <= tokens:
                best, low = piece, guess
                if cost >= tokens - tokens // 100 and tokens >= 100:
                    break
            else:
                high = guess
            nearer = guess + int((tokens - cost) * guess / max(cost, 1)) if probe < PROBES // 2 else 0
            halfway = min((low + high) // 2, 2 * low + 1)
            guess = min(size, nearer if low < nearer < high else halfway)
        return best

    def _count_uncached(self, text: str) -> int:
        counted = _try_or_warn(self._custom, text, self._failure) if self._custom else None
        return _count_exact(text) if counted is None else counted

    def _keep(self, text: str, tokens: int) -> None:
        if len(text) + ENTRY > self._room:
            return
        with self._lock:
            if text not in self._known:
                self._weight += len(text) + ENTRY
            self._known[text] = tokens
            while self._weight > self._room:
                evicted, _ = self._known.popitem(last=False)
                self._weight -= len(evicted) + ENTRY


def _rebuild(kind: type[TokenCounter], count: Count | None, remember: int) -> TokenCounter:
    return kind(count, remember=remember)


_shared = TokenCounter()


PROVIDER = "provider"
"""Name of the counter that asks the model's provider, and uses o200k between those calls."""


def as_counter(counter: TokenCounter | Count | str | None) -> TokenCounter:
    """Return a counter for an argument: a counter itself, a wrapped function, or the shared o200k counter.

    The shared counter is used for None and for "provider".

    Raises:
        SettingsError: The argument is none of these.
    """
    if counter is None or counter == PROVIDER:
        return _shared
    if isinstance(counter, str):
        raise SettingsError(f'counter={counter!r}: give a function from a text to its number of tokens, or "provider"')
    return counter if isinstance(counter, TokenCounter) else TokenCounter(counter)


_BY_KIND: dict[str, Callable[[bytes | None], int]] = {
    "image": image_tokens,
    "audio": audio_tokens,
    "video": video_tokens,
}
_TEXT = re.compile(r"text(/|$)|[^;]*[/+](json|xml|yaml|x-yaml|toml|javascript|csv|sql|x-sh|markdown|svg)\b")


def media_tokens(media_type: str, data: bytes | None = None) -> int:
    """Count the tokens of a medium: plain text exactly, other media by the providers' rules (see `tokens.media`).

    Args:
        media_type: MIME type, or its first half. Anything but images, audio, video and text counts as a document.
        data: The bytes; None if there is only a URL or an uploaded file.
    """
    text = text_of_file(media_type, data)
    if text is not None:
        return _shared.text(text)
    return _BY_KIND.get(media_type.strip().lower().partition("/")[0], document_tokens)(data)


def text_of_file(media_type: str, data: bytes | None) -> str | None:
    """Text of a file that is plain text by its MIME type; None for other files, and if there are no bytes."""
    return data.decode("utf-8", "replace") if data and _TEXT.match(media_type.strip().lower()) else None


def _checked_count(count: Count, text: str) -> int:
    tokens = cast(object, count(text))
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0:
        raise ValueError(f"{tokens!r:.80} is not a number of tokens")
    return tokens


def _count_exact(text: str) -> int:
    encode = _encoder()
    if encode is None:
        return _estimate(text)
    items = text.split(ITEM) if ITEM_LENGTH < len(text) <= PIECE * COUNTED else [text]
    if len(items) < MIN_ITEMS:
        return _count_pieces(text, encode)
    first, *others, last = items
    middle = sum(_item_tokens(item) if len(item) <= ITEM_LENGTH else _count_exact(f"- {item}\n") for item in others)
    return _count_pieces(f"{first}\n", encode) + middle + _count_pieces(f"- {last}", encode)


@lru_cache(maxsize=KNOWN_ITEMS)
def _item_tokens(item: str) -> int:
    """Tokens of a list item, cached because long lists are counted again and again with few changes."""
    return _count_exact(f"- {item}\n")


_label_tokens = lru_cache(maxsize=KNOWN_LABELS)(_count_exact)


def _count_pieces(text: str, encode: Callable[[str], Sequence[int]]) -> int:
    every = [text] if len(text) <= PIECE else list(pieces(text))
    sample = every[:: -(-len(every) // COUNTED)]  # the step is rounded up
    total = 0
    for piece in sample:
        tokens = _try_or_warn(encode, piece, "the o200k encoder failed on a text, which is counted by its size instead")
        total += _estimate(piece) if tokens is None else len(tokens)
    return total if len(sample) == len(every) else round(total * len(text) / sum(map(len, sample)))


def _encoder() -> Callable[[str], Sequence[int]] | None:
    with _loading:
        return _cached_encoder()


@cache
def _cached_encoder() -> Callable[[str], Sequence[int]] | None:
    return _try_or_warn(_load_encoder, None, "the o200k ranks cannot be read, counting by size")


def _load_encoder(_: None) -> Callable[[str], Sequence[int]]:
    """Build the o200k encoding (about 0.3 s), without special tokens."""
    tiktoken = importlib.import_module("tiktoken")
    ranks = unpack_ranks(files("context_compiler").joinpath("data/o200k.xz").read_bytes())
    encoding = tiktoken.Encoding("o200k", pat_str=SPLIT_PATTERN, mergeable_ranks=ranks, special_tokens={})
    return encoding.encode_ordinary


def _try_or_warn(work: Callable[[_Given], _Made], value: _Given, failure: str) -> _Made | None:
    """Return `work(value)`; if it fails, log a warning once for each `failure` text and return None."""
    try:
        return work(value)
    except BaseException as error:  # tiktoken's panic is no Exception; cancellation and exit must pass
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        if failure not in _reported:
            _reported.add(failure)
            _logger.warning("%s (%s)", failure, type(error).__name__)  # not its message, which may quote the text
        return None


def _estimate(text: str) -> int:
    return (len(text.encode("utf-8", "surrogatepass")) + 1) // 2


PIECE = 50_000
"""Maximum characters counted at once."""
COUNTED = 40
"""Maximum pieces of a string that are counted; a longer string, which exceeds any window, is estimated by a sample."""
REACH = 4_096
"""Characters before the end of a piece that are searched for a place to cut."""

MARKS = 32
"""Maximum combining marks that a position is moved past; no script has more in a row."""

_SAFE = re.compile(r"[\s\S]*(?:(?<=\S)(?=[ \t])|(?<=\n)(?=[^\s/])|(?<=[^\W_])(?=[-.,:;()\[\]{}<>=\"。、，；：？！]))")


def pieces(text: str) -> Iterator[str]:
    """Split a string into pieces of at most 50,000 characters whose token counts add up to that of the string.

    If 4,096 characters contain no place to cut (base64 without line ends, a run of spaces), the piece ends in the
    middle of them, and the sum may be off by one or two tokens.
    """
    start = 0
    while len(text) - start > PIECE:
        end = start + PIECE
        safe = _SAFE.match(text, end - REACH, end + 1)
        cut = safe.end() if safe else character_boundary(text, end, -1)
        yield text[start:cut]
        start = cut
    yield text[start:]


def character_boundary(text: str, position: int, step: int) -> int:
    """Nearest position from `position` on, in steps of `step` (1 or -1), that does not split a character.

    Surrogate pairs, letters with combining marks, and characters linked by a zero-width joiner stay together.
    """
    for _ in range(MARKS):
        if not 0 < position < len(text) or not _same_character(text[position - 1], text[position]):
            break
        position += step
    return position


def _same_character(before: str, after: str) -> bool:
    if after < "\u0300":
        return False
    return "\ud800" <= before < "\udc00" <= after < "\ue000" or "\u200d" in (before, after) or category(after)[0] == "M"


PUBLISHED = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
"""SHA-256 of OpenAI's `o200k_base.tiktoken`, as in tiktoken's own source."""

DIGEST = "440741350e7cfa1c0f4869ce742d1b043550adbda5187adcac9e787edac6fba9"
"""SHA-256 of the same ranks in the unpacked format of this package."""

RANKS = 199_998

SPLIT_PATTERN = "|".join(
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
"""Split pattern before merging, as published with o200k."""


def unpack_ranks(packed: bytes) -> dict[bytes, int]:
    """Unpack the tokens of o200k with their ranks.

    Raises:
        lzma.LZMAError: `packed` is not an xz file, or is damaged.
        ValueError: The content is not the published ranks.
    """
    payload: bytes = importlib.import_module("lzma").decompress(packed)
    if sha256(payload).hexdigest() != DIGEST:
        raise ValueError("the packed o200k ranks are not the published ones; reinstall the package")
    ends = accumulate(payload[:RANKS], initial=RANKS)
    return {payload[start:end]: rank for rank, (start, end) in enumerate(pairwise(ends))}


START = {"anthropic": 1.25}
"""Initial ratios. Claude's tokenizers gave 1.23 to 1.27 times the o200k count on real sessions."""

EXACT = frozenset({"openai", "exact"})
"""Families that use o200k: their ratio is always 1.0."""

SHARE = 0.3
"""Weight of the newest report in the moving average of a ratio."""

FEWEST = 200
"""Minimum tokens of a report from which a ratio is learned; below it, framing outweighs text."""

MARGIN = 1.02
"""Factor on reported ratios, which differ by about a percent from one request to the next."""

ENOUGH = 1_000
"""Minimum tokens of a provider's count before a request that sets a ratio by itself."""

PLAUSIBLE = (0.5, 3.0)
"""Minimum and maximum ratio that is accepted."""

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
"""Tokenizer families by pattern of the model name, independent of the provider; the first match counts."""

_SYSTEMS = {
    **dict.fromkeys(("function", "test"), "exact"),
    **dict.fromkeys(("google-gla", "google-vertex", "google-cloud", "vertexai"), "google"),
    "moonshotai": "moonshot",
}


def model_family(system: str | None, model_name: str | None) -> str:
    """Tokenizer family of a model, by its name or else by its provider.

    "openai" means o200k, "openai-legacy" OpenAI's earlier tokenizers, and "exact" the host's test models. A model with
    an unknown name behind the OpenAI protocol is "openai-compatible"; with its unknown tokenizer, its ratio is learned.
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
    """Ratios of a provider's tokens to o200k tokens by model family, learned from reported usage."""

    def __init__(self) -> None:
        self._learned: dict[str, float] = {}
        self._measured: set[str] = set()

    def of(self, family: str) -> float:
        """Ratio of a family, the factor for o200k counts; never below 1.0, so that budgets err on the safe side."""
        return self._learned.get(family, 1.0 if family in EXACT else START.get(family, 1.0))

    def measured(self, family: str) -> bool:
        """True if a provider's own count has set the ratio; learning it from usage takes several reports."""
        return family in self._measured

    def measure(self, family: str, *, exact: int, counted: int) -> None:
        """Set a ratio from a provider's count of a request before it is sent.

        Args:
            family: Family of the model that counted.
            exact: Count of the same request in o200k tokens. Below 1,000 the call is ignored, because the provider's
                fixed overhead would outweigh the text.
            counted: The provider's count; ignored if it is less than half or more than three times `exact`.
        """
        low, high = PLAUSIBLE
        if exact >= ENOUGH and low <= counted / exact <= high:
            self._learned[family] = max(1.0, counted / exact)
            self._measured.add(family)

    def hold(self, family: str, ratio: float) -> None:
        """Set a ratio that comes from a provider's count of a request of any size."""
        self._learned[family] = max(1.0, ratio)

    def learn(self, family: str, *, exact: int, reported: int) -> float:
        """Update a ratio from reported usage, and return the new ratio.

        A larger ratio is used at once, so that the next request is within its budget; a smaller one, or one of a short
        request, is approached.

        Args:
            family: Family of the model; reports on families that use o200k are ignored.
            exact: Count of the request in o200k tokens; below 200 the report is ignored.
            reported: The provider's count of the same request in its own tokens; ignored if it is less than half or
                more than three times `exact`.
        """
        low, high = PLAUSIBLE
        if family in EXACT or exact < FEWEST or not low <= reported / exact <= high:
            return self.of(family)
        before, ratio = self.of(family), MARGIN * reported / exact
        share = 1.0 if ratio > before and exact >= ENOUGH else SHARE
        self._learned[family] = max(1.0, before + share * (ratio - before))
        return self._learned[family]

    def state(self) -> dict[str, float]:
        """Learnt ratios by family, for `restore`."""
        return dict(self._learned)

    def restore(self, state: Mapping[str, object]) -> None:
        """Restore ratios from `state()`, except for families that are known already; implausible ratios are ignored."""
        ratios = {
            family: float(ratio)
            for family, ratio in state.items()
            if isinstance(ratio, int | float) and 1.0 <= ratio <= PLAUSIBLE[1]
        }
        self._learned = ratios | self._learned
