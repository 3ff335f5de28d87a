"""Prompts that ask for something, told from those that only go on.

A prompt asks if it is short and has a question mark, or begins with a word that asks for something, in English,
German, French, Spanish, Italian, Portuguese, Russian, Chinese or Japanese.
"""

from __future__ import annotations

import re

from context_compiler.tokens import TokenCounter

LONGEST = 120
"""Tokens; a longer prompt has other business than a question about the past."""

CHARACTERS = 1_200
"""No text with more characters is worth counting."""

_MARK = re.compile(r"[?\uff1f\u061f\u055e\u1367\u2047-\u2049\u203d\u2e2e\ua60f\ua6f7\u037e]|[\u0370-\u03ff];")
_WORDS = (
    "what who whom whose when where why which how tell show remind list name give summari[sz]e recap describe explain"
    " recall find compare quote repeat remember suggest recommend help"
    " do does did is are was were am have has had can could would will should shall may might"
    " what's who's where's how's when's isn't aren't didn't don't doesn't"
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
_QUESTION = re.compile(r"(?i)\W*(?:what|who|whom|whose|when|where|why|which|how)(?!\w)")
_ORDER = re.compile(rf"(?i)\W*(?:(?:{_LEADS})\W+)*(?:(?:can|could|would|will) you|let'?s|shall we)(?!\w)")
_UNSPACED = re.compile(
    "什么|谁|哪|几|怎么|为什么|多少|吗|告诉|列出|总结|请"  # Chinese
    "|何|誰|いつ|どこ|なぜ|どう|どの|教えて|か。?$"
)


def asks(text: str, counter: TokenCounter, *, strict: bool = False) -> bool:
    """True if a prompt asks for something; with `strict`, orders such as "can you fix that?" do not count."""
    plain = text.strip()
    if not plain or len(plain) > CHARACTERS or counter.text(plain) > LONGEST:
        return False
    if strict:
        return not _ORDER.match(plain) and bool(_MARK.search(plain) or _QUESTION.match(plain))
    return bool(_MARK.search(plain) or _ASKING.match(plain) or _UNSPACED.search(plain))
