"""What every memory promises: finding, committing, going back, and telling what changed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from context_compiler.errors import ContextMemoryError, SettingsError
from context_compiler.manager import MemoryRepository, MemorySystem, Score, SessionShelf, Snapshot
from context_compiler.messages.history import Reader
from context_compiler.tokens import as_counter
from tests.manager.conftest import AnyMemory
from tests.manager.fakes import Scribe, managed
from tests.support.builders import assistant, user

FACTS = [
    "The API listens on port 8081.",
    "Ada prefers tea to coffee.",
    "Never deploy on Fridays.",
    "The staging database is called heron.",
]


async def filled(memory: AnyMemory) -> list[str]:
    return [await memory.remember(text) for text in FACTS]


async def texts(memory: AnyMemory, query: str, limit: int = 9) -> list[str]:
    return [match.memory.text for match in await memory.search(query, limit)]


def snapshot(*texts: str) -> Snapshot:
    messages = [user(text) if at % 2 == 0 else assistant(text) for at, text in enumerate(texts)]
    return Snapshot(turns=Reader(as_counter(None)).read(messages), count=(len(texts) + 1) // 2, facts='{"a": 1}')


def test_a_memory_implements_all_three_protocols(memory: AnyMemory) -> None:
    assert isinstance(memory, MemorySystem)
    assert isinstance(memory, MemoryRepository)
    assert isinstance(memory, SessionShelf)


async def test_the_best_match_comes_first(memory: AnyMemory) -> None:
    await filled(memory)
    for query, first in (
        ("Which port does the API listen on?", FACTS[0]),
        ("What does Ada like to drink, tea?", FACTS[1]),
        ("May we deploy on Friday?", FACTS[2]),
        ("name of the staging databases", FACTS[3]),
    ):
        assert (await texts(memory, query))[0] == first


async def test_a_query_without_a_match_finds_nothing(memory: AnyMemory) -> None:
    await filled(memory)
    for query in ("", "   ", "the of and", "zebra crossing", '"', "\0", "NEAR(", "a OR", "*", "=:"):
        assert await texts(memory, query) == [], query


async def test_scores_are_between_0_and_1_and_descend(memory: AnyMemory) -> None:
    await filled(memory)
    scores = [match.score for match in await memory.search("port of the API and the staging database heron", 9)]
    assert len(scores) > 1 and scores == sorted(scores, reverse=True)
    assert all(0 < score <= 1 for score in scores)


async def test_a_search_returns_at_most_the_limit(memory: AnyMemory) -> None:
    for number in range(80):
        await memory.remember(f"The port of service {number} is {8000 + number}.")
    assert len(await memory.search("port of the service", 5)) == 5
    assert (await texts(memory, "service 77 port", 1)) == ["The port of service 77 is 8077."]
    assert await memory.search("port", 0) == []


async def test_a_text_is_remembered_once(memory: AnyMemory) -> None:
    names = await filled(memory)
    assert await memory.remember(FACTS[1]) == names[1]
    assert len(set(names)) == len(names)
    assert await texts(memory, "Ada tea coffee") == [FACTS[1]]


@pytest.mark.parametrize("text", ["", "\0\0", "half \ud800 a pair: heron", "船は heron", "a" * 200_000 + " heron"])
async def test_any_text_can_be_remembered(memory: AnyMemory, text: str) -> None:
    name = await memory.remember(text)
    assert name == await memory.remember(text)
    if "heron" in text:
        assert await texts(memory, "heron") == [text]


async def test_a_checkout_restores_exactly_and_both_ways(memory: AnyMemory) -> None:
    await filled(memory)
    first = await memory.commit("first")
    added = await memory.remember("The port is 9000 now.")
    second = await memory.commit("second")
    await memory.checkout(first)
    assert await texts(memory, "port") == [FACTS[0]]
    await memory.checkout(second)
    assert [match.memory.id for match in await memory.search("port 9000", 1)] == [added]
    await memory.checkout(second)
    assert len(await texts(memory, "port")) == 2


async def test_texts_stored_after_a_checkout_form_a_branch(memory: AnyMemory) -> None:
    await memory.remember(FACTS[0])
    first = await memory.commit("first")
    await memory.remember("one way: heron")
    second = await memory.commit("second")
    await memory.checkout(first)
    await memory.remember("another way: heron")
    third = await memory.commit("third")
    assert [commit.id for commit in await memory.log()] == [third, first]
    diff = await memory.diff(second, third)
    assert [fact.text for fact in diff.added] == ["another way: heron"]
    assert [fact.text for fact in diff.removed] == ["one way: heron"]
    assert await memory.diff(third, third) == type(diff)(added=(), removed=())
    await memory.checkout(second)
    assert await texts(memory, "heron") == ["one way: heron"]


async def test_the_log_is_newest_first_and_shows_what_was_added(memory: AnyMemory) -> None:
    assert await memory.log() == []
    await filled(memory)
    first = await memory.commit("first", "ada", snapshot("Hi.", "Hello.", "Bye."))
    second = await memory.commit("second")
    log = await memory.log()
    assert [(commit.id, commit.parent, commit.message, commit.author) for commit in log] == [
        (second, first, "second", "context-manager"),
        (first, None, "first", "ada"),
    ]
    assert [(commit.memories, commit.turns) for commit in log] == [(4, 0), (4, 2)]
    assert [commit.id for commit in await memory.log(1)] == [second]
    assert await memory.log(0) == []


async def test_checking_out_an_unknown_commit_changes_nothing(memory: AnyMemory) -> None:
    await filled(memory)
    commit = await memory.commit("first")
    for missing in ("", "nonsense", commit[:-1]):
        with pytest.raises(ContextMemoryError, match="no commit"):
            await memory.checkout(missing)
        with pytest.raises(ContextMemoryError, match="no commit"):
            await memory.diff(commit, missing)
        with pytest.raises(ContextMemoryError, match="no commit"):
            await memory.session_at(missing)
    assert await texts(memory, "port") == [FACTS[0]]


async def test_a_session_is_restored_as_committed_and_as_last_saved(memory: AnyMemory) -> None:
    assert await memory.latest() is None
    early, late = snapshot("Hi.", "Hello."), snapshot("Hi.", "Hello.", "And now?")
    commit = await memory.commit("first", session=early)
    await memory.keep(late)
    for saved, expected in ((await memory.session_at(commit), early), (await memory.latest(), late)):
        assert saved is not None and saved.facts == expected.facts
        assert saved.bodies == tuple(expected.turns.body(position) for position in range(len(expected.turns.ids)))
    bare = await memory.commit("bare")
    assert await memory.session_at(bare) is None


async def test_scores_are_kept_in_their_order(memory: AnyMemory) -> None:
    scores = [
        Score(turn=turn, quality=turn / 3, health=0.5, tokens=turn, created_at=datetime(2026, 1, 2, tzinfo=UTC))
        for turn in range(3)
    ]
    for score in scores:
        await memory.keep(snapshot("Hi."), score)
    await memory.keep(snapshot("Hi."))
    assert list(await memory.scores()) == scores


async def test_a_value_that_is_not_text_is_refused_and_changes_nothing(memory: AnyMemory) -> None:
    wrongs: list[Any] = [None, 5, b"x", ["x"]]
    for wrong in wrongs:
        for step in (memory.remember(wrong), memory.search(wrong, 3), memory.commit(wrong), memory.commit("m", wrong)):
            with pytest.raises(SettingsError, match="give text to a memory"):
                await step
    assert await memory.log() == []


async def test_an_invalid_limit_is_refused(memory: AnyMemory) -> None:
    wrongs: list[Any] = ["3", 1.5, True, [1]]
    for wrong in wrongs:
        for step in (memory.search("heron", wrong), memory.log(wrong)):
            with pytest.raises(SettingsError, match="limit="):
                await step


async def test_an_unknown_commit_is_refused(memory: AnyMemory) -> None:
    wrongs: list[Any] = [None, 5, ["x"], "../x", "\x00"]
    for wrong in wrongs:
        for step in (memory.checkout(wrong), memory.session_at(wrong), memory.diff(wrong, wrong)):
            with pytest.raises(ContextMemoryError, match="no commit"):
                await step


async def test_a_checkpoint_accepts_only_text(memory: AnyMemory) -> None:
    manager = managed(memory=memory)
    with pytest.raises(SettingsError, match="message"):
        await manager.checkpoint(None)  # pyright: ignore[reportArgumentType] # wrong on purpose
    assert manager.next_checkpoint is None


@pytest.mark.parametrize("words", [60, 300])
async def test_a_long_question_is_looked_up_to_its_end(memory: AnyMemory, words: int) -> None:
    await memory.remember("The zebra zone is closed.")
    pasted = " ".join(f"alpha{chr(97 + number // 26)}{chr(97 + number % 26)}x" for number in range(words))
    assert await texts(memory, f"{pasted} zebra zone") == ["The zebra zone is closed."]


async def test_versions_of_one_summary_do_not_crowd_out_other_memories(memory: AnyMemory) -> None:
    await memory.remember("The quiet hotel in Oslo takes no dogs.")
    scribe = Scribe(lambda number: f"Version {number}: a trip to Oslo, a quiet hotel, dates in June.")
    manager = managed(scribe, memory, max_tokens=600, recent_turns_to_keep=2)
    for number in range(60):
        await manager.process_turn(f"Which quiet hotel for the trip to Oslo, question {number}? " + "detail " * 20)
        manager.add_response("answer " * 40)
    assert scribe.asked > 8
    matches = await texts(memory, "quiet hotel for the trip to Oslo in June", 32)
    newest = f"[context-summary] Version {scribe.asked}: a trip to Oslo, a quiet hotel, dates in June."
    assert sorted(matches) == ["The quiet hotel in Oslo takes no dogs.", newest]
    result = await manager.process_turn("Which quiet hotel for the trip to Oslo?")
    assert len(result.grounding_used) == 1


async def test_a_checkout_finds_the_summary_of_its_time(memory: AnyMemory) -> None:
    await memory.remember("[context-summary] The first herons.")
    first = await memory.commit("first")
    await memory.remember("[context-summary] The second herons.")
    second = await memory.commit("second")
    assert await texts(memory, "herons") == ["[context-summary] The second herons."]
    await memory.checkout(first)
    assert await texts(memory, "herons") == ["[context-summary] The first herons."]
    await memory.checkout(second)
    assert await texts(memory, "herons") == ["[context-summary] The second herons."]
    await memory.remember("[context-summary] The first herons.")
    assert await texts(memory, "herons") == ["[context-summary] The first herons."]
