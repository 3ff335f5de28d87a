"""Tests written from a record: the recording, masked, and what held, or what one failing request lacks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from math import ceil
from pathlib import Path

from context_compiler.errors import SettingsError
from context_compiler.lazy import require_extra
from context_compiler.messages.bodies import load_messages
from context_compiler.messages.history import History
from context_compiler.messages.items import Kind
from context_compiler.messages.prompts import asks
from context_compiler.messages.rules import rule_sentences
from context_compiler.middleware.capability import ContextCompiler
from context_compiler.recall.changes import Changes, sentences, values
from context_compiler.record.redaction import Redactor
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
    "card": r"\b(?:\d[ -]?){12,18}\d\b",
    "phone": r"(?<![\w.+-])(?:\+\d{1,3}|0\d{1,4})(?:[ /-]?\(?\d{2,8}\)?){2,4}(?![\w-])",
}
"""Patterns of personal data; names of people have none."""

_PERSONAL = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in PERSONAL.items()))


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
        self._replacements: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        """Replace the personal data in a text."""
        return _PERSONAL.sub(self._replacement, text)

    def _replacement(self, match: re.Match[str]) -> str:
        return self._replacements.setdefault(match[0], f"[{match.lastgroup} {len(self._replacements) + 1}]")

    def recording(self, recording: Recording) -> Recording:
        """Replace the personal data in a recording."""
        chain = Redactor(self).chain(READER.read(recording.messages).chain)
        summaries = {prompt_name(self(prompt)): self(answer) for prompt, answer in recording.answers}
        return Recording(messages=load_messages(list(chain.bodies)), summaries=summaries)

    def claim(self, claim: Claim) -> Claim:
        """Replace the personal data in a claim."""
        return replace(claim, arguments=tuple(map(self, claim.arguments)))


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


def _limits(limits: Mapping[str, str]) -> str:
    return f"assert_within({', '.join(f'{name}={value}' for name, value in limits.items())})"


def _write(out: Path, name: str, recording: Recording, checks: Sequence[str], budget: int, agent: str) -> None:
    """Write a test with some checks, and its recording beside it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    file = out.with_suffix(".json")
    recording.save(file)
    module, _, subject = agent.partition(":")
    slug = re.sub(r"\W+", "_", name).strip("_").lower() or "session"
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
