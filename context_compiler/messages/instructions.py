"""Find orders, prohibitions and wishes in users' prompts, as whole sentences.

They are found by cues such as "from now on", "never push …", "unless I say so". Each cue is a pattern in a table, and
each table has its own rule for where a cue counts: `ORDERS` only at the beginning of a clause, so that "I never went"
and "have you ever" do not match. A question only matches if it is a polite order. The tables were tuned on real
messages to assistants.
"""

from __future__ import annotations

import re

from context_compiler.cache import Memo
from context_compiler.ids import text_hash
from context_compiler.messages.fences import one_line
from context_compiler.messages.prompts import MAX_SENTENCE, sentence_spans

MAX_CACHED_PROMPTS = 1_024
"""Number of texts whose instructions are cached; the same prompts recur at every compile."""

_ASKING = "(?:ask|tell|say|request|mention|type|write|send|paste|give)"
_PAST = (
    "(?!(?:exceed|proceed|succeed|embed|feed|heed|speed|shed|shred|seed|breed|bleed|weed|wed|bring|ping|ring|sing|swing"
    r"|string|spring)\b)[a-z]+(?:ed|ing)"
)
"""A participle: a word in -ed or -ing that is not the base form of a verb."""
_DEGREE = "(?:(?:strongly|really|actually|generally|usually|always|much|also|do|still|just|simply) ){0,3}"

ANYWHERE = (
    r"from (?:now|here|this (?:point|moment|day)) on(?:wards?)?\b",
    r"henceforth\b|at all times\b|under no circumstances?\b|(?<=, )in future\b",
    r"(?:(?<=, )|(?<=; ))(?:going|moving) forward(?:,|\.?$)",
    r"for the rest of (?:this|the|our) (?:conversation|chat|session|project|task)\b",
    r"no matter what\b[^.]{0,80}\b(?:do|don't|not|never|you|keep|use|must)\b",
    r"(?<!gonna )(?<!going to )(?<!'ll )(?:do|don't|never|keep|use|must)\b[^.]{0,80}\bno matter what\b",
    rf"(?:when|whenever|if|every time|each time|any ?time) (?:i|we) {_ASKING}\b",
    r"(?:whenever|every time|each time|any ?time) you\b(?=[^.]{0,200}, )",
    r"un(?:less|til) (?:i|we) (?:\w+ ){0,2}(?:say|tell|ask|approve|confirm|agree|request)\b",
    r"without (?:first )?(?:asking|checking with|telling|consulting) (?:me|us|first)\b",
    r"without my (?:\w+ )?(?:permission|approval|ok|okay|consent|confirmation|say-so)\b",
    r"(?:ask|check with|consult|tell|warn) me (?:first|before)\b",
    # what the user wants and does not want
    rf"i(?: would|'d)? {_DEGREE}prefer\b|i(?: would|'d) {_DEGREE}rather (?:you|not)\b",
    r"i (?:always|never|don't ever) (?:want (?!to (?:go|be|feel|leave|do)\b)|need you|expect)",
    rf"i {_DEGREE}(?:don't|do not|dont) (?:want|wish)\b(?! to (?:know|sound|seem|bother|lie|brag|miss|think)\b)",
    r"i(?:'d| would)? (?:want|need|expect|require|like) you to "
    r"(?:always|never|only|not|keep|stop|avoid|remember|ask me|use)\b",
    r"(?:agree|important|essential) that you (?:always|never|only|don't|do not)\b",
    # what must be and what may not
    r"(?:must|shall) (?:not|never|always|only) (?!have\b)|mustn't (?!have\b)",
    r"(?<!\bi )(?<!\bwe )should (?:never|always|only)\b|(?<!\bi )(?<!\bwe )always (?:needs?|requires?) (?!to\b)",
    r"you (?:should not|shouldn't|may not|may only|must|can only) "
    r"(?!(?:be|have|love|feel|really|know|think|enjoy|miss|like|see)\b)",
    r"you are (?:not |only |never )(?:allowed|permitted|to)\b",
    # German, French, Spanish, Portuguese, Italian, Dutch, Polish, Russian
    r"(?:ab (?:jetzt|sofort)|von (?:jetzt|nun) an|künftig|in zukunft|auf keinen fall|unter keinen umständen)\b",
    r"(?:jedes mal,? wenn|denk daran|à partir de maintenant|dorénavant|désormais|en aucun cas|sous aucun prétexte)\b",
    r"chaque fois que (?:je|tu|vous)\b|n'oublie[zs]? (?:pas|jamais)\b|(?:a partir de ahora|de ahora en adelante)\b",
    r"(?:en ningún caso|bajo ninguna circunstancia|no olvides|cada vez que|de agora em diante|a partir de agora)\b",
    r"(?:em hipótese alguma|d'ora in poi|in nessun caso|vanaf nu|in geen geval|od teraz|pod żadnym pozorem)\b",
    r"(?:отныне|впредь|с этого момента|ни в коем случае|ни при каких обстоятельствах)\b",
)
"""Cues that count anywhere in a sentence."""

