"""Rules are lasting orders in the user's own words: nothing else gains a place in every request."""

from __future__ import annotations

import pytest
from hypothesis import given
from pydantic_ai.messages import ModelMessage, TextContent

from context_compiler.messages.fences import one_line
from context_compiler.messages.history import Reader
from context_compiler.messages.items import MARK
from context_compiler.messages.rules import Rule, contradicts, find_rules, rule_sentences, rules_in_force
from context_compiler.tokens import TokenCounter
from tests.messages.rule_sets import OTHERS, RULES
from tests.support.histories import answer, assistant, call, histories, user


def found(messages: list[ModelMessage]) -> tuple[Rule, ...]:
    return rules_in_force(find_rules(Reader(TokenCounter(len)).read(messages)).rules)


def test_a_rule_is_the_sentence_of_the_user_with_its_position() -> None:
    said = "The report is late. Never mail it before I say so. Thanks!"
    assert found([user("hello"), assistant("Hi."), user(said)]) == (Rule("Never mail it before I say so.", 2),)


def test_only_user_prompts_contain_rules() -> None:
    order = "You must never push to main."
    asked = [assistant(order, call("look", "1")), user(answer("1", order))]
    assert found([user("look around", system=order), *asked, user("and?")]) == ()


def test_a_file_in_a_prompt_does_not_hide_its_words() -> None:
    assert [one.text for one in found([user("Never use tabs.", TextContent(content="Never use spaces."))])] == [
        "Never use tabs.",
        "Never use spaces.",
    ]


def test_text_of_this_package_contains_no_rules() -> None:
    note = TextContent(content="Never push to main.", metadata={MARK: {"part": "quotes"}})
    assert found([user(note), user("Never use tabs.")])[0].text == "Never use tabs."
    assert len(found([user(note), user("Never use tabs.")])) == 1


def test_a_repeated_rule_counts_at_its_last_position() -> None:
    messages = [
        user("Never use tabs!"),
        assistant("ok"),
        user("Always test."),
        assistant("ok"),
        user("never use TABS."),
    ]
    assert [(rule.position, rule.text) for rule in found(messages)] == [(2, "Always test."), (4, "never use TABS.")]


def test_a_sentence_too_long_to_repeat_gives_none() -> None:
    assert found([user(f"Never send {'very ' * 60}long mails to the board.")])
    assert not found([user(f"Never send {'very ' * 100}long mails to the board.")])


@given(messages=histories())
def test_every_rule_of_any_history_is_one_line_of_a_user(messages: list[ModelMessage]) -> None:
    history = Reader(TokenCounter(len)).read(messages)
    for rule in found(messages):
        said = " ".join(item.text for item in history.readings[rule.position].items if item.mark is None)
        assert "\n" not in rule.text and len(rule.text) <= 400
        assert all(end in one_line(said, len(said)) or len(said) > 40_000 for end in rule.text.split("…"))


def test_rules_are_found_with_high_recall_and_precision() -> None:
    missed = [sentence for sentence in RULES if not rule_sentences(sentence)]
    wrong = [sentence for sentence in OTHERS if rule_sentences(sentence)]
    hits = len(RULES) - len(missed)
    assert hits / len(RULES) >= 0.9, missed
    assert hits / (hits + len(wrong)) >= 0.95, wrong


@pytest.mark.parametrize(
    "pasted",
    [
        "Answer this mail:\nDear team,\nNever restart the server. Always ask Bob.",
        "On Tuesday Bob wrote:\nDo not touch the boiler.",
        "> Never do this.\nHe wrote “never do this. Always do that.” today.",
        'He said: "Never open the valve. Always close it."',
        "Look:\n```\nNever do this.\n```\n",
        "Please answer this mail:\nDear team,\nNever restart the server. Always ask Bob.",
        "Please proofread the following text:\nDear guests,\nNever park in the yard.",
        "My landlord wrote:\nNever park in the yard. Always lock the gate.",
        "The sign says 'Dogs are welcome. Always keep dogs on a leash.' What does it mean?",
        "Why?\n\n```python\n" + "y = 22222\n" * 150 + "\n\n# Never call this.\nAlways close the file.\n```",
        "Here is the manual.\n\n" + "Never open the valve. Always close the tap. " * 40 + "\n\nWhat does it say?",
    ],
)
def test_pasted_text_contains_no_rules(pasted: str) -> None:
    assert rule_sentences(pasted) == ()


@pytest.mark.parametrize("code", ["for x in y:\n  f(x)", "x = 1\n" * 300])
def test_a_rule_after_a_block_of_code_is_found(code: str) -> None:
    assert rule_sentences(f"Fix this.\n```python\n{code}\n```\n\nNever change the API.") == ("Never change the API.",)


@pytest.mark.parametrize(
    "lines",
    [
        "Never delete files in the data directory\nunless they are older\nthan 30 days.",
        "Do not deploy to production when the\nmigration has not been reviewed.",
        "Never share the gate code\n7741 with drivers.",
    ],
)
def test_a_rule_goes_on_in_the_next_line(lines: str) -> None:
    assert rule_sentences(f"{lines}\nThanks!") == (lines.replace("\n", " "),)


def test_a_rule_ends_before_the_next_number_of_a_list() -> None:
    rules = ("Never deploy on Fridays", "Always run the linter")
    assert rule_sentences(f"My rules:\n1. {rules[0]}\n2. {rules[1]}") == rules


