"""Of two statements of the same with other values, the newest stands; the earlier one only beside it, marked."""

from __future__ import annotations

import re
from functools import partial
from itertools import cycle, islice

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler import compile_view
from context_compiler.messages.history import Reader
from context_compiler.messages.turns import outline, pair
from context_compiler.recall import changes_of
from context_compiler.recall.changes import corrections
from context_compiler.recall.outline import phases
from context_compiler.recall.passages import passages, write_quotation
from context_compiler.recall.selection import Candidates, mark_changes
from context_compiler.tokens import TokenCounter
from tests.recall.test_tools import used
from tests.support.agents import Notes, Talker, compiler, run
from tests.support.histories import assistant, user
from tests.support.views import own_texts

CHATTER = [
    "The curtains in the foyer look fine to me.",
    "Let us leave the piano where it is.",
    "The lift was slow again this morning.",
    "I put the programme leaflets into the drawer.",
    "Two of the old posters came loose.",
    "We can varnish that bench another day.",
    "The talk with the neighbours went well.",
    "Nobody has looked at the smoke alarms yet.",
]

RESTATED = [
    ("The lighting contract costs {} in total.", "$4,100", "$5,250"),
    ("The opening night is {}.", "2028-01-14", "2028-02-11"),
    ("The dress rehearsal is on {} in the main hall.", "May 3", "May 17"),
    ("The doors open at {}.", "18:30", "19:15"),
    ("The ticket service listens on port {}.", "9102", "9244"),
    ("The stage manager is {}, talk to her about the keys.", "Ilse Brandt", "Tessa Vega"),
    ("The account of the society is {}.", "KX-4471", "QT-9038"),
    ("The orchestra has {}.", "31 players", "27 players"),
    ("The stock of item 12: {}.", "31 pieces", "27 pieces"),
]
REVISED = [
    ("The lighting budget is $4,100.", "The lighting budget was raised to $5,250.", "$4,100", "$5,250"),
    ("The opening night is May 3.", "The opening night has moved to May 17.", "May 3", "May 17"),
    ("The stage manager is Ilse Brandt.", "The stage manager is now Tessa Vega.", "Ilse Brandt", "Tessa Vega"),
    (
        "Please plan the dress rehearsal for Thursday in the main hall.",
        "Not Thursday after all, the hall is let. Make it Tuesday.",
        "for Thursday",
        "Make it Tuesday",
    ),
    ("We use Kafka for the ticket events.", "We no longer use Kafka.", "We use Kafka", "no longer use Kafka"),
    (
        "The nightly import runs on the blue server.",
        "The nightly import does not run on the blue server.",
        "import runs",
        "does not run",
    ),
]
CHANGED = [*((text.format(old), text.format(new), old, new) for text, old, new in RESTATED), *REVISED]

NOT_CHANGED = [
    ("The matinee price is $12.", "The evening price is $19."),
    ("Order A1024 is on the shelf by the door.", "Order A1025 is on the shelf by the window."),
    ("I paid $50 for the taxi to the airport.", "I paid $70 for the taxi to the airport."),
    ("Is the opening night on May 3?", "Is the opening night on May 17?"),
    ("The opening night was May 17 last year.", "The opening night was May 3 the year before."),
    ("The stage manager is Ilse Brandt.", "The stage manager is Brandt."),
    ("The opening night is 2028-05-17.", "The opening night is May 17."),
    ("I like the red curtain best.", "I do not like the green carpet."),
    ("I'm trying to use Redis for the queue.", "I'm trying to use Postgres for the queue."),
    ("If the hall is booked, the fee is $40.", "If the hall is free, the fee is $15."),
    ("The next question goes to Mr. Kelly.", "The next question goes to Mr. Singh."),
    ("Reservation ID: JG7FMM", "Reservation ID: 2FBBAH"),
    ("Show me the draft for Day 7.", "Show me the draft for Day 8."),
    ("One with U_S_B_ .", "One without U_S_B_ ."),
    ("The lookup says: item 3: 7 pieces, shelf 9.", "The lookup says: item 12: 14 pieces, shelf 16."),
]


