"""Exact offline token counts in o200k; counting never raises and never reaches the network.

The encoding is built from our own packed ranks when something is first counted (about 0.3 s), and tiktoken is imported
only then. If it is missing or fails, a text counts half its UTF-8 bytes, with one warning: too many for ordinary text,
so that budgets hold. The packed file is xz over one byte per token (its length) and then the tokens, both in the order
of their ranks, which are contiguous. The unpacked ranks are checked against `DIGEST`.

tiktoken panics on a million spaces and the like, so long texts are counted in pieces. The split pattern of o200k never
matches across three places: before a space that follows a sign or word, after a line's end, and between a word and a
sign after it. A cut there leaves every token as it was.

Other model families have tokenizers of their own: `Ratios` learns the ratio of their tokens to ours from the usage that
providers report. A ratio also covers overhead that cannot be derived offline, such as the rendering of tools.
"""

from __future__ import annotations

import importlib
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from hashlib import sha256
from importlib.resources import files
from itertools import accumulate, pairwise
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar, cast
from unicodedata import category

from context_compiler.errors import SettingsError
from context_compiler.tokens.media import audio_tokens, document_tokens, image_tokens, video_tokens

if TYPE_CHECKING:
    import tiktoken


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
    "video_tokens",
]

Count = Callable[[str], int]
"""A custom counter: the number of tokens of a text."""

REMEMBERED = 8_000_000
"""Default characters of counted text that a counter caches."""
ENTRY = 128
"""Overhead of one cached text, in characters."""
SHORT = 32
"""Shorter texts are not cached: counting them is as fast."""

LABEL = "\n["
"""Beginning of a line with a label: no token reaches across its line break, nor from the closing bracket to a space."""

ITEM = "\n- "
"""Beginning of an item of a list: no token reaches across its line break."""
ITEM_LENGTH = 256
"""Longest item whose tokens are remembered, in characters."""
FEWEST_ITEMS, KNOWN_ITEMS = 16, 32_768
"""Items from which on a list is counted item by item, and those whose tokens are remembered."""

KNOWN_LABELS, LONGEST_LABEL = 4_096, 128
"""Labels of lines whose tokens are remembered, and the longest of them, in characters."""

PROBES = 24
"""Most counts in the search for the longest prefix."""

_logger = logging.getLogger(__name__)
_loading = RLock()
_reported: set[str] = set()

_Given = TypeVar("_Given")
_Made = TypeVar("_Made")