UNSPACED = (
    r"从现在(?:起|开始)|今后|以后(?:请|都|不要|每次)|务必|切勿|绝对?不(?:要|能|可)|永远不要|无论如何|请(?:始终|总是|一直|不要|勿)",
    r"從現在(?:起|開始)|請(?:始終|不要|勿)|務必|今後は|これからは|必ず|絶対に|決して|ないでください",
    r"(?:앞으로는?|지금부터|항상|반드시|절대로?)\s|من الآن فصاعد|מעכשיו|अब से",
)
"""Cues that count anywhere, in languages without spaces between words, or with endings attached to them."""

OPENINGS = (
    r"(?:going|moving) forward(?:,|\.?$)|in (?:the )?future,|in future [a-z]+, |(?:in particular, )?prefer [a-z]",
    r"(?!.*\bi'll\b).*\bunless (?:explicitly |otherwise )?(?:asked|told|instructed|requested)\b",
    r"(?:every|each|all) [a-z ]{1,40} (?:should|must)\b",
    r"(?:when|whenever|before|after|while) (?:you|[a-z]+ing)\b[^?]*, "
    r"(?:please|use|run|re-run|ask|check|read|write|tell|show) ",
    r"(?:please,? |and |omfg |omg )?(?:make )?no (?!(?:need|problems?|prob|worries|worry|ideas?|thanks|thank|way|doubt"
    r"|one|rush|wonder|longer|matter|luck|kidding|big|it|i|we|that|this|the|there|you|not|clue|yes|guarantees?|errors?|more"
    r"|less|other|regrets?)\b)[a-z][\w-]*(?: (?!(?:since|here|yet|so)\b)[\w-]+(?<!ed)){0,6}(?:, please)?[!.]?$",
    r"(?:bitte )?(?:antworte (?:mir )?(?:immer|nur|auf)|immer|nie|niemals|nur|verwende (?:nie|immer|nur|keine?))\b",
    r"(?:toujours|réponds toujours|veuillez (?:toujours|ne)|ne [\w']+(?: \w+)? (?:jamais|pas))\b",
    r"¡?(?:nunca|jamás|siempre|sempre|mai|responde siempre|всегда|никогда)\b",
    r"(?:不要|禁止|一定要|始终|总是)|(?:دائم|أبد|لا ت)|(?:תמיד|לעולם)|हमेशा",
)
"""Cues at the beginning of a sentence."""

ORDERS = (
    # "don't" and "never" before a verb; the words excluded here are no verbs, or do not make an order
    r"(?:do not|don't|dont|never),? (?:you |ever,? |under any circumstances,? ){0,2}(?!(?:you|i|we|they|worry|mind"
    r"|hesitate|know|think|have|want|need|like|care|see|understand|recall|remember|believe|get|feel|really|even|seem|expect|bother"
    r"|been|was|had|went|got|did|saw|heard|knew|thought|made|felt|done|gone|seen|a|the|again|once|before|in|on|too|quite"
    rf"|yet|any|so|much|more|less|better|enough|to|tired|forget (?!to)|say never|{_PAST}|[a-z]+[a-rtv-z]s)\b)[a-z]",
    r"(?<!, )(?<!and )always "
    rf"(?!(?:been|was|had|a|the|in|here|there|up|on|so|full|good|great|nice|fun|happy|{_PAST})\b)[a-z]",
    r"(?:please|you(?:'ll| will| should| must| need to| have to)) (?:always|never|only)\b",
    r"(?:make sure|be sure|make certain|ensure|see to it) (?!i\b)[a-z]",
    r"(?:remember|keep in mind|bear in mind|don't forget|do not forget)[,:]? (?:to|that|never|always|not) "
    r"(?!(?:time|day|night|trip)\b)",
    r"(?:only|solely) (?:use|write|answer|reply|respond|edit|change|modify|touch|run|call|read|commit|include|output"
    r"|return|show|give|suggest|recommend|book|buy|ask|look|work|make|send|contact|consider|speak|mention|quote|add|remove"
    r"|delete|install|import|fix|update|charge|pay)\b",
    r"use only\b|use [^.?!]{1,80}(?:, (?:not|no|never)\b| instead of\b| rather than\b)",
    r"(?:answer|reply|respond|speak|talk|write) (?:to me |everything |back )?(?:only|in (?!the\b)[a-z]+"
    r"(?:\.?$|, | only| please| from| whenever| unless))",
    r"(?:(?:try to )?avoid|refrain from|stick (?:to|with)|stop [a-z]+ing) [a-z]",
    r"please keep\b"
    r"|keep (?:your|answers|responses|replies|it|everything|all|each|every|the)\b(?! (?:up|going|real|coming))",
    r"leave [^.]{1,60} (?:alone|untouched|as (?:is|they are|it is))\b",
)
"""Cues at the beginning of a clause."""