def said(*texts: str) -> list[ModelMessage]:
    return [message for text in texts for message in (user(text), assistant("Noted."))]


def among_chatter(old: str, new: str, *, gap: int = 0, after: int = 20) -> list[str]:
    chatter = cycle(CHATTER)
    return [*islice(chatter, 7), old, *islice(chatter, gap), new, *islice(chatter, after)]


@pytest.mark.parametrize(("old", "new", "before", "now"), CHANGED)
async def test_a_view_shows_a_replaced_value_only_beside_the_new_one(old: str, new: str, before: str, now: str) -> None:
    for gap in (0, 4):
        for budget in range(150, 420, 30):
            history = [*said(*among_chatter(old, new, gap=gap)), user("Please go on.")]
            view = await compile_view(history, budget=budget, system=None)
            shown = "\n".join(own_texts(view))
            assert now in shown, (gap, budget)
            assert before not in shown or "changed at turn" in shown or shown.count(old) == 1 == shown.count(new)


@pytest.mark.parametrize(("old", "new", "before", "now"), CHANGED[::3])
async def test_an_agent_is_sent_a_replaced_value_only_beside_the_new_one(
    old: str, new: str, before: str, now: str
) -> None:
    talker = Talker("Noted.")
    agent = Agent(talker.model, capabilities=[compiler(budget=1_500)])
    history: list[ModelMessage] = []
    for text in among_chatter(old, new, after=30):
        prompt = text if text in (old, new) else f"{text} {' '.join(CHATTER[:4])}"
        history = (await run(agent, prompt, message_history=history, conversation_id="c")).messages
    later = talker.sent[8:]
    assert all(now in sent.text for sent in later if before in sent.text)
    assert sum(now in sent.text for sent in later) >= 25


TWO_VALUES = "The retry limit is 5. The request timeout is 30 seconds."
TWO_CHANGES = ["The retry limit is now 8.", "The request timeout is now 60 seconds."]


@pytest.mark.parametrize("changes", [TWO_CHANGES, TWO_CHANGES[::-1]])
async def test_a_passage_with_two_replaced_values_is_shown_only_beside_both_new_ones(changes: list[str]) -> None:
    prompt = user("What were the retry limit 5 and the request timeout of 30 seconds?")
    history = [*said(*CHATTER[:7], TWO_VALUES, *changes, *CHATTER * 2), prompt]
    views = [await compile_view(history, budget=budget, system=None) for budget in range(90, 200, 5)]
    shown = ["\n".join(own_texts(view)) for view in views]
    assert any(TWO_VALUES in text for text in shown)
    assert all(change in text for text in shown if TWO_VALUES in text for change in changes)


@pytest.mark.parametrize("changes", [TWO_CHANGES, TWO_CHANGES[::-1]])
def test_a_quotation_of_any_size_has_both_new_values_or_neither_old_one(changes: list[str]) -> None:
    quotations = [quotation_of_the_first(room, TWO_VALUES, *changes) for room in range(10, 90)]
    assert any(f"changed at turn 3] {TWO_VALUES}" in text for text in quotations)
    assert all(change in text for text in quotations if TWO_VALUES in text for change in changes)


@pytest.mark.parametrize("changes", [TWO_CHANGES, TWO_CHANGES[::-1]])
async def test_a_search_by_the_agent_returns_both_new_values_with_the_passage_that_they_replace(
    changes: list[str],
) -> None:
    texts = [*CHATTER, TWO_VALUES, *CHATTER, *changes, *CHATTER]
    query = {"query": "Who said: the retry limit is 5?"}
    answers = [await used("recall_search", query, said(*texts), tokens=tokens) for tokens in range(100, 181, 20)]
    assert f"changed at turn 19] {TWO_VALUES}" in answers[-1]
    assert all(change in text for text in answers if TWO_VALUES in text for change in changes)


