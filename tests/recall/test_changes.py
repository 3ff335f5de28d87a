"""A quoted passage that a later message changes says so, and that message comes with it."""

from __future__ import annotations

import re

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage

from context_compiler import compile_view
from tests.recall.test_blocks import words
from tests.support.agents import Talker, compiler, run
from tests.support.histories import assistant, user
from tests.support.views import own_texts

CHANGES = [
    ("The uploader makes 5 retries.", "Make it 8 retries, not 5.", "How many retries does the uploader make?"),
    (
        "The sprint deadline for the backend is May 15.",
        "The sprint deadline for the backend was moved to May 22.",
        "When is the sprint deadline for the backend?",
    ),
    (
        "My call with Professor Danielle is on March 22 at 3 PM.",
        "The call with Professor Danielle was rescheduled from 3 PM to 4:30 PM.",
        "When is my call with Professor Danielle?",
    ),
    (
        "The invoices of the warehouse are in MySQL.",
        "We switched the invoices of the warehouse from MySQL to Postgres.",
        "Where are the invoices of the warehouse?",
    ),
    (
        "I submitted my cover letter to Greg on Monday.",
        "I've never submitted my cover letter to Greg.",
        "Have I submitted my cover letter to Greg?",
    ),
    (
        "It was late, but nevertheless I submitted my cover letter to Greg.",
        "I've never submitted my cover letter to Greg.",
        "Have I submitted my cover letter to Greg?",
    ),
    (
        "The message delivery latency is 150ms.",
        "The message delivery latency has improved to 110ms.",
        "What is the message delivery latency?",
    ),
    (
        "I have a Zoom meeting with Professor Danielle on March 22 at 3 PM.",
        "Remind me of the Zoom meeting with Professor Danielle, it's rescheduled to March 22 at 4:30 PM.",
        "When is my meeting with Professor Danielle?",
    ),
    (
        "I aim for 100% test coverage of the parser module, and I've reached 65%.",
        "I'm working on the coverage of the parser module, which has improved to 78%.",
        "What is the test coverage of the parser module?",
    ),
    (
        "The rate limit of the archive API is set to 100 requests/minute.",
        "The archive API has a new rate limit of 120 requests per minute.",
        "What is the rate limit of the archive API?",
    ),
    (
        "I tested the memory usage of the nightly export, which took 250MB.",
        "I looked at the nightly export and its memory usage, which is currently averaging 140MB.",
        "What is the memory usage of the nightly export?",
    ),
    (
        "We set the pool size of the queue to 20 connections.",
        "We're increasing the size of the pool for the queue to 25 connections.",
        "What is the pool size of the queue?",
    ),
    (
        "The deadline is May 10.",
        "The deadline was moved to May 22.",
        "When is the deadline?",
    ),
    (
        "The parade is planned for 14 June.",
        "We have postponed the parade to 21 June.",
        "When is the parade?",
    ),
    (
        "I'm feeling anxious about my grammar after the feedback.",
        "I've never felt anxious about my grammar.",
        "Do I feel anxious about my grammar?",
    ),
]

ELSE = [
    ("The uploader makes 5 retries.", "The shop has 8 shelves, not 5."),
    ("The sprint deadline for the backend is May 15.", "The concert in the park was moved to May 22."),
    ("The message delivery latency is 150ms.", "The page load time has improved to 110ms."),
    ("The deadline is May 10.", "The deadline of the second draft was moved to May 22."),
    ("The chair is Maria.", "The chair is now Green."),
    ("Should I aim for 150ms of message delivery latency?", "The message delivery latency has improved to 110ms."),
    ("I painted my cover letter to Greg.", "I've never submitted my cover letter to Greg."),
    ("The uploader makes 8 retries.", "Make it 8 retries, not 5."),
    ("There are no flights from Los Angeles to Chicago.", "My flights are from Atlanta to Las Vegas, not Los Angeles."),
    (
        "The flight from LAS to PHX leaves on 2024-05-19.",
        "The flight has changed to HAT266, from LAS to IAH on 2024-05-27.",
    ),
]


def session(old: str, new: str, *, turns: int = 60) -> list[ModelMessage]:
    """A session in which something is said in turn 11, and something else in turn 41."""
    messages: list[ModelMessage] = []
    for turn in range(turns):
        text = {10: old, 40: new}.get(turn, f"Something about {words(turn, 8)}.")
        messages += [user(text), assistant(f"Fine, {words(turn + 500, 40)}.")]
    return messages


async def viewed(messages: list[ModelMessage], prompt: str) -> str:
    view = await compile_view([*messages, user(prompt)], "extractive", 900, system=None)
    return "\n".join(own_texts(view))


@pytest.mark.parametrize(("old", "new", "question"), CHANGES)
async def test_a_changed_statement_is_marked_and_quoted_with_its_change(old: str, new: str, question: str) -> None:
    text = await viewed(session(old, new), question)
    assert re.search(rf"user, changed at turn 41\] {re.escape(old)}", text) and new in text


@pytest.mark.parametrize(("old", "new", "question"), CHANGES)
async def test_a_live_view_marks_changes_too(old: str, new: str, question: str) -> None:
    talker = Talker("Fine.")
    ours = compiler(budget=2_000)
    agent = Agent(talker.model, capabilities=[ours])
    history = session(f"{words(7, 40)}. {old}", f"{words(8, 40)}. {new}")
    history = (await run(agent, "Hello.", message_history=history, conversation_id="c")).messages
    await run(agent, question, message_history=history, conversation_id="c")
    assert ours.last_view is not None
    sent = "\n".join(own_texts(ours.last_view))
    assert re.search(rf"user, changed at turn 41\] .*{re.escape(old)}", sent) and sent.count(new) == 1
    assert all(sent.tokens <= 2_000 for sent in talker.sent)


@pytest.mark.parametrize(("old", "new"), ELSE)
async def test_a_statement_on_another_topic_marks_nothing(old: str, new: str) -> None:
    text = await viewed(session(old, new), f"Which is it? {old} Or: {new}")
    assert old in text and new in text and "changed at" not in text


async def test_the_last_of_two_changes_counts() -> None:
    old, new, question = CHANGES[0]
    history = session(old, new)
    history[100] = user("Make it 9 retries, not 5.")
    text = await viewed(history, question)
    assert "user, changed at turn 51] The uploader" in text and "9 retries" in text


async def test_an_earlier_message_does_not_change_a_later_one() -> None:
    old, new, question = CHANGES[0]
    assert "changed at" not in await viewed(session(new, old), question)


async def test_a_mark_is_counted_in_the_budget() -> None:
    old, new, question = CHANGES[1]
    for budget in range(300, 420, 7):
        view = await compile_view([*session(old, new), user(question)], "extractive", budget, system=None)
        assert view.tokens <= budget
