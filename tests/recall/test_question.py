"""What is read from a question: the text that asks, and the kind of answer that it asks for."""

from __future__ import annotations

import pytest
from pydantic_ai.messages import ModelMessage, ModelRequest, UserPromptPart

from context_compiler.messages.history import Reader
from context_compiler.recall import Question, pending_question
from context_compiler.tokens import TokenCounter

READER = Reader(TokenCounter())


@pytest.mark.parametrize(
    "prompt",
    [
        "Can you list the order in which I brought up my tools?",
        "Tell me everything you know about Carla.",
        "Give me a recap of the trip.",
        "In welcher Reihenfolge haben wir das besprochen?",
        "Dans quel ordre avons-nous visité les villes ?",
        "¿En qué orden lo hicimos?",
        "In che ordine l'abbiamo fatto?",
        "Em que ordem fizemos isso?",
        "В каком порядке мы это обсуждали?",
        "请总结我们的讨论",
        "これまでの話をまとめてください",
    ],
)
def test_prompts_that_ask_for_a_sequence_or_the_whole(prompt: str) -> None:
    assert Question.of(prompt).wide


@pytest.mark.parametrize(
    "prompt",
    [
        "What is my order number?",
        "Sort the list in order to save space.",
        "How should I design my resume?",
        "All the tests fail, what about it?",
        "Our order in the shop was late.",
    ],
)
def test_prompts_that_ask_for_one_thing(prompt: str) -> None:
    assert not Question.of(prompt).wide


def pending_text(messages: list[ModelMessage]) -> str:
    found = pending_question(READER.read(messages), READER.counter)
    return found.text if found is not None else ""


def test_an_unanswered_earlier_prompt_is_not_the_question() -> None:
    both = ModelRequest(parts=[UserPromptPart(content="I like the boat."), UserPromptPart(content="Where is the cat?")])
    assert pending_text([both]) == "Where is the cat?"
    both.parts[1] = UserPromptPart(content="?")
    assert pending_text([both]) == "I like the boat."
