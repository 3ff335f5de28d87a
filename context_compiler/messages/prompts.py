"""Split prompts into sentences, and decide if a prompt asks for something.

A prompt asks for something if it is short and either contains a question mark or begins with a word such as "what" or
"list", in English, German, French, Spanish, Italian, Portuguese, Russian, Chinese, Japanese or Korean. In a longer
prompt, only the first or last paragraph or line can be the question.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from context_compiler.tokens import TokenCounter

MAX_SENTENCE = 2_000
"""Maximum characters of a sentence; anything longer is taken for data."""

_ENDS = re.compile(
    r"""(?x)
      (?<=[.!?…]) \s+ | (?<=[.!?…]["')\]*’”»]) \s+ | (?<=[؟۔।॥]) \s+
    | (?<=[。！？]) (?![。！？”」』）]) \s* | (?<=[。！？][”」』）]) \s*
    | \n \s*
    """
)
_ABBREVIATED = re.compile(
    r"(?i)(?:^|[\s(])(?:e\.g|i\.e|etc|vs|cf|no|approx|prof|dr|mrs?|ms|st|fig|resp|incl|inc|ltd|corp|jan|feb|aug|sept?|oct"
    r"|nov|dec|z\.b|bzw|usw|nr|hr|ca|inkl|evtl|ggf|mme|mlle|sra?|srta|núm|pág|[a-z])\.$"
)


def sentence_ends(text: str, start: int = 0, *, wrapped: bool = False) -> Iterator[int]:
    """Positions at which the next sentence or line begins, searched from `start`.

    A sentence that begins with a capital does not end before a small letter: "after 8 p.m. unless". If `wrapped`, it
    does not end where a line is merely full either.
    """
    letter = _LETTER.search(text, start)
    capital = _is_capital(letter, start)
    for match in _ENDS.finditer(text, start):
        stop, end = match.span()
        is_line = "\n" in match.group()
        goes_on = text[end : end + 1].islower()
        if wrapped and is_line and match.group().count("\n") == 1:
            is_line = text[stop - 1 : stop] in _LINE_ENDS
            goes_on = goes_on or bool(_NUMBER.match(text, end))
        if not is_line and capital and goes_on:
            continue
        if is_line or text[stop - 1] != "." or not _ABBREVIATED.search(text, max(0, stop - 8), stop):
            if letter is not None and letter.start() < end:
                letter = _LETTER.search(text, end)
            capital = _is_capital(letter, end)
            yield end


_LINE_ENDS = ".!?…:;"
"""Last characters of a line that is not merely full."""
_NUMBER = re.compile(r"\d+(?!\d|[.)]\s)")
"""A number that is not that of an item in a list."""
_LETTER = re.compile(r"[^\W\d_]")


def _is_capital(letter: re.Match[str] | None, start: int) -> bool:
    """True if the first letter of a sentence that begins at `start` is a capital."""
    return letter is not None and letter.start() < start + MAX_SENTENCE and letter[0].isupper()


def count_fences(text: str, start: int = 0, end: int | None = None) -> int:
    """Number of marks in a text that open or close a fenced block."""
    return text.count("```", start, end) + text.count("~~~", start, end)


def sentence_spans(text: str, *, wrapped: bool = False) -> Iterator[tuple[int, int, bool]]:
    """Start and end of each sentence without a code fence in it, and True if it is in a fenced block."""
    start, fenced = 0, False
    for end in (*sentence_ends(text, wrapped=wrapped), len(text)):
        fences = count_fences(text, start, end)
        if not fences:
            yield start, end, fenced
        elif fences % 2:  # an odd number of fences opens or closes a block
            fenced = not fenced
        start = end


def replace_sentence(text: str, sentence: str, by: str) -> str:
    """Replace every occurrence of a sentence in a text, also where it is broken into lines."""
    return _broken(sentence).sub(lambda _: by, text) if "\n" in text else text.replace(sentence, by)


@lru_cache(maxsize=4_096)
def _broken(sentence: str) -> re.Pattern[str]:
    return re.compile(r"\s+".join(map(re.escape, sentence.split())))


QUESTION_TOKENS = 120
"""Maximum tokens of a question; in a longer prompt, only the first or last paragraph or line can be one."""

PARAGRAPH = "\n\n"

QUESTION_CHARACTERS = 1_200
"""Maximum characters of a question; a longer text exceeds the token limit anyway, so its tokens are not counted."""

_MARK = re.compile(r"[?\uff1f\u061f\u055e\u1367\u2047-\u2049\u203d\u2e2e\ua60f\ua6f7\u037e]|[\u0370-\u03ff];")
_REQUEST_WORDS = (
    "what who whom whose when where why which how tell show remind list name give summari[sz]e recap describe explain"
    " recall find compare quote repeat remember suggest recommend help"
    " do does did is are was were am have has had can could would will should shall may might"
    " what'?s who'?s where'?s how'?s when'?s why'?s isn'?t aren'?t didn'?t don'?t doesn'?t"
    " wer wen wem wessen wann wo wohin woher warum wieso weshalb welche[rsnm]? wie was nenne? zeige? sage? erkläre?"
    " fasse? erinnere? gib liste beschreibe?"
    " qui que quoi quand où pourquoi quel(?:le)?s? comment combien est-ce dis donne montre rappelle résume liste"
    " quién qué cuándo cuál(?:es)? dónde cómo cuánt[oa]s? dime muestra recuérda(?:me)? resume enumera explica"
    " chi cosa quando dove perché quale quali come quant[oaei] dimmi mostra ricorda(?:mi)? riassumi elenca"
    " quem quê onde qual quais quanto diga mostre lembre resuma liste"
    " кто что кого кому чей когда где куда откуда почему зачем как какой какая какое какие сколько скажи покажи"
    " напомни перечисли расскажи назови опиши"
)
"""First words of prompts that ask, in a chat: question words, auxiliary verbs and requests."""
_LEADS = "and|but|so|please|ok|okay|also|hey|hi|now|then"
_ASKS = re.compile(rf"(?i)\W*(?:(?:{_LEADS})\W+)*(?:{'|'.join(_REQUEST_WORDS.split())})(?!\w)")
_QUESTION_WORDS = (
    "(?:what|who|where|how|when|why)(?:'?s)? whom whose which"
    " wer wen wem wessen wann wo wohin woher warum wieso weshalb welche[rsnm]? wie"
    " qui quand où pourquoi quel(?:le)?s? comment combien quién qué cuándo cuál(?:es)? dónde cuánt[oa]s?"
    " chi quando dove perché quale quali quant[oaei] quem onde qual quais quanto"
    " кто что кого кому чей когда где куда откуда почему зачем как какой какая какое какие сколько"
)
"""Those of `_REQUEST_WORDS` that also count in tool work, where prompts that begin with other words are mostly orders.
A new language needs its words in both."""
_FACT_WANTED = "(?:tell|give|show|send|read) me (?:the|my|our|his|her|their)"
"""Beginning of an order that wants a fact rather than work."""
_REMINDERS = (
    f"{_FACT_WANTED}|remind me|tell me (?:again|once more|what|which|who|whom|whose|when|where|why|how)"
    "|(?:do )?(?:yo)?u (?:still )?remember"
    "|(?:recall|repeat) (?:what|which|who|whom|whose|when|where|why|how)"
    "|i(?:'ve| have)? (?:forgot(?:ten)?|(?:can'?t|don'?t|do not|cannot) (?:recall|remember))"
    " (?:what|which|who|whom|whose|when|where|why|how)"
    "|erinnere mich|sage? mir|nenne? mir|gib mir|rappelle[- ]moi|dis[- ]moi|donne[- ]moi|recuérdame|dime|dame|ricordami"
    "|dimmi|dammi|lembre-me|diga-me"
    "|напомни|скажи"
)
_QUESTION = re.compile(rf"(?i)\W*(?:(?:{_LEADS})\W+)*(?:{'|'.join(_QUESTION_WORDS.split())}|{_REMINDERS})(?!\w)")
_QUESTION_UNSPACED = re.compile(
    "什么|什麼|谁|誰|哪|多少|几(?:个|天|点|次|月|号)|[了过過][吗嗎][。\\s]*$|提醒我|告[诉訴]我"
    "|何(?!か)|いつ(?!も)|どこ|なぜ|どの|どれ|教えて|(?:です|でした|ました)か[。\\s]*$|っけ[。\\s]*$"
    "|무엇|무슨|누구|언제|어디|얼마|알려"
)
"""Questions in Chinese, Japanese and Korean; orders like "can you do that" end in ますか or 能…吗 and do not match."""
_ORDER_ASKED = re.compile(
    rf"(?i)\W*(?:(?:{_LEADS})\W+)*(?:(?:can|could|would|will|may) (?:you|we|i)|let'?s|shall we)"
    r"(?! (?:(?:please|also|just) )*(?:remind|recall|remember|repeat|tell me (?:again|what|which|who|when|where|how)"
    rf"|{_FACT_WANTED}))(?!\w)"
)
_SAID_BEFORE = re.compile(
    r"(?i)\b(?:i|we|you)(?:'ve|'d| have| had)? (?:(?:just|already|also|first|originally|previously) )?"
    r"(?:told|said|mentioned|brought up|discussed|talked (?:about|through)|asked (?:for|about|you)|agreed|decided"
    r"|suggested|recommended|explained|went (?:over|through)|covered|worked on)\b|\bdid (?:i|we|you)\b"
    r"|\b(?:summar|recap|overview)\w*\b.{0,60}\b(?:i|we|my|our)\b"
    r"|\b(?:our|this|the) (?:whole |entire )?(?:conversation|chat|discussion)s?\b"
    r"|\bearlier\b|\b(?:ich|wir) .{0,60}\b(?:gesagt|erwähnt|besprochen|genannt|vereinbart)|\bvorhin\b"
    r"|\b(?:ai|as|avons|avez) (?:dit|mentionné|évoqué|discuté|convenu)|\b(?:dije|mencioné|hablamos|acordamos)\b"
    r"|\b(?:ho|hai|abbiamo) (?:detto|menzionato|discusso|deciso)\b|\b(?:eu disse|mencionei|falamos|combinamos)\b"
    r"|\b(?:я|мы|ты|вы) .{0,40}\b(?:говорил|сказал|упоминал|обсуждал|обсудил|договорил)"
)
"""Words that refer to what was said before. With them, an order such as "can you list …?" asks about the past."""
_SENTENCE = re.compile(r"(?:[^.!?\uff1f\u061f。！\n]|[.!?](?=\S))+[.!?\uff1f\u061f。！\n]*")
_ASKS_UNSPACED = re.compile(
    "什[么麼]|谁|哪|[几幾]|怎[么麼]|多少|[吗嗎]|告[诉訴]|列出|[总總][结結]|[请請][问問]|[给給]我"  # Chinese
    "|何|誰|いつ|どこ|なぜ|どう|どの|教えて|か。?$"
    "|무엇|무슨|뭐|누구|언제|어디|어떤|어떻게|왜|얼마|몇|알려|까[.\\s]*$"
)


def is_short(text: str, counter: TokenCounter) -> bool:
    """True if a prompt is short enough to be only a question."""
    return len(text) <= QUESTION_CHARACTERS and counter.text(text) <= QUESTION_TOKENS


def asking_part(text: str, counter: TokenCounter) -> str:
    """Question in a long prompt: its last or first paragraph or line, because the rest is often pasted text.

    Returns the whole text if it is short or if none of these asks for something.
    """
    plain = text.strip()
    if is_short(plain, counter):
        return plain
    breaks = (PARAGRAPH, "\n")
    ends = (end.strip() for mark in breaks for end in (plain.rpartition(mark)[2], plain.partition(mark)[0]))
    return next((end for end in ends if asks(end, counter)), plain)


def asking_share(text: str) -> float:
    """Fraction of a prompt's characters that are in questions; the rest is new information."""
    sizes = [(len(sentence), _is_request(sentence)) for sentence in _SENTENCE.findall(text.strip())]
    return sum(size for size, asking in sizes if asking) / max(1, sum(size for size, _ in sizes))


def _is_request(text: str) -> bool:
    return bool(_MARK.search(text) or _ASKS.match(text) or _ASKS_UNSPACED.search(text))


def asks(text: str, counter: TokenCounter, *, strict: bool = False) -> bool:
    """True if a prompt is short and asks for something.

    With `strict`, an order such as "can you fix that?" does not count unless it refers to what was said before.
    """
    plain = text.strip()
    if not plain or not is_short(plain, counter):
        return False
    if not strict:
        return _is_request(plain)
    asking = any(map(_is_question, _SENTENCE.findall(plain)))
    return asking or bool(_QUESTION.match(plain) or _QUESTION_UNSPACED.search(plain))


def _is_question(sentence: str) -> bool:
    """True if a sentence is a question, or an order that refers to what was said before."""
    if _MARK.search(sentence) and not _ORDER_ASKED.match(sentence):
        return True
    return bool(_ASKS.match(sentence) and _SAID_BEFORE.search(sentence))