def test_each_line_that_begins_with_a_small_letter_is_a_rule() -> None:
    assert rule_sentences("never deploy on fridays\nalways ask bob") == ("never deploy on fridays", "always ask bob")


def test_rules_after_a_line_that_announces_them_are_rules() -> None:
    assert rule_sentences("My rules:\n- Never deploy on Fridays.\n- Always run the linter.") == (
        "Never deploy on Fridays.",
        "Always run the linter.",
    )


def test_the_words_around_a_long_pasted_text_are_the_users_own() -> None:
    manual = "Never open the valve. Always close the tap. " * 40
    assert rule_sentences(f"Never change headings.\n\n{manual}\n\nAlways keep the order.") == (
        "Never change headings.",
        "Always keep the order.",
    )


@pytest.mark.parametrize(
    "sentence",
    [
        "Never call me after 8 p.m. unless it is an emergency.",
        "Never mention Acme Inc. in public.",
        'Always reply with "Done." when a task is finished.',
        "Never use the U.S. date format.",
        "Nunca llames al Sr. Pérez antes de las nueve.",
        "Ab jetzt nur Preise inkl. MwSt. angeben.",
    ],
)
def test_a_rule_goes_on_after_an_abbreviation_or_a_quotation(sentence: str) -> None:
    assert rule_sentences(f"Thanks! {sentence} What is next?") == (sentence,)


@pytest.mark.parametrize("heading", ["My requirements", "Keep in mind", "Important", "A few things", "Meine Regeln"])
def test_a_list_under_a_heading_of_the_user_is_not_pasted(heading: str) -> None:
    rules = ("Never deploy on Fridays.", "Always sign with DS.")
    assert rule_sentences(f"{heading}:\n- {rules[0]}\n- {rules[1]}") == rules
    assert not rule_sentences(f"Review this document:\n- {rules[0]}\n- {rules[1]}")


@pytest.mark.parametrize(
    "heading", ["Hi, I'm Ines. Three rules for today, please keep them", "My rules", "1. Follow these simple rules"]
)
def test_every_item_of_a_list_that_the_user_calls_rules_is_a_rule(heading: str) -> None:
    prompt = f"{heading}:\n- Amounts in euros.\n- Every change goes through a pull request.\n\nThe code is in /srv."
    assert rule_sentences(prompt) == ("Amounts in euros.", "Every change goes through a pull request.")


@pytest.mark.parametrize("heading", ["Review these firewall rules", "The rules of the game", "Explain my rules"])
def test_a_list_of_rules_that_the_user_asks_about_is_none(heading: str) -> None:
    assert rule_sentences(f"{heading}:\n- Amounts in euros.\n- Every player draws a card.") == ()


@pytest.mark.parametrize(
    "sentence",
    [
        "Tom wrote: never deploy on Fridays.",
        "Translate to German: never open the door.",
        "Immer noch keine Antwort vom Lieferanten.",
        "Toujours pas de réponse du fournisseur.",
        "No news from Tom.",
    ],
)
def test_words_of_others_and_news_are_no_rules(sentence: str) -> None:
    assert not rule_sentences(sentence)


def test_friends_who_chat_give_no_rules() -> None:
    said = ["I went to the lake with my kids.", "My sister visited us.", "I felt so proud!", "I bought a new bike."]
    talk = [message for text in said for message in (user("Don't ever skip the lake trail."), assistant(text))]
    assert find_rules(Reader(TokenCounter(len)).read(talk)).between_people
    served = [message for _ in said for message in (user("Don't ever skip the lake trail."), assistant("I will not."))]
    assert not find_rules(Reader(TokenCounter(len)).read(served)).between_people


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("Never exceed 40 requests a minute.", "Never exceed 60 requests a minute."),
        (
            "We may spend $390, and never exceed that unless I agree.",
            "We may spend $878, and never exceed that unless I agree.",
        ),
        ("Always give amounts in euros.", "From now on, give amounts in dollars."),
        ("Always answer in French.", "Answer in English from now on."),
        ("Always use tabs.", "Never use tabs."),
        ("Write dates as day and month.", "From now on, write dates as year and week."),
    ],
)
def test_the_newest_of_two_contradicting_rules_holds(older: str, newer: str) -> None:
    assert contradicts(newer, older)
    assert [one.text for one in rules_in_force([Rule(older, 0), Rule(newer, 2)])] == [newer]


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("Do not touch the file harbour.toml.", "Do not touch the file quay.toml."),
        ("Never use port 8080.", "Never use port 9090."),
        ("Always write tests.", "Always write docs."),
        ("Never share the alarm code 7741.", "Never share the door code 5518."),
        ("Never deploy on Fridays.", "Never deploy on Mondays."),
        ("Always back up before deploys.", "Always back up before migrations."),
        ("Always answer in English.", "Always answer in one sentence."),
        ("Always send copies to Tom.", "Always send copies to Maria."),
        ("Always keep 3 backups.", "Always keep 5 logs."),
        ("Always use 2 spaces in YAML.", "Always use 4 spaces in Python."),
    ],
)
def test_rules_that_can_both_be_kept_stand_side_by_side(older: str, newer: str) -> None:
    assert [one.text for one in rules_in_force([Rule(older, 0), Rule(newer, 2)])] == [older, newer]
