"""The recipe assistant: ten turns over a real table, and what each of its four agents was sent in each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from context_compiler import Record, View
from context_compiler.layers.conversation import ConversationContext
from context_compiler.messages.items import separate_parts
from examples.recipe_assistant import WALK, RecipeAssistant, Script, block_of

pytestmark = pytest.mark.slow  # whichever is first walks for all


@dataclass(frozen=True, kw_only=True)
class Walked:
    """The walk: blocks by turn (from 1) and node, all views, what is stored, and what the table and record hold."""

    blocks: dict[tuple[int, str], str]
    views: list[View]
    answers: list[str]
    stored: ConversationContext
    recipes: list[str]
    pantry: list[str]
    records: list[Record]


async def walked(folder: Path) -> Walked:
    script, blocks, answers = Script(), dict[tuple[int, str], str](), list[str]()
    assistant = RecipeAssistant(folder, script.models)
    try:
        for number, (message, _) in enumerate(WALK):
            script.turn(number)
            before = len(assistant.sent)
            answers.append(await assistant.say("kitchen", message))
            for _, node, view in assistant.sent[before:]:
                blocks.setdefault((number + 1, node), "\n".join(block_of(view)))
        return Walked(
            blocks=blocks,
            views=[view for _, _, view in assistant.sent],
            answers=answers,
            stored=await assistant.layers.conversation("kitchen"),
            recipes=[row["name"] for row in assistant.table.execute("SELECT name FROM recipes ORDER BY id")],
            pantry=[row["name"] for row in assistant.table.execute("SELECT name FROM inventory ORDER BY name")],
            records=await assistant.layers.store.views("kitchen"),
        )
    finally:
        await assistant.close()


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walked]:
    yield asyncio.run(walked(tmp_path_factory.mktemp("kitchen")))


def test_ten_turns_are_answered(walk: Walked) -> None:
    assert walk.answers == [lines["reply"] for _, lines in WALK] and len(walk.answers) == 10


def test_the_first_turn_has_no_entities(walk: Walked) -> None:
    for node in ("understand", "think", "act"):
        block = walk.blocks[1, node]
        assert "No entities in context." in block and "New conversation." in block
    assert "- Lemon Herb Chicken (saved)\n- Chicken Curry (saved)" in walk.blocks[1, "reply"]


def test_entities_read_in_earlier_turns_are_listed_as_not_to_be_read_again(walk: Walked) -> None:
    assert "DO NOT re-read: recipe_1\n" in walk.blocks[3, "think"]
    assert "Last turn: Note what the user likes" in walk.blocks[3, "think"]


def test_a_demoted_entity_disappears_at_once(walk: Walked) -> None:
    assert "`recipe_2`: Chicken Curry" in walk.blocks[2, "understand"], "before it decides"
    assert "Chicken Curry\n" not in walk.blocks[2, "think"].split("## Conversation")[0]
    assert "Demoted: recipe_2" in walk.blocks[2, "think"]
    for turn in range(3, 9):
        for node in ("understand", "think", "act", "reply"):
            assert "Curry" not in walk.blocks.get((turn, node), "").split("## Conversation")[0]


def test_act_has_the_content_that_was_read(walk: Walked) -> None:
    assert '"method": "Roast with lemon and thyme."' in walk.blocks[4, "act"]
    assert not any("Roast with lemon and thyme." in walk.blocks[4, node] for node in ("understand", "think", "reply"))


def test_a_generated_entity_is_listed_separately_until_it_is_saved(walk: Walked) -> None:
    assert "Generated, not saved yet:\n- `gen_recipe_1`: Noodle Soup" in walk.blocks[5, "think"]
    assert "- Noodle Soup (not saved yet)" in walk.blocks[5, "reply"]
    assert '"method": "Boil noodles in broth."' in walk.blocks[6, "act"]
    assert "Active entities:\n- `gen_recipe_1`: Noodle Soup" in walk.blocks[7, "think"], "saved, under the same ref"
    assert "- Noodle Soup (saved)" in walk.blocks[6, "reply"]
    assert walk.recipes == ["Lemon Herb Chicken", "Chicken Curry", "Tomato Salad", "Noodle Soup"]


def test_a_proposal_is_pending_until_it_is_answered(walk: Walked) -> None:
    asked = "Awaiting the user's answer (propose): Shall I save Noodle Soup to your recipes?"
    assert asked in walk.blocks[5, "reply"], "what this turn asks"
    assert all(asked in walk.blocks[6, node] for node in ("understand", "think"))
    assert "Asked before, answered in this turn" in walk.blocks[6, "reply"]
    assert "Shall I save" not in walk.blocks[6, "act"].split("## Conversation")[0]
    assert not any("Awaiting" in block for (turn, _), block in walk.blocks.items() if turn > 6)
    assert walk.stored["pending_clarification"] is None


def test_a_blocked_turn_is_seen_by_reply_and_in_the_next_turn(walk: Walked) -> None:
    why = "CRUD failed: UNIQUE constraint failed: inventory.name | db_create on inventory: sugar, noodles"
    assert walk.pantry == ["noodles", "salt"], "nothing of it was put in"
    assert f"Blocked: {why}" in walk.blocks[7, "reply"]
    assert f"Blocked: {why}" in walk.blocks[8, "think"]
    assert f"Blocked last turn: {why}" in walk.blocks[8, "reply"]


def test_a_demoted_entity_returns_under_its_ref_when_mentioned(walk: Walked) -> None:
    assert "- `recipe_2`: Chicken Curry" in walk.blocks[9, "think"]
    assert "- Chicken Curry (saved)" in walk.blocks[9, "reply"]


def test_retained_entities_are_named_to_the_nodes_that_need_them(walk: Walked) -> None:
    retained = "Retained from earlier turns:\n- `recipe_1`"
    assert f"{retained}: Lemon Herb Chicken" in walk.blocks[10, "understand"]
    assert "kept because: the user loves it" in walk.blocks[10, "understand"]
    assert f"{retained}\n" in walk.blocks[9, "think"], "the ref alone"
    assert "Lemon" not in walk.blocks[7, "act"].split("## Conversation")[0]
    assert "- Lemon Herb Chicken (saved)" in walk.blocks[10, "reply"], "spoken of, and active again"


def test_act_gets_the_steps_of_a_turn_and_reply_their_outcomes(walk: Walked) -> None:
    assert "Accomplished: Save Noodle Soup: Saved Noodle Soup" in walk.blocks[6, "reply"]
    assert "- step 1 (generate, recipes): Make up a noodle dish: Made up Noodle Soup" in walk.blocks[5, "think"]
    assert "step 1" not in walk.blocks[5, "reply"] + walk.blocks[5, "understand"]


def test_old_turns_are_shortened(walk: Walked) -> None:
    assert "Earlier: User: What chicken recipes do I have? | answered:" in walk.blocks[8, "think"]
    assert "Earlier: Turn 1: Find chicken recipes; Turn 2: Note what the user likes" in walk.blocks[10, "think"]
    assert "Earlier" not in walk.blocks[9, "act"] + walk.blocks[10, "reply"]
    assert len(walk.stored["recent_turns"]) == 5 and len(walk.stored["turn_summaries"]) == 2


def test_every_request_is_within_its_budget_and_on_the_record(walk: Walked) -> None:
    assert {record.vault_name for record in walk.records} == {"understand", "think", "act", "reply"}
    assert len(walk.records) == len(walk.views)
    assert all(record.tokens_sent <= 4_000 and record.ledger["tokens"]["layers"] > 0 for record in walk.records)


def test_each_message_follows_the_layers_of_its_node(walk: Walked) -> None:
    for view in walk.views:
        pieces = [str(part) for message in view.messages for part in separate_parts(message)]
        assert "CONTEXT LAYERS" in pieces[0] and "CONTEXT LAYERS" not in pieces[1]


async def test_saving_an_entity_that_was_never_generated_is_refused_in_the_tool_result(tmp_path: Path) -> None:
    script = Script()
    assistant = RecipeAssistant(tmp_path, script.models)
    script.turn(5)
    try:
        assert await assistant.say("kitchen", "Yes, please.") == "Noodle Soup is saved."
        sent = "".join(str(view.messages) for _, node, view in assistant.sent if node == "act")
        assert "gen_recipe_1 is no recipe that was made up" in sent
    finally:
        await assistant.close()