FRIENDLY = (
    r"give up|lose (?:hope|heart|faith)|stop (?:believing|dreaming|trying)",
    r"be (?:so |too )?(?:hard|afraid|shy|sad|silly|sorry|discouraged|scared)",
    r"let (?:it|that|this|them|anyone|anything|fear)\b",
    r"\b(?:yourself|stress|panic|sweat|dreams?|your (?:heart|passions?|best|goals?))\b",
)
"""Good wishes in the form of an order, which are no instructions."""

POLITE = (
    r"\bfrom now on\b",
    r"\b(?:can|could|would|will) you (?:please )?(?:always|never|only|stop|avoid)\b(?! (?:find|see|get)\b)",
    rf"\bi {_DEGREE}prefer\b|\bi always (?:want|expect)\b",
    r"\b(?:whenever|every time|each time) i (?:ask|say|tell)\b",
)
"""The only cues that count in a question."""

FILLER = (
    r"(?:(?:and|but|so|or|then|also|just|please|pls|plz|kindly|ok|okay|well|yes|yeah|no|oh|omfg|omg|wtf|hey|hi|dude|again"
    r"|in particular|as a rule|next|instead|note|remember|important|finally|lastly|in general)[,:!.]? ){0,4}"
)
_BEGINS = r"(?:^|[,;:(…] |\.\.\.? | [-–—] |\b(?:and|but|then) (?=do not|don't|dont|never|please))"
_ANYWHERE = re.compile(rf"\b(?:{'|'.join(ANYWHERE)})|{'|'.join(UNSPACED)}")
_OPENING = re.compile("|".join(OPENINGS))
_ORDER = re.compile(rf"{_BEGINS}{FILLER}(?:{'|'.join(ORDERS)})")
_FRIENDLY = re.compile("|".join(FRIENDLY))
_POLITE = re.compile("|".join(POLITE))

QUOTED = re.compile(
    r"`[^`]{0,4000}`|\"[^\"]{0,4000}\"|“[^”]{0,4000}”|«[^»]{0,4000}»|„[^“”]{0,4000}[“”]|「[^」]{0,4000}」"
    r"|(?<!\w)'[^']{0,4000}'(?!\w)|‘[^’]{0,4000}’(?!\w)"
)
"""Words between quotation marks, or in code."""
LISTED = re.compile(r"^(?:[-*•·] +|\(?\d{1,3}[.)] +|\[[ x]\] +|#+ +){1,3}")
_CODE = re.compile(r"[{}<>=;|\\\[\]$^~]")
_PASTED = (">", "+ ", "@", "//", "/*", "$ ", "\u279c")


_instructions: Memo[str, tuple[str, ...]] = Memo(MAX_CACHED_PROMPTS)
"""Cached instructions by the hash of the text, because a prompt may have megabytes."""


def instruction_sentences(text: str) -> tuple[str, ...]:
    """Orders, prohibitions and wishes in a user's text: whole sentences, verbatim, each on one line.

    Fenced code, quoted lines and sentences that look like code are skipped.
    """
    return _instructions.get_or_make(text_hash(text), lambda: _find_sentences(text))


def _find_sentences(text: str) -> tuple[str, ...]:
    prose = (text[start:end] for start, end, fenced in sentence_spans(text) if not fenced)
    shown = (one_line(sentence, MAX_SENTENCE) for sentence in prose if 3 < len(sentence) <= MAX_SENTENCE)
    return tuple(filter(is_instruction, shown))


def is_instruction(sentence: str) -> bool:
    """True if a sentence is an order, a prohibition or a wish."""
    if sentence.startswith(_PASTED):
        return False
    plain = plain_sentence(sentence)
    if len(_CODE.findall(plain)) > 1 + len(plain) // 16:
        return False
    if plain.endswith(("?", "？", "؟")):
        return bool(_POLITE.search(plain))
    if _ANYWHERE.search(plain) or _OPENING.match(plain):
        return True
    return bool(_ORDER.search(plain)) and not _FRIENDLY.search(plain)


def plain_sentence(sentence: str) -> str:
    """A sentence in lower case, without list marks and emphasis, and with its quotations replaced by `_`."""
    return LISTED.sub("", QUOTED.sub("_", sentence.replace("’", "'"))).strip(" *_").lower()
