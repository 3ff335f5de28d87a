"""Prompts that ask for something.

A prompt asks if it is short and has a question mark, or begins with a word that asks for something, in English,
German, French, Spanish, Italian, Portuguese, Russian, Chinese or Japanese. Of a longer one its last or its first
paragraph or line counts.
"""

from __future__ import annotations

import re

from context_compiler.tokens import TokenCounter

LONGEST = 120
"""Tokens; a longer prompt has other business than a question about the past, unless its last or first line asks."""

PARAGRAPH = "\n\n"

CHARACTERS = 1_200
"""No text with more characters is worth counting."""

_MARK = re.compile(r"[?\uff1f\u061f\u055e\u1367\u2047-\u2049\u203d\u2e2e\ua60f\ua6f7\u037e]|[\u0370-\u03ff];")
_WORDS = (
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
_LEADS = "and|but|so|please|ok|okay|also|hey|hi|now|then"
_ASKING = re.compile(rf"(?i)\W*(?:(?:{_LEADS})\W+)*(?:{'|'.join(_WORDS.split())})(?!\w)")
_INTERROGATIVES = (
    "(?:what|who|where|how|when|why)(?:'?s)? whom whose which"
    " wer wen wem wessen wann wo wohin woher warum wieso weshalb welche[rsnm]? wie"
    " qui quand où pourquoi quel(?:le)?s? comment combien quién qué cuándo cuál(?:es)? dónde cuánt[oa]s?"
    " chi quando dove perché quale quali quant[oaei] quem onde qual quais quanto"
    " кто что кого кому чей когда где куда откуда почему зачем как какой какая какое какие сколько"
)
_REMINDERS = (
    "remind me|tell me (?:again|once more|what|which|who|whom|whose|when|where|why|how)"
    "|(?:do )?(?:yo)?u (?:still )?remember"
    "|(?:recall|repeat) (?:what|which|who|whom|whose|when|where|why|how)"
    "|i(?:'ve| have)? (?:forgot(?:ten)?|(?:can'?t|don'?t|do not|cannot) (?:recall|remember))"
    " (?:what|which|who|whom|whose|when|where|why|how)"
    "|erinnere mich|sage? mir|rappelle[- ]moi|dis[- ]moi|recuérdame|dime|ricordami|dimmi|lembre-me|diga-me"
    "|напомни|скажи"
)
_QUESTION = re.compile(
    rf"(?i)\W*(?:(?:{_LEADS})\W+)*(?:{'|'.join(_INTERROGATIVES.split())}|{_REMINDERS})(?!\w)|提醒我|告诉我|告訴我"
)
_ORDER = re.compile(
    rf"(?i)\W*(?:(?:{_LEADS})\W+)*(?:(?:can|could|would|will|may) (?:you|we|i)|let'?s|shall we)"
    r"(?! (?:please )?(?:remind|recall|remember|repeat|tell me (?:again|what|which|who|when|where|how)))(?!\w)"
)
_SENTENCE = re.compile(r"(?:[^.!?\uff1f\u061f。！\n]|[.!?](?=\S))+[.!?\uff1f\u061f。！\n]*")
_UNSPACED = re.compile(
    "什么|谁|哪|几|怎么|为什么|多少|吗|告诉|列出|总结|请"  # Chinese
    "|何|誰|いつ|どこ|なぜ|どう|どの|教えて|か。?$"
)


def is_short(text: str, counter: TokenCounter) -> bool:
    """True if a prompt is short enough to be nothing but a question."""
    return len(text) <= CHARACTERS and counter.text(text) <= LONGEST


def asking_part(text: str, counter: TokenCounter) -> str:
    """The paragraph or line of a long prompt that asks, its last or its first: what is pasted comes beside a question.

    The whole text where neither asks, or it is short.
    """
    plain = text.strip()
    if is_short(plain, counter):
        return plain
    breaks = (PARAGRAPH, "\n")
    ends = (end.strip() for at in breaks for end in (plain.rpartition(at)[2], plain.partition(at)[0]))
    return next((end for end in ends if asks(end, counter)), plain)


def asking_share(text: str) -> float:
    """The share of a prompt that asks, in characters: the rest tells something, and the talk goes on from there."""
    sizes = [(len(one), _asks(one)) for one in _SENTENCE.findall(text.strip())]
    return sum(size for size, asking in sizes if asking) / max(1, sum(size for size, _ in sizes))


def _asks(text: str) -> bool:
    return bool(_MARK.search(text) or _ASKING.match(text) or _UNSPACED.search(text))


def asks(text: str, counter: TokenCounter, *, strict: bool = False) -> bool:
    """True if a prompt asks for something; with `strict`, orders such as "can you fix that?" do not count."""
    plain = text.strip()
    if not plain or not is_short(plain, counter):
        return False
    if strict:
        questions = [one for one in _SENTENCE.findall(plain) if _MARK.search(one)]
        return any(not _ORDER.match(one) for one in questions) or bool(_QUESTION.match(plain))
    return _asks(plain)