def test_a_passage_quoted_for_its_new_value_is_marked_and_not_alone_if_another_value_of_it_was_replaced() -> None:
    first, second = "The gate of the depot is DK-4471.", "The gate of the depot is QT-9038. The choir has 31 singers."
    third = "The choir has 27 singers."
    quotations = [quotation_of_the_first(room, first, second, third) for room in range(10, 120)]
    assert any(first in text for text in quotations)
    assert all(f"changed at turn 3] {second}" in text and third in text for text in quotations if second in text)
    assert all(second in text for text in quotations if first in text)


def quotation_of_the_first(room: int, *texts: str) -> str:
    """Quotation of the first text, which alone is relevant, and of those that change it."""
    counter = TokenCounter()
    history = Reader(counter).read(said(*texts))
    turns = outline(history, pair(history))
    ranked = [(passage, 1.0) for passage in passages(history, turns, [0], counter)]
    quote = partial(passages, history, turns, counter=counter)
    marked = mark_changes(history, turns, ranked, counter, quote=lambda position: quote([position]))
    chosen = Candidates([passage for passage, _ in marked], [score for _, score in marked]).choose(room)
    return write_quotation(chosen)


async def test_a_value_of_a_run_that_failed_replaces_nothing() -> None:
    """Its prompt is gone, so the value that it replaced is quoted without a mark, and the newest one with it."""
    notes, failing = " ".join(CHATTER[:6]), "The lighting contract costs $9,999 in total."
    sent: list[list[ModelMessage]] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        sent.append(messages)
        if "9,999" in str(messages[-1]):
            raise RuntimeError("the provider is down")
        return ModelResponse(parts=[TextPart("Noted.")])

    agent = Agent(FunctionModel(answer), capabilities=[compiler(budget=1_000)])
    history: list[ModelMessage] = []
    for text in ["The lighting contract costs $4,100 in total.", "The lighting contract costs $5,250 in total."]:
        history = (await agent.run(f"{text} {notes}", message_history=history, conversation_id="c")).all_messages()
    for _ in range(12):
        with pytest.raises(RuntimeError, match="down"):
            await agent.run(f"{failing} {notes}", message_history=history, conversation_id="c")
        history = (await agent.run(notes, message_history=history, conversation_id="c")).all_messages()
        shown = str(sent[-1])
        assert "9,999" not in shown and ("$5,250" in shown or "$4,100" not in shown)
        assert set(re.findall(r"changed at turn (\d+)", shown)) <= {"2"}


def changes_in(*texts: str) -> list[tuple[str, str]]:
    history = Reader(TokenCounter()).read(said(*texts))
    return [(one.sentence, one.later) for own in changes_of(history).later.values() for one in own]


@pytest.mark.parametrize(("one", "other"), NOT_CHANGED)
def test_a_statement_about_something_else_replaces_nothing(one: str, other: str) -> None:
    assert changes_in(one, *CHATTER, other) == []


def test_names_of_speakers_in_a_meeting_are_not_taken_for_subjects() -> None:
    chair = "The Acting Chair (Mr. Bruce Stanton)"
    texts = ["We'll now go to Ms. Kwan.", "You have 20 seconds.", "We move on to Mr. Davies.", "Mr. Davies."]
    assert changes_in(*(f"{chair}: {text}" for text in texts)) == []


def test_words_of_every_other_message_contradict_nothing() -> None:
    texts = [f"Yeah {{laugh}} well, {text.lower()}" for text in CHATTER]
    assert changes_in(*texts, "Yeah well {laugh}.", "Yeah {laugh}, not well.") == []


def test_a_repeated_value_is_current_again() -> None:
    first, second = "The opening night is May 3.", "The opening night is May 17."
    assert changes_in(first, second, first) == [(second, first)]


