"""Plants: their places depend on the seed alone, and their survival is counted by kind and by round."""

from __future__ import annotations

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage

from context_compiler.testing import live, plant, replay, snapshot_text
from tests.testing.agents import compiling, matters, newest, trimming


def test_the_same_seed_plants_the_same_and_another_one_does_not() -> None:
    def planted(seed: int) -> list[str]:
        return plant(matters(9), facts=2, rules=1, updates=1, secrets=1, seed=seed).prompts

    assert planted(1) == planted(1) != planted(2)
    texts = "\n".join(planted(1))
    assert texts.count("is called") == 2 and texts.count("The limit of project") == 2 and "access code" in texts


def test_everything_survives_without_a_history_processor() -> None:
    planted = plant(matters(8), facts=3, rules=["Answer in French."], updates=2, secrets=1)
    survival = planted.survival(live(Agent(), planted.prompts))
    survival.assert_at_least(fact=1, rule=1, update=1, secret=1)
    assert [survival.cliff(kind) for kind in ("fact", "rule", "update", "secret")] == [None] * 4


def test_a_window_has_a_cliff_where_it_ends() -> None:
    planted = plant(matters(20), facts=6)
    survival = planted.survival(live(trimming(), planted.prompts))
    assert len(newest(live(Agent(), planted.prompts).history)) == 5, "three prompts"
    assert survival.cliff("fact") == 3 and survival.share("fact", 2) == 1 and survival.share("fact", 3) == 0
    with pytest.raises(AssertionError, match=r"too few plants survive: fact 0\.\d\d of 0\.90\nkind +all +cliff"):
        survival.assert_at_least(fact=0.9)


def test_rules_outlive_facts_under_the_compiler() -> None:
    planted = plant(matters(40), facts=6, rules=["Never write to the archive.", "Always answer in French."])
    survival = planted.survival(live(compiling(700), planted.prompts))
    assert survival.share("rule") == 1 > survival.share("fact")


def test_the_messages_of_a_recording_are_planted_too() -> None:
    raw: list[ModelMessage] = live(Agent(), matters(6)).raw
    planted = plant(raw, facts=["The host is called heron."], updates=[["The limit is 5.", "The limit is 9."]], seed=3)
    assert len(planted.prompts) == len(raw) and "heron" not in str(raw)
    conversation = replay(planted.prompts, Agent())
    conversation.assert_in_context("The host is called heron.")
    assert planted.survival(conversation).share("update") == 1


def test_a_snapshot_shows_what_each_request_adds_and_leaves_out() -> None:
    prompts = [f"Matter {number}.\nPlease." for number in range(4)]
    shown, again = (snapshot_text(live(trimming(instructions="Be kind."), prompts)) for _ in range(2))
    assert shown == again
    blocks = shown.split("\n\n")
    assert blocks[0].splitlines()[1:] == ["+ instructions and tools: Be kind.", "+ user: Matter 0.", "+   Please."]
    assert blocks[1].splitlines()[1:] == [
        "+ assistant: success (no tool calls)",
        "+ user: Matter 1.",
        "+   Please.",
    ]
    assert "- user: Matter 0. Please." in blocks[3].splitlines()


def test_kinds_that_were_not_planted_and_conversations_without_prompts_are_named() -> None:
    planted = plant(["Hello."], facts=1)
    with pytest.raises(ValueError, match="'rule': nothing of this kind was planted, only: fact"):
        planted.survival(live(Agent(), planted.prompts)).assert_at_least(rule=1)
    with pytest.raises(ValueError, match="no prompt"):
        plant([], facts=1)


@pytest.mark.parametrize("prompts", [2, 5])
def test_the_newest_value_of_an_update_is_always_planted(prompts: int) -> None:
    values = [f"The limit is {number}." for number in range(prompts)]
    planted = plant(matters(prompts), updates=[values])
    assert planted.survival(live(Agent(), planted.prompts)).share("update") == 1
    with pytest.raises(ValueError, match=f"need as many prompts; there are {prompts}"):
        plant(matters(prompts), updates=[[*values, "The limit is 99."]])
