"""An answer that stands within a long message is found among much that is short and says nothing."""

from __future__ import annotations

from random import Random

import pytest
from pydantic_ai.messages import ModelMessage

from context_compiler import compile_view
from tests.support.histories import assistant, user
from tests.support.views import own_texts

WORDS = (
    "river market letter window garden engine harbour ticket winter summer bread carpet signal copper valley bridge"
    " lantern orchard meadow station cellar kitchen ladder mirror pocket saddle thunder velvet whistle anchor candle"
).split()

NEEDLES = [
    ("The spare key of the boathouse hangs behind the blue barometer.", "Where does the boathouse's spare key hang?"),
    ("Replica lag is measured by the sentinel job every ninety seconds.", "How often is replica lag measured?"),
    ("Our staging cluster runs PostgreSQL 15.4 on two nodes.", "Which PostgreSQL runs on the staging cluster?"),
]


def talk(random: Random, long_user: str = "", long_assistant: str = "") -> list[ModelMessage]:
    """Sixty turns of chatter; in one of them something long is said."""
    turns: list[ModelMessage] = []
    for turn in range(60):
        asked, said = chatter(random, 12), chatter(random, 25)
        turns += [user(turn == 20 and long_user or asked), assistant(turn == 20 and long_assistant or said)]
    return turns


def chatter(random: Random, most: int) -> str:
    return " ".join(random.choices(WORDS, k=random.randint(4, most))).capitalize() + "."


def buried(random: Random, needle: str, sentences: int) -> str:
    """A long text with the needle in the middle."""
    around = [chatter(random, 16) for _ in range(sentences)]
    return " ".join([*around[: sentences // 2], needle, *around[sentences // 2 :]])


@pytest.mark.parametrize(("needle", "question"), NEEDLES)
@pytest.mark.parametrize("budget", [800, 2_000])
@pytest.mark.parametrize(("location", "sentences"), [("long_assistant", 50), ("long_user", 1_500)])
async def test_a_sentence_of_a_long_answer_or_a_pasted_text_is_found(
    needle: str, question: str, budget: int, location: str, sentences: int
) -> None:
    random = Random(needle)
    history = talk(random, **{location: buried(random, needle, sentences)})
    view = await compile_view([*history, user(question)], budget=budget, system=None)
    assert needle in "\n".join(own_texts(view))


@pytest.mark.parametrize("asked", ["lantenr", "lantrn", "lanntern", "lamtern"])
async def test_a_misspelt_question_finds_its_answer(asked: str) -> None:
    said = [
        f"The key of the {name} hangs in the {where} of the house." for name in WORDS for where in ("attic", "shed")
    ]
    history = [message for line in said for message in (user(line), assistant("Noted."))]
    view = await compile_view([*history, user(f"The {asked}?")], budget=400, system=None)
    recalled = [quote for quote in view.quoted if quote.why.startswith("recalled")]
    best = sorted(recalled, key=lambda quote: quote.why)[-2:]
    assert all("The key of the lantern" in quote.text for quote in best)
