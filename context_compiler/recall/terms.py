"""Split text into search terms: word stems, plus ids and paths both whole and in parts.

English and Russian words are stemmed with Snowball (Porter 1980, 2001), and irregular forms of English verbs count as
their verb ("bought" as "buy"). Words of other scripts with spaces are not stemmed. In scripts without spaces, every
pair of adjacent characters is a term.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from types import MappingProxyType
from typing import Any
from unicodedata import category, normalize

import snowballstemmer  # pyright: ignore[reportMissingTypeStubs] # it ships none

from context_compiler.cache import CACHED

MAX_TERM = 96
"""Maximum length of a term in characters. Longer strings are data that nobody asks for by name."""

SHORT = 20
"""Maximum length in characters of an ordinary word. Longer runs, such as paths, keys or sentences in scripts without
spaces, rarely repeat, so their terms are not cached."""

PROSE = 4_000
"""Characters read of what a person may have written: the middle of a longer text is usually pasted."""


def prose(text: str) -> str:
    """Text without the middle that is beyond `PROSE` characters."""
    return text if len(text) <= PROSE else f"{text[: PROSE // 2]}\n…\n{text[-PROSE // 2 :]}"


STOPS = frozenset(
    "a about again all also am an and any are as at be because been before being but by can could did do does doing"
    " done during for from further had has have having he her here hers him his how i if in into is it its just let me"
    " more most my no nor not now of off on once only or other our ours out over own s same she should so some such t"
    " than that the their theirs them then there these they this those through to too under until up us very was we"
    " were what when where which while who whom why will with would you your yours d ll m o re ve y might must shall"
    " don't didn't doesn't isn't aren't wasn't weren't can't couldn't won't wouldn't shouldn't haven't hasn't hadn't"
    " i'm i've i'd i'll you're you've you'd you'll he's she's it's that's there's what's who's where's how's we're"
    " we've we'd we'll they're they've they'd they'll let's go continue ok okay yes please thanks thank hi hello hey"
    " и в на не что как это я ты мы вы он она они но а по за из у о к с от для или же ли бы то так был была было были"
    " der die das und ist nicht ein eine ich du wir sie es mit auf für von zu den dem was wie wo wann le la les des et"
    " est un une je tu nous vous il elle que qui dans pour sur el los las y en no por con una del se lo".split()
)
"""Stop words: they carry no information about the subject of a question."""

IRREGULAR = MappingProxyType(
    {
        form: verb
        for verb, *forms in map(
            str.split,
            "arise arose arisen|become became|begin began begun|bend bent|bind bound|bite bit bitten|blow blew blown"
            "|break broke broken|breed bred|bring brought|build built|burn burnt|buy bought|catch caught"
            "|choose chose chosen|cling clung|come came|creep crept|deal dealt|dig dug|dive dove|draw drew drawn"
            "|dream dreamt|drink drank drunk|drive drove driven|eat ate eaten|fall fell fallen|feed fed|feel felt"
            "|fight fought|find found|fly flew flown|forbid forbade forbidden|forget forgot forgotten"
            "|forgive forgave forgiven|freeze froze frozen|get got gotten|give gave given|go went gone"
            "|grow grew grown|hang hung|hear heard|hide hid hidden|hold held|keep kept|kneel knelt|know knew known"
            "|lead led|leap leapt|learn learnt|leave left|lend lent|light lit|lose lost|make made|mean meant|meet met"
            "|overcome overcame|pay paid|prove proven|ride rode ridden|ring rang rung|rise risen|run ran|say said"
            "|see saw seen|seek sought|sell sold|send sent|sew sewn|shake shook shaken|shine shone|shoot shot"
            "|show shown|shrink shrank|sing sang sung|sink sank sunk|sit sat|sleep slept|slide slid"
            "|speak spoke spoken|spend spent|spin spun|spring sprang sprung|stand stood|steal stole stolen"
            "|stick stuck|sting stung|strike struck|swear swore sworn|sweep swept|swim swam swum|swing swung"
            "|take took taken|teach taught|tear tore torn|tell told|think thought|throw threw thrown"
            "|undergo underwent undergone|understand understood|wake woke woken|wear wore worn|weep wept|win won"
            "|withdraw withdrew withdrawn|write wrote written".split("|"),
        )
        for form in forms
    }
)
"""English verb forms that stemming does not map to their verb, with that verb."""

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fff\u3040-\ua4cf\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
_MARKS = "".join(char for char in map(chr, range(ord("\u0e00"))) if category(char).startswith("M"))
"""Vowel signs and other marks, which are parts of words but not of `\\w`. Those of later scripts are in `_UNSPACED`."""
_SPACED = rf"[^\W_{_UNSPACED}]+(?:[{_MARKS}][^\W_{_UNSPACED}]*)*"
_WORD = re.compile(rf"[{_UNSPACED}]+|{_SPACED}(?:['’]{_SPACED})?")
_ASCII = re.compile(r"[a-z0-9]+(?:'[a-z0-9]+)?")
_JOINED = re.compile(rf"[\w{_MARKS}./\\:@#+-]+")
_MARKED = re.compile(r"[\d_/\\@]|\w[.:]\w|[a-z][A-Z]")
_PART = rf"(?:[^\W{_UNSPACED}]|[{_MARKS}])"
_IN_WORD = re.compile(rf"(?<={_PART})(?=[./\\:@#+-]?{_PART})|(?<={_PART}[./\\:@#+-])(?={_PART})")
"""A place within a word, an id or a number; none is within a word of a script without spaces."""
_APART = re.compile(r"[\W_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])|_")


def words(text: str) -> list[str]:
    """Words of a text in lower case; in scripts without spaces, every pair of adjacent characters."""
    lowered = text.lower()
    if lowered.isascii():
        return _ASCII.findall(lowered)
    return list(_split(_WORD.findall(normalize("NFC", lowered))))


def _split(runs: Sequence[str]) -> Iterator[str]:
    for run in runs:
        if run[0] < "\u0e00" or len(run) < 3:
            yield run
        else:
            yield from map("".join, pairwise(run))


def _stemmer(language: str) -> Callable[[str], str]:
    made: Any = snowballstemmer.stemmer(language)  # pyright: ignore[reportUnknownMemberType] # it has no types
    return made.stemWord


_STEMMERS = {language: _stemmer(language) for language in ("english", "russian")}


@lru_cache(maxsize=CACHED)
def stem(word: str) -> str:
    """Stem of one lower-case word; empty for a stop word."""
    if word in STOPS:
        return ""
    if word.isdigit():
        return word
    language = "english" if word.isascii() else "russian" if "\u0400" <= word[0] <= "\u04ff" else ""
    return _STEMMERS[language](IRREGULAR.get(word, word).replace("ё", "е")) if language else word


_FORMS: Mapping[str, Sequence[str]] = {
    stem(verb): tuple(form for form in IRREGULAR if IRREGULAR[form] == verb) for verb in set(IRREGULAR.values())
}
"""Irregular forms of a verb, by the stem of the verb."""


def terms(text: str) -> Iterator[str]:
    """Terms of a text with repetitions, in no particular order."""
    runs = text.split()
    return chain.from_iterable([_run_terms_cached(run) if len(run) <= SHORT else _run_terms(run) for run in runs])


def _run_terms(run: str) -> tuple[str, ...]:
    """Terms of a run of characters without white space. No term spans two runs."""
    run = run if run.isascii() else normalize("NFC", run)
    spoken = words(run.replace("’", "'").replace("_", " "))
    return *filter(None, map(stem, (word for word in spoken if len(word) <= MAX_TERM))), *identifiers(run)


_run_terms_cached = lru_cache(maxsize=CACHED)(_run_terms)


@lru_cache(maxsize=4_096)
def passage_terms(passage: str) -> Counter[str]:
    """Term counts of a passage, not to be changed; cached because passages are scored at every turn."""
    return Counter(terms(passage))


def holds_whole(text: str, piece: str) -> bool:
    """True if a text contains a piece that does not begin or end within a word there.

    A run of more than `MAX_TERM` characters is no word, because a piece may be cut within it.
    """
    start = text.find(piece)
    while start >= 0 and (_is_in_word(text, start) or _is_in_word(text, start + len(piece))):
        start = text.find(piece, start + 1)
    return start >= 0


def _is_in_word(text: str, place: int) -> bool:
    if not _IN_WORD.match(text, place):
        return False
    before, behind = text[max(0, place - MAX_TERM) : place].split()[-1], text[place : place + MAX_TERM].split()[0]
    return len(before) + len(behind) <= MAX_TERM


def fold(text: str) -> str:
    """Normalize a text so that it can be searched for the `beginnings` of terms."""
    lowered = text.lower()
    return lowered if lowered.isascii() else normalize("NFC", lowered).replace("’", "'").replace("ё", "е")


def beginnings(term: str) -> tuple[str, ...]:
    """Substrings at least one of which occurs in every folded text that has this term.

    The first is the prefix that a stem shares with all regular forms of its word: everything but the last letter.
    """
    if term.startswith("="):
        return (fold(term[1:]),)
    prefix = term if term.isdigit() or not term.isascii() else term[: -2 if term.endswith("ie") else -1]
    return prefix, *_FORMS.get(term, ())


def identifiers(text: str) -> Iterator[str]:
    """Ids and paths as whole terms, prefixed with `=`, and parts that `words` misses: app and main of `app2Main`."""
    for run in _JOINED.findall(text):
        whole = run.strip("./\\:@#+-") if len(run) <= MAX_TERM else ""
        if len(whole) < 3 or whole.isdigit() or whole.islower() and whole.isalpha() or not _MARKED.search(whole):
            continue
        yield f"={whole.lower()}"
        for word in words(whole.replace("_", " ")) if whole.islower() else _APART.split(whole):
            parts = _HUMP.sub(" ", word).split()
            if len(parts) > 1:
                yield from filter(None, (stem(part.lower()) for part in parts if len(part) > 1))