class TokenCounter:
    """Counts tokens of text exactly and offline (o200k), and remembers what it counted.

    Counting never raises and never reaches the network. Texts over 50,000 characters are counted in pieces;
    `pieces` says what that costs. Texts over 2,000,000 are estimated from pieces at even distances.
    """

    def __init__(self, count: Count | None = None, *, remember: int = REMEMBERED) -> None:
        """Count with `count` where given; texts for which it fails or answers no number are counted by o200k.

        Args:
            count: A function from text to its number of tokens.
            remember: How many characters of counted text to keep, and 128 for each text; the least recently
                counted goes first.

        Raises:
            SettingsError: `count` cannot be called.
        """
        if count is not None and not callable(count):
            raise SettingsError(f"counter={count!r}: give a function from a text to its number of tokens")
        self._count = count
        self._ask = None if count is None else _check_counts(count)
        self._failure = f"the counter {getattr(count, '__qualname__', count)} failed, o200k counts instead"
        self._room = remember
        self._known: OrderedDict[str, int] = OrderedDict()
        self._held = 0
        self._lock = RLock()

    def __reduce__(self) -> tuple[Any, ...]:
        """A counter that has counted nothing yet: what was counted is a cache."""
        return _rebuild, (type(self), self._count, self._room)

    @property
    def is_ready(self) -> bool:
        """True if nothing is left to load."""
        return self._ask is not None or _cached_encoder.cache_info().currsize > 0

    def load(self) -> None:
        """Load the encoding, which the first count does otherwise."""
        _encoder()

    def text(self, text: str) -> int:
        """The number of tokens in `text`; whatever looks like a special token is ordinary text."""
        if type(text) is not str:  # a subclass may compare and hash as it likes
            text = str(text)
        if len(text) < SHORT and self._ask is None:
            return self._fresh(text)
        with self._lock:
            known = self._known.get(text)
            if known is not None:
                self._known.move_to_end(text)
                return known
        tokens = self._fresh(text)
        self._keep(text, tokens)
        return tokens

    def labelled(self, text: str) -> int:
        """The same as `text`, for lines that begin with a label in brackets: what follows a label is counted once."""
        if self._ask is not None or len(text) > PIECE:
            return self.text(text)
        *others, last = text.split(LABEL)
        first, *lines = [*(f"{one}\n" for one in others), last]
        tokens = self._fresh(first)
        for line in lines:
            label, closed, said = line.partition("] ")
            if closed and len(label) <= LONGEST_LABEL:
                tokens += _label_tokens(f"[{label}]") + self.text(f" {said}")
            else:
                tokens += self._fresh(f"[{line}")
        self._keep(text, tokens)
        return tokens

    def __call__(self, text: str) -> int:
        """The same as `text`."""
        return self.text(text)

    def head(self, text: str, tokens: int) -> str:
        """The longest beginning of `text`, give or take one in a hundred, that has at most `tokens` tokens.

        Never ends inside a character: not between two surrogates, nor before a combining mark.
        """
        return self._longest(len(text), tokens, lambda size: text[: character_boundary(text, size, -1)])

    def tail(self, text: str, tokens: int) -> str:
        """The longest end of `text`, give or take one in a hundred, that has at most `tokens` tokens."""
        return self._longest(len(text), tokens, lambda size: text[character_boundary(text, len(text) - size, 1) :])

    def _longest(self, size: int, tokens: int, part: Callable[[int], str]) -> str:
        """The largest of `part(0)` to `part(size)` that fits, found by the density of tokens, then by halving."""
        best, low, high = "", 0, size + 1
        guess = min(size, 4 * tokens)
        for probe in range(PROBES):
            if tokens < 1 or not low < guess < high:
                break
            piece = part(guess)
            cost = self._fresh(piece)
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

    def _fresh(self, text: str) -> int:
        counted = _try_or_warn(self._ask, text, self._failure) if self._ask else None
        return _count_exact(text) if counted is None else counted

    def _keep(self, text: str, tokens: int) -> None:
        if len(text) + ENTRY > self._room:
            return
        with self._lock:
            if text not in self._known:
                self._held += len(text) + ENTRY
            self._known[text] = tokens
            while self._held > self._room:
                forgotten, _ = self._known.popitem(last=False)
                self._held -= len(forgotten) + ENTRY


def _rebuild(kind: type[TokenCounter], count: Count | None, remember: int) -> TokenCounter:
    return kind(count, remember=remember)


_shared = TokenCounter()


PROVIDER = "provider"
"""The counter that asks the model's provider, and counts as usual between."""


