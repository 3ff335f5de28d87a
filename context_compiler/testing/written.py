"""Tests written from a record: the recording, masked, and what held, or what one failing request lacks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from math import ceil
from pathlib import Path
from typing import Any, cast

from context_compiler.errors import SettingsError
from context_compiler.lazy import require_extra
from context_compiler.messages.bodies import load_messages
from context_compiler.messages.history import History
from context_compiler.messages.items import Kind
from context_compiler.messages.prompts import asks
from context_compiler.messages.rules import rule_sentences
from context_compiler.middleware.capability import ContextCompiler
from context_compiler.recall.changes import Changes, sentences, values
from context_compiler.record.redaction import FREE, Redactor
from context_compiler.testing.conversation import Conversation
from context_compiler.testing.recording import Recording, load_session, load_view, prompt_name, recorded_async
from context_compiler.testing.replayer import replay_async
from context_compiler.testing.request import READER

CLAIMS = 20
"""Maximum number of claims of each kind, the newest ones."""

STEP = 500
"""Tokens to which a budget is rounded up."""

PERSONAL = {
    "email": r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}",
    "key": r"\b(?:sk|pk|ghp|xox[abp]|AKIA)[-_]?[A-Za-z0-9_-]{12,}",
    "iban": r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?\b",
    "card": r"(?<!\d)(?<!\d\.)\b\d(?:[ -]?\d){12,}\b(?!\.\d)",
    "phone": r"(?<![\w.+-])(?:\+\d{1,3}|0\d{1,4})(?:[ /-]?\(?\d{2,8}\)?){2,4}(?![\w-])",
}
"""Patterns of personal data, in the order in which they are applied; names of people have none.

A card is any 13 to 19 digits with a correct check digit in a match of its pattern.
"""

CARD, CARD_DIGITS = "card", range(13, 20)

_LITERALS = re.compile(r'"(?:[^"\\]|\\[\s\S]?)*(?:"|\Z)|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?')
"""Strings and numbers in JSON. A string goes on to the end of what is no JSON, so that it is read once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """An assertion about a conversation."""

    check: str
    arguments: tuple[str, ...]
    turn: int
    """Turn in which it is said, from 1."""
    holds: bool

    @property
    def code(self) -> str:
        """Call of the assertion, without the conversation that it is about."""
        return f"assert_{self.check}({', '.join(map(repr, self.arguments))})  # turn {self.turn}"


