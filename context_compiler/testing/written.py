"""A test written from a recorded session: its recording, masked, and what held in every request when it was written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

from context_compiler.errors import SettingsError
from context_compiler.messages.history import History, load_messages
from context_compiler.messages.items import Kind
from context_compiler.messages.rules import rule_sentences
from context_compiler.middleware.capability import ContextCompiler
from context_compiler.recall.changes import Changes, sentences, values
from context_compiler.record.redaction import Redactor
from context_compiler.testing.conversation import Conversation
from context_compiler.testing.recording import Recording, load_session, prompt_name, recorded_async
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

    def __str__(self) -> str:
        call = f"conversation.assert_{self.check}({', '.join(map(repr, self.arguments))})  # turn {self.turn}"
        return call if self.holds else f"# did not hold when this was written: {call}"


class Mask:
    """A function that replaces personal data, the same data by the same words."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        """Replace the personal data in a text."""
        return _PERSONAL.sub(self._replacement, text)

    def _replacement(self, found: re.Match[str]) -> str:
        kind = found.lastgroup or "data"
        return self._known.setdefault(found[0], f"[{kind} {len(self._known) + 1}]")


def masked(recording: Recording, mask: Mask) -> Recording:
    """A recording without personal data."""
    chain = Redactor(mask).chain(READER.read(recording.messages).chain)
    return replace(recording, messages=load_messages(list(chain.bodies)))


def find_claims(conversation: Conversation) -> Iterator[Claim]:
    """Rules of the users, values that were changed, and sentences with values, each with whether it holds."""
    history = READER.read(conversation.raw)
    rules, facts = dict[str, int](), dict[str, int]()
    for at, item in history.items():
        if item.kind is Kind.USER:
            rules |= {sentence: at for sentence in rule_sentences(item.text) if sentence not in rules}
            facts |= {one: at for one in sentences(item.text) if values(one) and one not in rules}
    replaced = list(_replaced(history))
    changed = {sentence for sentence, *_ in replaced}
    for texts in (rules, {text: at for text, at in facts.items() if text not in changed}):
        for text, at in list(texts.items())[-CLAIMS:]:
            holds = not any(conversation.missing(text))
            yield Claim(check="in_context", arguments=(text,), turn=_turn(history, at), holds=holds)
    for _, subject, value, at in replaced[-CLAIMS:]:
        holds = not any(conversation.outdated(subject, value))
        yield Claim(check="newest", arguments=(subject, value), turn=_turn(history, at), holds=holds)


def _replaced(history: History) -> Iterator[tuple[str, str, str, int]]:
    """Sentences with a replaced value: the sentence, its beginning, the newest value, and the position of that."""
    changes = Changes()
    changes.extend(history)
    for at in sorted(changes.later):
        for sentence in {change.sentence: None for change in changes.later[at]}:
            for change in changes.of(at, sentence):
                subject = sentence.partition(change.old)[0].strip() if change.old else ""
                if change.new and len(subject.split()) > 1:
                    yield sentence, subject, change.new, change.at


def _turn(history: History, at: int) -> int:
    return sum(reading.has_prompt for reading in history.readings[: at + 1])


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
    if agent and not re.fullmatch(r"\w+(\.\w+)*:\w+", agent):
        raise SettingsError(f"--agent {agent!r:.80}: give module:name, such as desk.agents:agent")
    if out.suffix != ".py" or out.exists():
        raise SettingsError(f"--out {out}: give the name of a new Python file, such as tests/test_desk.py")
    given, mask = await load_session(session, db, owner), Mask()
    sent = await recorded_async(session, db=db, owner=owner)
    summaries = {prompt_name(mask(prompt)): mask(answer) for prompt, answer in given.answers}
    recording = replace(masked(given, mask), summaries=summaries)
    budget = max(request.budget or request.tokens for request in sent.every)
    compiler = ContextCompiler(budget=budget, store=None, system=None)
    now = sent if agent else await replay_async(recording, None, capabilities=[compiler])
    claims = list(find_claims(now))
    out.parent.mkdir(parents=True, exist_ok=True)
    recording.save(out.with_suffix(".json"))
    out.write_text(_source(session, out, claims, now, budget, agent), encoding="utf-8", newline="\n")
    return claims


def _source(
    session: str, out: Path, claims: Sequence[Claim], conversation: Conversation, budget: int, agent: str
) -> str:
    module, _, name = agent.partition(":")
    slug = re.sub(r"\W+", "_", session).strip("_").lower() or "session"
    subject = name or "capabilities=[compiler]"
    imports = f"from {module} import {name}" if agent else "from context_compiler import ContextCompiler"
    compiler = "" if agent else f"\ncompiler = ContextCompiler(budget={budget:_}, store=None, system=None)\n"
    limits = {
        "budget": f"{max(budget, ceil(max(one.tokens for one in conversation.every) / STEP) * STEP):_}",
        "pairs": "True",
        "compiles": str(len(conversation.rewrites())),
        "cost_of_everything": f"{ceil(conversation.cost_share() * 20) / 20:.2f}",
    }
    lines = [
        f'"""Written by `context-compiler sessions test` from the session {slug}; change it as you like."""',
        "",
        imports,
        compiler,
        "",
        f"def test_{slug}_keeps_what_was_said(contexts):",
        f"    conversation = contexts.replay({out.with_suffix('.json').name!r}, {subject})",
        *(f"    {claim}" for claim in claims),
        f"    conversation.assert_within({', '.join(f'{name}={value}' for name, value in limits.items())})",
        "",
    ]
    return "\n".join(lines)
