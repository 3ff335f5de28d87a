"""Of what was said the most telling is chosen, within the room there is."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import (
    ModelMessage,
)

from context_compiler import compile_view
from context_compiler.messages.history import Reader
from context_compiler.messages.turns import outline, pair
from context_compiler.recall.passages import Passage, Quotation, passages, write_quotation
from context_compiler.recall.selection import Candidates, parts_of, worths
from context_compiler.recall.terms import words
from context_compiler.tokens import TokenCounter
from tests.recall.asking import COUNTER, all_of, asked, replied
from tests.support.histories import answer, assistant, call, histories, long_history, user
from tests.support.views import own_texts


def choose(candidates: Sequence[Passage], room: int) -> tuple[Passage, ...]:
    return Candidates(candidates).choose(room)


def test_room_that_answers_leave_is_for_what_tells_most() -> None:
    candidates = all_of([user("The gate code is 4417."), user("Lunch was at noon."), user("My sister moved to Graz.")])
    chosen = Candidates(candidates, [1.0, -0.2, -0.1]).choose(1_000)
    assert [passage.position for passage in chosen] == [0, 1, 2]
    first = Candidates(candidates, [1.0, -0.2, -0.1]).choose(candidates[0].tokens)
    assert [passage.position for passage in first] == [0]


def test_a_call_is_quoted_only_beside_the_best_piece_of_its_result() -> None:
    rows = [{"number": f"F{n}", "legs": ["A" * 60, "B" * 60]} for n in range(9)]
    looked = [user("look"), assistant(call("find", "a", id="R7")), user(answer("a", json.dumps(rows), tool="find"))]
    history = Reader(COUNTER).read(looked)
    pieces = passages(history, outline(history, pair(history)), [1], COUNTER, lambda text: "F2" in text or "F5" in text)
    assert [piece.tool for piece in pieces] == ["", "find", "find"] and "R7" in pieces[0].text
    candidates = Candidates(pieces, [3.0, 1.0, 2.0])
    both = pieces[0].tokens + pieces[2].tokens
    assert [piece.order for piece in candidates.choose(both)] == [pieces[0].order, pieces[2].order]
    assert pieces[0] not in candidates.choose(pieces[2].tokens + 1)


@given(messages=histories(), room=st.integers(0, 600))
def test_the_selection_never_exceeds_its_room(messages: list[ModelMessage], room: int) -> None:
    assert COUNTER.text(write_quotation(choose(all_of(messages), room))) <= room


@given(messages=histories(), room=st.integers(0, 2_000), seed=st.integers(0, 9))
def test_the_room_used_by_a_quotation_is_the_sum_of_its_lines(
    messages: list[ModelMessage], room: int, seed: int
) -> None:
    candidates = all_of(messages)
    quotation = Quotation(candidates, room)
    for index in random.Random(seed).sample(range(len(candidates)), len(candidates)):
        quotation.take(index)
    taken = quotation.passages
    assert room - quotation.left == sum(
        passage.cost_after(taken[position - 1] if position else None) for position, passage in enumerate(taken)
    )


@given(messages=histories(), room=st.integers(0, 300), divisor=st.integers(1, 9))
def test_the_selection_never_exceeds_its_room_with_any_counter(
    messages: list[ModelMessage], room: int, divisor: int
) -> None:
    counter = TokenCounter(lambda text: len(text) // divisor)
    assert counter.text(write_quotation(choose(all_of(messages, counter), room))) <= room


@given(messages=histories(), room=st.integers(0, 2_000), seed=st.integers(0, 9))
def test_the_selection_is_in_order_whatever_the_order_of_the_candidates(
    messages: list[ModelMessage], room: int, seed: int
) -> None:
    candidates = all_of(messages)
    shuffled = list(candidates)
    random.Random(seed).shuffle(shuffled)
    chosen = choose(candidates, room)
    assert chosen == choose(shuffled, room)
    assert [(passage.position, passage.order) for passage in chosen] == sorted(
        {(passage.position, passage.order) for passage in chosen}
    )
    assert set(chosen) <= set(candidates)


@given(messages=histories())
def test_every_quoted_passage_was_said(messages: list[ModelMessage]) -> None:
    history = Reader(COUNTER).read(messages)
    for passage in all_of(messages):
        said = [item for item in history.readings[passage.position].items if item.mark is None]
        if passage.speaker != "tool" and "[" not in passage.text:
            assert any(passage.text.strip() in item.text for item in said)


def test_with_enough_room_every_new_passage_is_chosen() -> None:
    candidates = all_of(
        [asked("Order 17 is late."), replied("I will write to the supplier."), asked("Use the new address.")]
    )
    assert choose(candidates, sum(passage.tokens for passage in candidates)) == candidates


def test_in_a_chat_the_words_of_the_user_come_first() -> None:
    messages: list[ModelMessage] = []
    for number in range(30):
        messages += [
            asked(f"My ticket {number} goes to gate {number * 7}."),
            replied(f"Answer {number} is long. " * 40),
        ]
    candidates = all_of(messages)
    chosen = choose(candidates, sum(passage.tokens for passage in candidates if passage.speaker == "user") // 2)
    assert len(chosen) > 10 and {passage.speaker for passage in chosen} == {"user"}


def test_with_tools_the_words_of_the_user_come_first_too() -> None:
    messages: list[ModelMessage] = []
    for number in range(12):
        look = assistant(f"Reading shelf {number} of hall {number * 3}.", call("look", f"c{number}", shelf=number))
        messages += [asked(f"Please check shelf {number * 5}."), look, user(answer(f"c{number}", f"{number} books"))]
    assert {passage.speaker for passage in choose(all_of(messages), 100)} == {"user"}


def test_a_standing_instruction_comes_before_other_words_of_the_user() -> None:
    said = ["Nobody paints old cranes here.", "Never paint new cranes there."]
    messages = [message for line in said for message in (asked(line), replied(f"About {line} " * 60))]
    (chosen,) = choose(all_of(messages), 24)
    assert chosen.text == "Never paint new cranes there."


def test_a_value_of_the_user_comes_before_other_words_of_the_user() -> None:
    plain = (
        "harbour walls need fresh paint",
        "gulls nest under wooden roofs",
        "fishermen mend nets before breakfast",
        "children skip flat stones here",
        "winter storms move heavy sand",
        "old sailors tell tall tales",
    )
    chat = [message for text in plain for message in (asked(text), replied(f"{text} " * 9))]
    chat[6:6] = [asked("the code is Zq7Xv9Kp2Wj4"), replied("certainly yes " * 30)]
    assert "Zq7Xv9Kp2Wj4" in write_quotation(choose(all_of(chat), 32))


def test_a_message_is_chosen_together_with_its_less_informative_half() -> None:
    def rich(number: int, size: int) -> str:
        return " ".join(
            f"Crate{index} of lot{index} holds pumps{index}." for index in range(number * 100, number * 100 + 50)
        )[:size]

    dull = "The crew sat on the deck all day. It rained on the boat. All of us had tea there. Then it rained more."
    messages: list[ModelMessage] = []
    for number in range(8):
        messages += [asked(f"{dull} {rich(number, 1060)}"), replied("Noted at length. " * 90)]
    messages.append(asked(f"{rich(9, 460)}. {dull} It was all the same to us, on the deck and there."))
    candidates = all_of(messages)
    wanted = [passage for passage in candidates if passage.position == len(messages) - 1]
    assert len(wanted) == 2
    assert list(choose(candidates, sum(passage.tokens for passage in wanted))) == wanted


def test_of_a_repeated_message_only_the_last_is_quoted() -> None:
    messages = [asked("The gate for flight HAT229 is B17."), replied("ok"), asked("The gate for flight HAT229 is B17!")]
    assert [passage.position for passage in choose(all_of(messages), 500)] == [1, 2]


def test_a_message_without_a_rare_word_comes_last_and_an_answer_of_one_rare_word_does_not() -> None:
    messages: list[ModelMessage] = []
    for number in range(12):
        messages += [asked(f"Bye, and see you all again, part {number}."), replied("See you, and bye again, all!")]
    messages[11] = replied("Thessaloniki.")
    candidates = all_of(messages)
    (first,) = choose(candidates, candidates[11].tokens)
    assert first.text == "Thessaloniki."


def test_short_agreement_is_dropped_before_informative_words() -> None:
    nods = ["Splendid idea!", "Lovely.", "Marvellous!", "Perfect, cheers.", "Agreed.", "Brilliant stuff."]
    towns = ["Zurich", "Bergen", "Porto", "Ghent", "Lyon", "Turin"]
    messages: list[ModelMessage] = []
    for number, (nod, town) in enumerate(zip(nods, towns, strict=True)):
        messages += [asked(nod), replied("As you wish, of course. " * 40)]
        messages += [asked(f"Customer {number} from {town} wants parcel {number * 31} delivered before noon.")]
    chosen = choose(all_of(messages), 120)
    assert sum("Customer" in passage.text for passage in chosen) >= 5


def test_a_talk_between_two_people_quotes_both() -> None:
    messages: list[ModelMessage] = []
    for number in range(20):
        messages += [
            asked(f"Where did you spend last week, number {number}?"),
            replied(f"I sailed to island {number} with Tom."),
        ]
    assert {passage.speaker for passage in choose(all_of(messages), 120)} == {"assistant"}


def test_a_talk_stays_one_if_its_people_often_agree() -> None:
    messages: list[ModelMessage] = []
    for number in range(20):
        messages += [asked(f"I went to market {number} with Ann."), replied(f"I sailed to island {number} with Tom.")]
        messages += [asked(f"So {number}?"), replied("Yeah.")]
    candidates = all_of(messages)
    pairs = list(zip(worths(candidates, parts_of(candidates)), candidates, strict=True))
    first, second = (sum(worth for worth, passage in pairs if word in passage.text) for word in ("market", "island"))
    assert first < 2 * second, "the user of a chat would count many times as much"


def test_a_key_or_hash_does_not_count_as_words() -> None:
    hashes = " ".join(f"{number:040x}" for number in range(11))
    fillers: list[ModelMessage] = [asked(f"Filler text number {number} here.") for number in range(20)]
    candidates = all_of([asked(hashes), *fillers])
    first, *others = worths(candidates, parts_of(candidates))
    assert first < min(others)


def test_scripts_without_spaces_fall_into_pairs_of_characters() -> None:
    assert words("会议在三点 ok") == ["会议", "议在", "在三", "三点", "ok"]
    assert words("Don't STOP, snake_case") == ["don't", "stop", "snake", "case"]
    assert words("سلام دنیا") == ["سلام", "دنیا"]


@pytest.mark.parametrize("unit", ["a", "漢", "a. ", "\n[from turn 1", "e\u0301"])
def test_a_line_of_one_megabyte_is_read_within_the_budget(unit: str) -> None:
    chosen = choose(all_of([asked(unit * (1_000_000 // len(unit))), replied("Thanks.")]), 1_000)
    assert COUNTER.text(write_quotation(chosen)) <= 1_000


def test_a_very_long_history_fills_a_large_budget() -> None:
    messages = long_history(1_200, 2, 16)
    history = Reader(COUNTER).read(messages)
    turns = outline(history, pair(history))
    candidates = passages(history, turns, range(len(history)), TokenCounter())
    chosen = choose(candidates, 40_000)
    assert 36_000 < COUNTER.text(write_quotation(chosen)) <= 40_000


def test_a_summary_keeps_evidence_for_later_questions_about_a_talk(data_folder: Path) -> None:
    scores: list[float] = []
    for talk in json.loads((data_folder / "locomo" / "conversations.json").read_text()):
        messages, said = _talk(talk["conversation"])
        quote = write_quotation(choose(all_of(messages), 4_000))
        for question in talk["qa"]:
            named = [f"D{a}:{b}" for line in question["evidence"] for a, b in re.findall(r"D:?(\d+):(\d+)", line)]
            evidence = [said[name] for name in dict.fromkeys(named) if name in said]
            if evidence and question["category"] != 5:
                scores.append(sum(text in quote for text in evidence) / len(evidence))
    assert len(scores) == 760
    assert sum(scores) / len(scores) >= 0.45


def _talk(conversation: dict[str, Any]) -> tuple[list[ModelMessage], dict[str, str]]:
    messages: list[ModelMessage] = []
    said: dict[str, str] = {}
    sessions = sorted((key for key in conversation if re.fullmatch(r"session_\d+", key)), key=lambda key: int(key[8:]))
    for session in sessions:
        when = datetime.strptime(conversation[f"{session}_date_time"], "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC)
        for turn in conversation[session]:
            said[turn["dia_id"]] = turn["text"].strip()
            line = f"{turn['speaker']}: {turn['text']}"
            mine = turn["speaker"] == conversation["speaker_a"]
            messages.append(asked(line, when) if mine else replied(line, when))
    return messages, said


async def test_a_sentence_said_again_with_another_number_is_quoted_once() -> None:
    """A customer thanks for a parcel each week, and asks once about something else."""
    thanks = "The parcel of week {} came in a good box, thank you; is there a newer price list for shelves and screws?"
    said = [thanks.format(week) for week in range(24)]
    said[1] = "My order CM-7718 came without its legs. Please note that."
    history = [message for text in said for message in (user(text), assistant("Yes, of this week. Anything else?"))]
    view = await compile_view([*history, user("Which order of mine came without its legs?")], budget=900, system=None)
    texts = "\n".join(own_texts(view))
    assert "CM-7718" in texts and texts.count("The parcel of week") == 1


@pytest.mark.parametrize(
    ("prompt", "most"), [("Thanks, let me know how it goes!", 0.7), ("How did it go, you know?", 1.0)]
)
async def test_a_prompt_that_asks_nothing_leaves_half_of_the_quotes_to_what_tells_most(
    prompt: str, most: float
) -> None:
    """Small talk is most like small talk, and would fill the view."""
    chatter = "Thanks so much, I will let you know how it goes with number {} then, talk to you soon!"
    codes = [f"The locker of floor {floor} opens with the code {7_000 + 37 * floor}." for floor in range(20)]
    said = [text for floor, code in enumerate(codes) for text in (chatter.format(floor * "la "), code)]
    history = [message for text in said for message in (user(text), assistant("Good."))]
    view = await compile_view([*history, user(prompt)], budget=700, system=None)
    answers = [quote for quote in view.quoted if quote.why.startswith("recalled")]
    told = [quote for quote in view.quoted if quote.why.startswith("worth")]
    tokens = [sum(COUNTER.text(quote.text) for quote in quotes) for quotes in (answers, told)]
    assert answers and tokens[0] <= most * sum(tokens)
    assert most == 1 or any("code" in quote.text for quote in told)
