"""Rules of users and applications in random conversations, and the check that every request contains them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from pydantic_ai.messages import ModelMessage, UserPromptPart

from benchmarks.campaign.case import Case
from benchmarks.campaign.strict import COUNTER, READER, all_texts
from context_compiler.compiler.reasons import RULE_BEYOND_SHARE, RULE_OVER_BUDGET, reason_of
from context_compiler.messages.fences import OTHERS_TITLE
from context_compiler.record.values import Drop

PLAIN = (
    "Never restart the pump before noon.",
    "Always give weights in kilograms.",
    "Do not touch the file scale.toml.",
    "From now on, write times in the 24-hour format.",
    "Never share the gate code 7741 with drivers.",
    "Always name a file with its line.",
)
REPLACED = (
    ("Never exceed {} calls a minute to the scale.", ("20", "45", "90", "120")),
    ("Always answer in {}.", ("French", "German", "English")),
    ("Always round prices to {} digits.", ("2", "3", "4")),
)
"""Rules of which a later one with another value contradicts an earlier one."""
DECLARED = "Speak of the boss as Ms. Ito."
MODE = "Work in mode {}."
"""Rules that applications declare: one that stays, and one that changes."""

_KNOWN = tuple(
    (text, re.compile(re.escape(text).replace(re.escape("{}"), f"(?:{'|'.join(values)})").replace("\\ ", r"\s")))
    for text, values in (*((text, ("",)) for text in PLAIN), *REPLACED)
)
_ELSEWHERE = re.compile(rf"=== BEGIN {OTHERS_TITLE} .*?=== END {OTHERS_TITLE} ===", re.DOTALL)
"""Quotations from other conversations, which give no rules to this one."""
SLACK = 100
"""Tokens for the fence around listed rules, and for rounding."""


CODE = "```python\nqueue.start()\n```"


def any_rule(random: Random) -> str:
    """Draw a rule as people write it, which may be wrapped or after a block of code."""
    text, values = random.choice(((random.choice(PLAIN), ("",)), random.choice(REPLACED)))
    text, form = text.format(random.choice(values)), random.random()
    if form < 0.2:
        middle = text.index(" ", len(text) // 2)
        return f"{text[:middle]}\n{text[middle + 1 :]}"
    return f"{CODE}\n\n{text}" if form < 0.3 else text


@dataclass(slots=True)
class Given:
    """A rule in force, and the places of the history that say it."""

    text: str
    positions: list[int] = field(default_factory=list[int])

    @property
    def origins(self) -> set[str]:
        """Names of the rule in the drops of a view."""
        return {f"rule of message {position}" for position in self.positions}


def given_rules(history: Sequence[ModelMessage], dismissed: Iterable[tuple[str, str]] = ()) -> list[Given]:
    """Find the rules that are in force in a history, given dismissals as texts and chain ids."""
    rules: dict[str, Given] = {}
    by_text: dict[str, Given] = {}  # a rule that another replaced for a while was given before, too
    for position, family, text in _said(history):
        rules[family] = by_text.setdefault(text, Given(text))
        rules[family].positions.append(position)
    ids = READER.read(list(history)).ids if dismissed and rules else ()
    for text, tip in dismissed:
        until = ids.index(tip) if tip in ids else len(history)
        rules = {name: rule for name, rule in rules.items() if rule.text != text or rule.positions[-1] > until}
    return list(rules.values())


def _said(history: Sequence[ModelMessage]) -> Iterator[tuple[int, str, str]]:
    for position, message in enumerate(history):
        for text in all_texts([message], UserPromptPart):
            for family, pattern in _KNOWN:
                yield from ((position, family, " ".join(match[0].split())) for match in pattern.finditer(text))


def check_rules(
    case: Case,
    where: str,
    rules: Sequence[Given],
    messages: Sequence[ModelMessage],
    drops: Sequence[Drop],
    *,
    room: float,
    free: float,
) -> None:
    """Check that a request contains every rule, and none more often than it was given.

    A rule without positions is declared; `room` is tokens for messages, `free` what the request leaves of its budget.
    """
    shown = " ".join(_ELSEWHERE.sub("", "\n".join(all_texts(messages))).split())
    lost = {drop.what for drop in drops if reason_of(drop.reason) in (RULE_BEYOND_SHARE, RULE_OVER_BUDGET)}
    needed = sum(COUNTER.text(f"- {rule.text}\n") for rule in rules) + SLACK
    for rule in rules:
        times, dropped = shown.count(rule.text), bool(lost & (rule.origins or {"rule of rules="}))
        case.count("rules in force")
        case.check(times or dropped, "rules that are gone", lambda rule=rule: f"{where}{rule}")
        case.check(
            times <= max(1, len(rule.positions)),
            "rules that are said twice",
            lambda rule=rule, times=times: f"{where}{rule}: {times} times",
        )
        case.check(
            times or needed > min(room / 8, free),
            "rules left out without need",
            lambda rule=rule: (
                f"{where}{rule}: {needed} tokens for {len(rules)} rules, room {room:.0f}, {free:.0f} free"
            ),
        )