def as_counter(counter: TokenCounter | Count | str | None) -> TokenCounter:
    """Counter for an argument: itself, one around a function, or the shared one for None and the provider's.

    Raises:
        SettingsError: It is none of these.
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
    """Cost of a medium: plain text by its tokens, the rest by the public rules (the table in `media`).

    Args:
        media_type: MIME type, or its first half; what is neither image, sound, film nor text is a document.
        data: The bytes, or None where there is only a URL or an upload.
    """
    named = media_type.strip().lower()
    if data and _TEXT.match(named):
        return _shared.text(data.decode("utf-8", "replace"))
    return _BY_KIND.get(named.partition("/")[0], document_tokens)(data)


def _check_counts(count: Count) -> Count:
    def ask(text: str) -> int:
        tokens = cast(object, count(text))
        if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0:
            raise ValueError(f"{tokens!r:.80} is not a number of tokens")
        return tokens

    return ask


def _count_exact(text: str) -> int:
    encode = _encoder()
    if encode is None:
        return _estimate(text)
    items = text.split(ITEM) if ITEM_LENGTH < len(text) <= PIECE * COUNTED else [text]
    if len(items) < FEWEST_ITEMS:
        return _count_pieces(text, encode)
    first, *others, last = items
    middle = sum(_item_tokens(one) if len(one) <= ITEM_LENGTH else _count_exact(f"- {one}\n") for one in others)
    return _count_pieces(f"{first}\n", encode) + middle + _count_pieces(f"- {last}", encode)


@lru_cache(maxsize=KNOWN_ITEMS)
def _item_tokens(item: str) -> int:
    """Tokens of an item of a list; a list of which little changes is counted again and again."""
    return _count_exact(f"- {item}\n")


_label_tokens = lru_cache(maxsize=KNOWN_LABELS)(_count_exact)


def _count_pieces(text: str, encode: Callable[[str], Sequence[int]]) -> int:
    every = list(pieces(text))
    some = every[:: -(-len(every) // COUNTED)]
    total = 0
    for piece in some:
        tokens = _try_or_warn(encode, piece, "the o200k encoder failed on a text, which is counted by its size instead")
        total += _estimate(piece) if tokens is None else len(tokens)
    return total if len(some) == len(every) else round(total * len(text) / sum(map(len, some)))


def _encoder() -> Callable[[str], Sequence[int]] | None:
    with _loading:
        return _cached_encoder()


@cache
def _cached_encoder() -> Callable[[str], Sequence[int]] | None:
    return _try_or_warn(_load_encoder, None, "the o200k ranks cannot be read, counting by size")


def _load_encoder(_: None) -> Callable[[str], Sequence[int]]:
    return _load_encoding().encode_ordinary


def _try_or_warn(work: Callable[[_Given], _Made], given: _Given, failure: str) -> _Made | None:
    """Result of `work(given)`, or None with one warning per kind of `failure`."""
    try:
        return work(given)
    except BaseException as error:  # tiktoken's panic is not an Exception; cancellation and exit are not ours
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        if failure not in _reported:
            _reported.add(failure)
            _logger.warning("%s (%s)", failure, type(error).__name__)  # what it says may repeat the text
        return None


def _estimate(text: str) -> int:
    return (len(text.encode("utf-8", "surrogatepass")) + 1) // 2


PIECE = 50_000
"""The most characters counted at once."""
COUNTED = 40
"""The most pieces of a text that are counted; of a longer one, above any window, those at even distances are."""
REACH = 4_096
"""Characters before the end of a piece that are searched for a place to cut."""

MARKS = 32
"""Most combining marks that a position is moved past; no script has more."""

_SAFE = re.compile(r"[\s\S]*(?:(?<=\S)(?=[ \t])|(?<=\n)(?=[^\s/])|(?<=[^\W_])(?=[-.,:;()\[\]{}<>=\"。、，；：？！]))")


def pieces(text: str) -> Iterator[str]:
    """`text` in order, in pieces of at most 50,000 characters whose tokens add up to its own.

    Where 4,096 characters have no place to cut (base64 without line ends, a run of spaces), the piece ends
    in the middle, and the sum may be off by a token or two.
    """
    start = 0
    while len(text) - start > PIECE:
        end = start + PIECE
        safe = _SAFE.match(text, end - REACH, end + 1)
        cut = safe.end() if safe else character_boundary(text, end, -1)
        yield text[start:cut]
        start = cut
    yield text[start:]


def character_boundary(text: str, at: int, step: int) -> int:
    """Nearest position from `at` on, in steps of `step`, that splits no grapheme.

    Surrogates stay together, and so do a letter with its combining marks and what a joiner joins.
    """
    for _ in range(MARKS):
        if not 0 < at < len(text) or not _same_character(text[at - 1], text[at]):
            break
        at += step
    return at


def _same_character(before: str, after: str) -> bool:
    if after < "\u0300":
        return False
    return "\ud800" <= before < "\udc00" <= after < "\ue000" or "\u200d" in (before, after) or category(after)[0] == "M"


PUBLISHED = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
"""SHA-256 of OpenAI's `o200k_base.tiktoken`, as in tiktoken's own source."""

DIGEST = "440741350e7cfa1c0f4869ce742d1b043550adbda5187adcac9e787edac6fba9"
"""SHA-256 of the same ranks as they are after unpacking."""

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
    """Every token of o200k with its rank.

    Raises:
        lzma.LZMAError: `packed` is not an xz file, or is damaged.
        ValueError: it holds something other than the published ranks.
    """
    payload: bytes = importlib.import_module("lzma").decompress(packed)
    if sha256(payload).hexdigest() != DIGEST:
        raise ValueError("the packed o200k ranks are not the published ones; reinstall the package")
    ends = accumulate(payload[:RANKS], initial=RANKS)
    return {payload[start:end]: rank for rank, (start, end) in enumerate(pairwise(ends))}


def _load_encoding() -> tiktoken.Encoding:
    """The o200k encoding, built anew (about 0.3 s); special tokens are ordinary text to it.

    Raises:
        OSError: the file of ranks is missing.
        lzma.LZMAError: it is damaged.
        ValueError: it holds something else.
    """
    tiktoken = importlib.import_module("tiktoken")
    packed = files("context_compiler").joinpath("data/o200k.xz").read_bytes()
    return tiktoken.Encoding("o200k", pat_str=SPLIT_PATTERN, mergeable_ranks=unpack_ranks(packed), special_tokens={})


START = {"anthropic": 1.25}
"""Claude's tokenizers gave 1.23 to 1.27 times our count on real sessions."""

