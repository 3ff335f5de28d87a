"""Find the standing instructions in users' prompts, and decide if a prompt asks for something.

Instructions are found by cues such as "from now on", "never push …", "unless I say so". Each cue is a pattern in a
table, and each table has its own rule for where a cue counts: `ORDERS` only at the beginning of a clause, so that "I
never went" and "have you ever" do not match. A question only matches if it is a polite order. The tables were tuned on
real messages to assistants.

A prompt asks for something if it is short and either contains a question mark or begins with a word such as "what" or
"list", in English, German, French, Spanish, Italian, Portuguese, Russian, Chinese, Japanese or Korean. In a longer
prompt, only the first or last paragraph or line can be the question.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from context_compiler.cache import Memo
from context_compiler.ids import text_hash
from context_compiler.messages.fences import clip, one_line
from context_compiler.messages.history import History
from context_compiler.messages.items import Kind
from context_compiler.messages.turns import Outline
from context_compiler.tokens import TokenCounter

MAX_SENTENCE = 2_000
"""Maximum characters of a sentence; anything longer is taken for data."""

MAX_CACHED_PROMPTS = 1_024
"""Number of texts whose instructions are cached; the same prompts recur at every compile."""

_ENDS = re.compile(
    r"""(?x)
      (?<=[.!?…]) \s+ | (?<=[.!?…]["')\]*’”»]) \s+ | (?<=[؟۔।॥]) \s+
    | (?<=[。！？]) (?![。！？”」』）]) \s* | (?<=[。！？][”」』）]) \s*
    | \n \s*
    """
)
_ABBREVIATED = re.compile(
    r"(?i)(?:^|[\s(])(?:e\.g|i\.e|etc|vs|cf|no|approx|dr|mrs?|ms|st|fig|resp|incl|z\.b|bzw|usw|[a-z])\.$"
)


def sentence_ends(text: str, start: int = 0) -> Iterator[int]:
    """Positions at which the next sentence or line begins, searched from `start`."""
    for match in _ENDS.finditer(text, start):
        at = match.start()
        if "\n" in match.group() or text[at - 1] != "." or not _ABBREVIATED.search(text, max(0, at - 8), at):
            yield match.end()


_ASKING = "(?:ask|tell|say|request|mention|type|write|send|paste|give)"
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
    r"|yet|any|so|much|more|less|better|enough|to|tired|forget (?!to)|say never|[a-z]+ed|[a-z]+[a-rtv-z]s)\b)[a-z]",
    r"(?<!, )(?<!and )always "
    r"(?!(?:been|was|had|a|the|in|here|there|up|on|so|full|good|great|nice|fun|happy|[a-z]+ed|[a-z]+ing)\b)[a-z]",
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

_FILLER = (
    r"(?:(?:and|but|so|or|then|also|just|please|pls|plz|kindly|ok|okay|well|yes|yeah|no|oh|omfg|omg|wtf|hey|hi|dude|again"
    r"|in particular|as a rule|next|instead|note|remember|important|finally|lastly|in general)[,:!.]? ){0,4}"
)
_BEGINS = r"(?:^|[,;:(…] |\.\.\.? | [-–—] |\b(?:and|but|then) (?=do not|don't|dont|never|please))"
_ANYWHERE = re.compile(rf"\b(?:{'|'.join(ANYWHERE)})|{'|'.join(UNSPACED)}")
_OPENING = re.compile("|".join(OPENINGS))
_ORDER = re.compile(rf"{_BEGINS}{_FILLER}(?:{'|'.join(ORDERS)})")
_FRIENDLY = re.compile("|".join(FRIENDLY))
_POLITE = re.compile("|".join(POLITE))

_QUOTED = re.compile(
    r"`[^`]{0,400}`|\"[^\"]{0,400}\"|“[^”]{0,400}”|«[^»]{0,400}»|「[^」]{0,400}」|(?<!\w)'[^']{0,400}'(?!\w)"
)
_LISTED = re.compile(r"^(?:[-*•·] +|\(?\d{1,3}[.)] +|\[[ x]\] +|#+ +){1,3}")
_CODE = re.compile(r"[{}<>=;|\\\[\]$^~]")
_PASTED = (">", "+ ", "@", "//", "/*", "$ ", "\u279c")


_instructions: Memo[str, tuple[str, ...]] = Memo(MAX_CACHED_PROMPTS)
"""Cached instructions by the hash of the text, because a prompt may have megabytes."""


def instruction_sentences(text: str) -> tuple[str, ...]:
    """Standing instructions in a user's text: whole sentences, verbatim, each on one line.

    Fenced code, quoted lines and sentences that look like code are skipped.
    """
    name = text_hash(text)
    return _instructions.get_or_make(name, lambda: _find_sentences(text))


def _find_sentences(text: str) -> tuple[str, ...]:
    found: list[str] = []
    start = 0
    fenced = False
    for end in (*sentence_ends(text), len(text)):
        sentence, start = text[start:end], end
        if "```" in sentence or "~~~" in sentence:
            fenced ^= (sentence.count("```") + sentence.count("~~~")) % 2 == 1
        elif not fenced and 3 < len(sentence) <= MAX_SENTENCE:
            shown = one_line(sentence, MAX_SENTENCE)
            if is_instruction(shown):
                found.append(shown)
    return tuple(found)


def is_instruction(sentence: str) -> bool:
    """True if a sentence is a standing instruction or prohibition."""
    if sentence.startswith(_PASTED):
        return False
    plain = _LISTED.sub("", _QUOTED.sub("_", sentence.replace("’", "'"))).strip(" *_").lower()
    if len(_CODE.findall(plain)) > 1 + len(plain) // 16:
        return False
    if plain.endswith(("?", "？", "؟")):
        return bool(_POLITE.search(plain))
    if _ANYWHERE.search(plain) or _OPENING.match(plain):
        return True
    return bool(_ORDER.search(plain)) and not _FRIENDLY.search(plain)


INSTRUCTION_WIDTH = 400
"""Maximum characters of an instruction; longer ones are clipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """A sentence with a standing instruction or prohibition."""

    position: int
    """Position of its message."""
    turn: int
    """0-based ordinal of its turn; -1 before the first prompt."""
    text: str


def standing_instructions(history: History, outline: Outline, positions: Iterable[int]) -> tuple[Instruction, ...]:
    """Standing instructions and prohibitions that users gave in these messages, oldest first.

    Only the users' own words count: no tool results, no answers, nothing this package wrote, and no code or quotations
    in a prompt. If an instruction is repeated, only its last occurrence is returned.
    """
    starts = outline.starts
    found: dict[str, Instruction] = {}
    for position in sorted(set(positions)):
        for item in history.readings[position].items:
            if item.kind is not Kind.USER or item.mark is not None:
                continue
            turn = outline.turns[bisect_right(starts, position) - 1].index
            for sentence in instruction_sentences(item.text):
                key = "".join(filter(str.isalnum, sentence.casefold()))
                found.pop(key, None)
                found[key] = Instruction(position=position, turn=turn, text=clip(sentence, INSTRUCTION_WIDTH))
    return tuple(found.values())


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
    ends = (end.strip() for at in breaks for end in (plain.rpartition(at)[2], plain.partition(at)[0]))
    return next((end for end in ends if asks(end, counter)), plain)


def asking_share(text: str) -> float:
    """Fraction of a prompt's characters that are in questions; the rest is new information."""
    sizes = [(len(one), _is_request(one)) for one in _SENTENCE.findall(text.strip())]
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
    if strict:
        if any(_is_question(one) for one in _SENTENCE.findall(plain)):
            return True
        return bool(_QUESTION.match(plain) or _QUESTION_UNSPACED.search(plain))
    return _is_request(plain)


def _is_question(sentence: str) -> bool:
    """True if a sentence is a question, or an order that refers to what was said before."""
    if _MARK.search(sentence) and not _ORDER_ASKED.match(sentence):
        return True
    return bool(_ASKS.match(sentence) and _SAID_BEFORE.search(sentence))