def test_a_value_that_changes_twice_leads_to_the_last() -> None:
    texts = [f"The opening night is May {day}." for day in (3, 17, 24)]
    history = Reader(TokenCounter()).read(said(*texts))
    assert [one.later for one in changes_of(history).of(0, texts[0])] == [texts[2]]


def test_a_statement_after_a_long_paste_replaces_an_earlier_one() -> None:
    old, new = "The locker has the code KX-2842.", "The locker has the code KX-5234."
    assert changes_in(old, *CHATTER, f"Where is this from? {'x' * 20_000}\n{new}") == [(old, new)]
    assert changes_in(old, *CHATTER, f"{new}\nAnd this? {'x' * 20_000}") == [(old, new)]


def test_an_assistant_does_not_correct_the_user() -> None:
    history = Reader(TokenCounter()).read(
        [user("The opening night is May 3."), assistant("The opening night is May 17."), user("Hm.")]
    )
    assert not changes_of(history).later


def test_the_outline_leaves_out_what_was_replaced() -> None:
    counter = TokenCounter()
    texts = [f"{text} Number {number}." for number in range(4) for text in CHATTER]
    texts[0], texts[9] = "The orchestra has 31 players.", "The orchestra has 27 players."
    history = Reader(counter).read(said(*texts))
    text = phases(history, outline(history, pair(history)), range(len(history)), 400, counter)
    assert "[turn" in text and "31 players" not in text


async def test_a_search_by_the_agent_returns_the_newest_value_with_the_old_one() -> None:
    old, new = "The account of the society is KX-4471.", "The account of the society is QT-9038."
    found = await used("recall_search", {"query": "account of the society"}, said(*among_chatter(old, new)))
    assert "changed at turn 9] The account of the society is KX-4471" in found and new in found


async def test_a_summary_with_a_replaced_value_is_corrected_in_the_view_and_when_it_is_fed_back() -> None:
    old, new = "The account of the society is KX-4471.", "The account of the society is QT-9038."
    notes = Notes("- The account of the society is KX-4471.\n- The piano stays.")
    talker = Talker("Noted.")
    agent = Agent(talker.model, capabilities=[compiler(notes, budget=2_000)])
    history = said(*(f"{text} {' '.join(CHATTER)}" for text in among_chatter(old, new, after=12)))
    for number in range(30):
        prompt = f"{CHATTER[number % 8]} {' '.join(CHATTER)}"
        history = (await run(agent, prompt, message_history=history, conversation_id="c")).messages
    assert notes.asked >= 2
    assert f"KX-4471. [changed later: {new}]" in notes.prompts[0]
    assert f"- changed later: {new}" in notes.prompts[-1]
    assert all("QT-9038" in sent.text for sent in talker.sent if "KX-4471" in sent.text)
    assert "KX-4471" in talker.last.text


@pytest.mark.parametrize(
    ("summary", "corrected"),
    [
        ("The retry limit is 5. The build has many files.", True),
        ("The retry limit is 5. There are 8 files.", True),
        ("There are 8 files. Retry limit: 5.", True),
        ("The retry limit was 5 and is now 8.", False),
        ("The retry limit was 5. Later the retry limit became 8.", False),
        ("Retries are limited. There are 8 files.", False),
    ],
)
def test_a_summary_is_corrected_unless_it_gives_the_new_value_of_the_same_subject(
    summary: str, corrected: bool
) -> None:
    changes = changes_of(Reader(TokenCounter()).read(said("The retry limit is 5.", "The retry limit is now 8.")))
    assert corrections(changes, summary) == ("- changed later: The retry limit is now 8." if corrected else "")


async def test_frequent_messages_are_quoted_once_and_after_rare_ones() -> None:
    history = said(*[CHATTER[number % 2] for number in range(40)])
    history[10:10] = said("The spare fuse is in the third locker.")
    view = await compile_view([*history, user("Please go on.")], budget=160, system=None)
    text = "\n".join(own_texts(view))
    assert "third locker" in text and text.count(CHATTER[0]) <= 1
