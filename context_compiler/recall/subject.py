"""Subject of a question: the person it names, else the asker, else the assistant."""

from __future__ import annotations

from collections.abc import Mapping

from context_compiler.recall.index import ASSISTANT, TOOL, USER, Index
from context_compiler.recall.question import Question

OFTEN, MOSTLY = 3, 4
"""Least uses of a name, and the least ratio between the two sides, to tell whose name it is."""

TALK = 2.25
"""Greatest ratio of answer length to prompt length in a talk between two people."""


def named(index: Index, question: Question) -> dict[str, int]:
    """The words of the question that name one of the two who talk: who is called so by the other."""
    found: dict[str, int] = {}
    for name in sorted(question.names):
        for called, times in index.called.items():
            if called[:3] != name[:3] or not _same(name, called):
                continue
            by_user, by_assistant = times[USER], times[ASSISTANT]
            if by_user >= max(OFTEN, MOSTLY * by_assistant):
                found[name] = ASSISTANT
            elif by_assistant >= max(OFTEN, MOSTLY * by_user):
                found[name] = USER
    return found


def _same(name: str, called: str) -> bool:
    """True if two names are the same, or one is a short form of the other."""
    short, long = sorted((name, called), key=len)
    return long == short or (len(short) > 2 and long.startswith(short))


def asked_about(index: Index, question: Question, called: Mapping[str, int]) -> int | None:
    """The speaker a question is about; None if it may be either."""
    people = set(called.values())
    if people:
        return people.pop() if len(people) == 1 else None
    if question.yours:
        return ASSISTANT
    user = index.words[USER] / max(1, index.spoken[USER])
    assistant = index.words[ASSISTANT] / max(1, index.spoken[ASSISTANT])
    return USER if question.mine or index.spoken[TOOL] or assistant > TALK * user else None