class Mask:
    """A function that replaces personal data, the same data by the same words."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __call__(self, text: str) -> str:
        """Replace the personal data in a text; what was JSON, such as the arguments of a tool, stays JSON."""
        if _is_json(text):
            return _LITERALS.sub(self._literal, text)
        for kind, pattern in PERSONAL.items():
            text = re.sub(pattern, self._cards if kind == CARD else partial(self._word, kind), text)
        return text

    def _literal(self, match: re.Match[str]) -> str:
        literal = match[0]
        value = json.loads(literal)
        masked = self(value) if isinstance(value, str) else self._data(value)
        return literal if masked == value else json.dumps(masked, ensure_ascii="\\u" in literal)

    def _word(self, kind: str, match: re.Match[str]) -> str:
        return f"[{kind} {self._number(match[0])}]"

    def _cards(self, match: re.Match[str]) -> str:
        """Replace the card numbers in a sequence of groups of digits."""
        text, end, pieces = match[0], 0, list[str]()
        for start, stop in _card_spans(text):
            pieces += [text[end:start], f"[{CARD} {self._number(text[start:stop])}]"]
            end = stop
        return "".join([*pieces, text[end:]])

    def _number(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers) + 1)

    def recording(self, recording: Recording) -> Recording:
        """Replace the personal data in a recording."""
        chain = Redactor(self).chain(READER.read(recording.messages).chain)
        bodies = [json.dumps(self._fields(json.loads(body)), ensure_ascii=False).encode() for body in chain.bodies]
        summaries = {prompt_name(self(prompt)): self(answer) for prompt, answer in recording.answers}
        return Recording(messages=load_messages(bodies), summaries=summaries)

    def _fields(self, value: Any) -> Any:
        """Replace card numbers that are numbers in a message or a part."""
        if isinstance(value, list):
            return [self._fields(element) for element in cast(list[Any], value)]
        if not isinstance(value, dict):
            return value
        fields = cast(dict[str, Any], value)
        return {key: self._data(field) if key in FREE else self._fields(field) for key, field in fields.items()}

    def _data(self, value: Any) -> Any:
        """Replace card numbers that are numbers in user data."""
        if isinstance(value, list):
            return [self._data(element) for element in cast(list[Any], value)]
        if isinstance(value, dict):
            return {key: self._data(field) for key, field in cast(dict[str, Any], value).items()}
        digits = str(value) if isinstance(value, int) else ""
        return 10 ** (len(digits) - 1) + self._number(digits) if _is_card(digits) else value

    def claim(self, claim: Claim) -> Claim:
        """Replace the personal data in a claim."""
        return replace(claim, arguments=tuple(map(self, claim.arguments)))


def _is_json(text: str) -> bool:
    """True if a text is a JSON object or list."""
    try:
        return text.lstrip().startswith(("{", "[")) and json.loads(text) is not None
    except (ValueError, RecursionError):
        return False


def _card_spans(text: str) -> Iterator[tuple[int, int]]:
    """Spans of the card numbers in a sequence of groups of digits."""
    groups = [group.span() for group in re.finditer(r"\d+", text)]
    end = 0
    for index, (start, _) in enumerate(groups):
        stops = [stop for _, stop in groups[index : index + max(CARD_DIGITS)]]
        longest = next((stop for stop in stops[::-1] if _is_card(re.sub(r"\D", "", text[start:stop]))), None)
        if longest is not None and start >= end:
            end = longest
            yield start, end


def _is_card(digits: str) -> bool:
    """True for the digits of a card number, whose last one is the check digit of the others (Luhn)."""
    if len(digits) not in CARD_DIGITS or not digits.isdecimal() or digits.startswith("0"):
        return False
    doubled = (sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
    return (sum(map(int, digits[-1::-2])) + sum(doubled)) % 10 == 0


def find_claims(conversation: Conversation) -> Iterator[Claim]:
    """Claims about what users said and got, each with whether it holds.

    Their rules, sentences of theirs and answers to their questions with values, and values that were changed.
    """
    history = READER.read(conversation.raw)
    rules, facts, answers = dict[str, int](), dict[str, int](), dict[str, int]()
    asked = False
    for position, item in history.items():
        if item.kind is Kind.USER:
            asked = asks(item.text, READER.counter)
            rules |= {rule: position for rule in rule_sentences(item.text) if rule not in rules}
            facts |= {fact: position for fact in sentences(item.text) if values(fact) and fact not in rules}
        elif item.kind is Kind.TEXT and asked:
            answers |= {fact: position for fact in sentences(item.text) if values(fact) and fact not in facts}
    replaced = list(_replaced(history))
    changed = {sentence for sentence, *_ in replaced}
    for texts in (rules, facts, answers):
        unchanged = [(text, position) for text, position in texts.items() if text in rules or text not in changed]
        for text, position in unchanged[-CLAIMS:]:
            yield claim_of(conversation, text, position)
    for _, subject, value, position in replaced[-CLAIMS:]:
        holds = not any(conversation.outdated(subject, value))
        turn = _turn(conversation, position)
        yield Claim(check="newest", arguments=(subject, value), turn=turn, holds=holds)


def claim_of(conversation: Conversation, text: str, position: int) -> Claim:
    """Claim that the requests contain a text, which the message at `position` says first."""
    holds = not any(conversation.missing(text))
    return Claim(check="in_context", arguments=(text,), turn=_turn(conversation, position), holds=holds)


def _replaced(history: History) -> Iterator[tuple[str, str, str, int]]:
    """Sentences with a replaced value: the sentence, its beginning, the newest value, and the position of that."""
    changes = Changes()
    changes.extend(history)
    for position in sorted(changes.later):
        for sentence in {change.sentence: None for change in changes.later[position]}:
            for change in changes.of(position, sentence):
                subject = sentence.partition(change.old)[0].strip() if change.old else ""
                if change.new and len(subject.split()) > 1:
                    yield sentence, subject, change.new, change.at


def _turn(conversation: Conversation, position: int) -> int:
    return sum(READER.one(message).has_prompt for message in conversation.raw[: position + 1])


async def write_test(
    session: str, db: str | Path, out: Path, *, owner: str | None = None, agent: str = ""
) -> list[Claim]:
    """Write a test from a recorded session, and its recording beside it.

    Args:
        session: Name of the session.
        db: Record: a file, or the address of a PostgreSQL database.
        out: File of the test.
        owner: Owner of the session; None finds it among all owners.
        agent: `module:name` of the agent that is tested; without one, a compiler with the recorded budget.

    Raises:
        RecordingError: The record has no such session.
        SettingsError: The file exists or is no Python file, or `agent` is not `module:name`.
    """
    _check_names(out, agent)
    mask = Mask()
    recording = mask.recording(await load_session(session, db, owner))
    conversation = await recorded_async(session, db=db, owner=owner)
    budget = max(request.budget or request.tokens for request in conversation.every)
    if not agent:
        compiler = ContextCompiler(budget=budget, store=None, system=None)
        conversation = await replay_async(recording, None, capabilities=[compiler])
    claims = [mask.claim(claim) for claim in find_claims(conversation)]
    largest = max(request.tokens for request in conversation.every)
    limits = {
        "budget": f"{max(budget, ceil(largest / STEP) * STEP):_}",
        "pairs": "True",
        "compiles": str(len(conversation.rewrites())),
        "cost_of_everything": f"{ceil(conversation.cost_share() * 20) / 20:.2f}",
    }
    checks = [f"{'' if claim.holds else '# did not hold: '}conversation.{claim.code}" for claim in claims]
    _write(out, mask(session), recording, [*checks, f"conversation.{_limits(limits)}"], budget, agent)
    return claims


async def write_case(
    view: int, texts: Sequence[str], db: str | Path, out: Path, *, owner: str | None = None, agent: str = ""
) -> list[Claim]:
    """Write a case from one recorded request: a test with its recording, or a case of a dataset.

    Args:
        view: Number of the request's view.
        texts: Texts that the request should contain; none is what the record finds that it lacks.
        db: Record: a file, or the address of a PostgreSQL database.
        out: File of the test, or a YAML file of a dataset, which may exist.
        owner: Owner of the session; None finds it among all owners.
        agent: `module:name` of the agent that is tested; without one, a compiler with the recorded budget.

    Raises:
        RecordingError: The record has no such view, or not its messages.
        SettingsError: The file or `agent` has no such name, nobody said a text, or the request lacks nothing.
    """
    dataset = out.suffix in {".yaml", ".yml"}
    if dataset:
        require_extra("evals")
    else:
        _check_names(out, agent)
    mask, loaded, request = Mask(), *await load_view(view, db, owner)
    conversation = Conversation(requests=[request])
    conversation.add_messages(loaded.messages)
    claims = [_said(conversation, text) for text in texts] or [
        claim for claim in find_claims(conversation) if not claim.holds
    ]
    if not claims:
        raise SettingsError(f"view {view} lacks no rule or value of its users; name the TEXT that it lacks")
    recording, claims = mask.recording(loaded), [mask.claim(claim) for claim in claims]
    budget = request.budget or request.tokens
    if dataset:
        import_module("context_compiler.testing.evals").save_case(out, f"view {view}", recording, claims, budget)
        return claims
    limits = _limits({"budget": f"{budget:_}", "pairs": "True"})
    checks = [f"conversation.last.{check}" for check in (*(claim.code for claim in claims), limits)]
    _write(out, f"view {view}", recording, checks, budget, agent)
    return claims


def _said(conversation: Conversation, text: str) -> Claim:
    position = next(conversation.positions(text), None)
    if position is None:
        raise SettingsError(f"{text!r:.80}: nobody said this before that request")
    return claim_of(conversation, text, position)


def _check_names(out: Path, agent: str) -> None:
    if agent and not re.fullmatch(r"\w+(\.\w+)*:\w+", agent):
        raise SettingsError(f"--agent {agent!r:.80}: give module:name, such as desk.agents:agent")
    if out.suffix != ".py" or out.exists():
        raise SettingsError(f"--out {out}: give the name of a new Python file, such as tests/test_desk.py")
    if (file := out.with_suffix(".json")).exists():
        raise SettingsError(f"--out {out}: its recording would replace {file}; give another name")


def _limits(limits: Mapping[str, str]) -> str:
    return f"assert_within({', '.join(f'{name}={value}' for name, value in limits.items())})"


def _write(out: Path, name: str, recording: Recording, checks: Sequence[str], budget: int, agent: str) -> None:
    """Write a test with some checks, and its recording beside it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    file = out.with_suffix(".json")
    recording.save(file)
    module, _, subject = agent.partition(":")
    letters = "".join(letter if f"_{letter}".isidentifier() else " " for letter in name.lower())
    slug = "_".join(letters.split()).strip("_") or "session"
    lines = [
        f'"""Written by context-compiler from {slug}; change it as you like."""',
        "",
        f"from {module} import {subject}" if agent else "from context_compiler import ContextCompiler",
        "" if agent else f"\ncompiler = ContextCompiler(budget={budget:_}, store=None, system=None)\n",
        "",
        f"def test_{slug}_keeps_what_was_said(contexts):",
        f"    conversation = contexts.replay({file.name!r}, {subject or 'capabilities=[compiler]'})",
        *(f"    {check}" for check in checks),
        "",
    ]
    out.write_text("\n".join(lines), encoding="utf-8", newline="\n")
