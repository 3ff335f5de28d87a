from __future__ import annotations

import sys

import pytest
from hypothesis import given

from context_compiler.messages.instructions import instruction_sentences
from context_compiler.messages.prompts import sentence_ends
from tests.support.texts import texts

BINDING = """\
No, I'd prefer not to be transferred.
I don't want to fly before 11am EST.
I do not wish to add travel insurance.
Ensure we get an aisle and a middle seat together.
And please ensure any refund goes to the original payment method.
I prefer flights departing after 8am and before 9pm.
Just make sure we have an aisle and a middle seat together.
I really don't want to be transferred to another agent.
invalid themes must NEVER explode
no conosle logs!
should be dimmer, don't modify the theme, look into the footer sources
hm, i selected the theme while you were working and got a crash, that should never happen.
truncated text must stop when it encounters a new line ...
no, the block should stay as is
DO NOT run any command that produces binary output!
Remember, YOU CAN ONLY ENTER ONE COMMAND AT A TIME.
You should always wait for feedback after every command.
When editing a file, make sure to insert appropriate indentation before each line!
Prefer using tools available in the container over writing a lot of code yourself.
Never push to main without a review.
From now on, answer in German.
Please don't touch the migrations folder.
Whenever you change the schema, update the docs as well.
When I ask about costs, show them in euros.
Under no circumstances should you delete production data.
I want you to always cite your sources.
No matter what, never share my phone number.
Only use the standard library.
Use tabs, not spaces.
Stop apologising all the time.
Ask me before you install anything.
For the rest of this conversation call the project Heron.
Unless I say otherwise, assume metric units.
Leave the public API as it is.
The handler must never raise.
I'd rather you didn't use abbreviations.
Fix the test, but don't change the fixture.
1. Always validate input before saving it.
can you please always answer in one paragraph?
As a rule, write commit messages in the imperative.
My rule: one commit per change, always.
Keep it short from here on.
Use British spelling, never American.
Until I say otherwise, treat the API as frozen.
Every time I say "ship it", run the release script.
Ab jetzt bitte nur noch auf Deutsch antworten.
Nunca borres la rama principal.
从现在开始请用中文回答。
今後は日本語で答えてください。
Всегда отвечай по-русски.
""".splitlines()

PASSING = """\
I don't remember the reservation ID right now.
Could you please make sure we have an aisle and a middle seat together?
I just want to make sure all my upcoming business flights are downgraded to economy.
That sounds good, but just to make sure, how many passengers were in that reservation?
Actually, never mind.
No problem!
No worries.
I must have left it somewhere else.
As a Gold member, I've always had great experiences.
But just to clarify, I'm only interested in canceling flights with just me on the reservation.
I'll make sure to find my user ID and get back to you as soon as possible.
No, that's all for now.
i don't understand, does it capture the theme variable imported at creation time?
wait, do we only have a single link color?
no, that's not it, bot use the dark theme.
alright, i think there's only one file left to fix up, tui-renderer.ts, read it in full
Never forget the people's champ.
A command that did not work once will not work the second time unless you modify it!
I never went to Paris.
Have you ever been to Lisbon?
Why should I never use eval?
He always takes the early train.
The build does not pass on Windows.
What must I do to reset my password?
We always deploy on Tuesdays.
Never mind, I found it.
You must be joking.
The docs say `never call this twice`.
He said "always lock the door" and left.
The always-on mode drains the battery.
Don't you think it is too long?
Whenever I open the app it crashes.
If I ask nicely, will it work?
I forgot to make sure the door was shut.
I always forget my password.
Let's keep going.
Keep up the good work!
He told me not to worry.
Book the 9 am flight to Boston.
don't know if that helps
Only two seats are left.
I can't keep up with all the emails.
Why is the answer never cached?
whenever I try to log in, I see a blank page
I was told not to touch it.
Could you never find it?
no changes since the last run
delete the last paragraph
> Never answer this mail.
if (!token) { return never; } // always
""".splitlines()


def test_binding_instructions_are_found_with_high_recall_and_precision() -> None:
    missed = [sentence for sentence in BINDING if not instruction_sentences(sentence)]
    wrong = [sentence for sentence in PASSING if instruction_sentences(sentence)]
    hits = len(BINDING) - len(missed)
    assert hits / (hits + len(wrong)) >= 0.95, wrong
    assert hits / len(BINDING) >= 0.9, missed


@pytest.mark.parametrize("said", ["The job must never run at night", "Don't touch the tests", "Always use tabs"])
def test_a_question_is_not_an_instruction(said: str) -> None:
    assert instruction_sentences(f"{said}.")
    assert not instruction_sentences(f"{said}?")


@pytest.mark.parametrize(
    ("remark", "order"),
    [
        ("It's my favorite and never gets old.", "Never pass a password on."),
        ("Walks like these are great - always full of surprises!", "Always fill in the form."),
        ("I'm gonna keep going and reach my dreams no matter what.", "Keep the tests green no matter what."),
    ],
)
def test_a_remark_on_a_pastime_is_not_an_instruction(remark: str, order: str) -> None:
    assert instruction_sentences(order)
    assert not instruction_sentences(remark)


def test_code_and_quotations_contain_no_instructions() -> None:
    assert instruction_sentences("Look:\n```\nNever do this.\n```\nNever do that.") == ("Never do that.",)
    assert instruction_sentences("> Never do this.\nHe wrote “never do this”.") == ()


def test_a_sentence_does_not_end_at_an_abbreviation() -> None:
    assert instruction_sentences("Never mail suppliers, e.g. Dr. Smith, on Sundays. Bye.") == (
        "Never mail suppliers, e.g. Dr. Smith, on Sundays.",
    )


@given(text=texts())
def test_sentences_cover_the_text_in_order(text: str) -> None:
    ends = list(sentence_ends(text))
    assert ends == sorted(set(ends))
    assert all(0 < end <= len(text) for end in ends)


def test_found_instructions_keep_no_prompt_alive() -> None:
    text = "".join(["Never push to main. ", "What is this? " * 1_000])
    held = sys.getrefcount(text)
    assert instruction_sentences(text) == instruction_sentences(text) == ("Never push to main.",)
    assert sys.getrefcount(text) == held