EXACT = frozenset({"openai", "exact"})
"""Families that count as we do: their ratio is 1.0 and stays so."""

SHARE = 0.3
"""Weight of the newest report against all before it."""

FEWEST = 200
"""Reports on fewer tokens than this teach nothing: framing outweighs text."""

ENOUGH = 1_000
"""Least tokens of a count ahead of a request that decides on a ratio by itself."""

PLAUSIBLE = (0.5, 3.0)
"""Ratios that are believed."""

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
        self._measured: set[str] = set()

    def of(self, family: str) -> float:
        """Factor for our count; never below 1.0, so that budgets err on the safe side."""
        return self._learnt.get(family, 1.0 if family in EXACT else START.get(family, 1.0))

    def measured(self, family: str) -> bool:
        """True if a count has decided on the ratio; what usage teaches takes several reports to be right."""
        return family in self._measured

    def measure(self, family: str, *, exact: int, counted: int) -> None:
        """Take the ratio of one count by the provider, ahead of a request, as it is.

        Args:
            family: Family of the model that counted.
            exact: Our count of the same request, in o200k tokens; under 1,000 the count is ignored, because what a
                provider adds to every request would outweigh its text.
            counted: The provider's; ignored where it is less than half or more than three times ours.
        """
        low, high = PLAUSIBLE
        if exact >= ENOUGH and low <= counted / exact <= high:
            self._learnt[family] = max(1.0, counted / exact)
            self._measured.add(family)

    def hold(self, family: str, ratio: float) -> None:
        """Go on by this ratio, which a count of a request has told, whatever its size."""
        self._learnt[family] = max(1.0, ratio)

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
        """Restore ratios from `state()` beside those that are known here; implausible entries are ignored."""
        given = {
            family: float(ratio)
            for family, ratio in state.items()
            if isinstance(ratio, int | float) and 1.0 <= ratio <= PLAUSIBLE[1]
        }
        self._learnt = given | self._learnt
