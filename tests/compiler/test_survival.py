"""What a summary loses is counted on the record and stands verbatim beside it."""

from __future__ import annotations

import re

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage

from context_compiler.compiler.specifics import specifics, survival
from context_compiler.record.values import Compile
from tests.support.agents import Notes, Talker, compiler, run
from tests.support.histories import answer, assistant, call, user


def words(number: int, count: int) -> str:
    """Prose with nothing in it that must not be lost."""
    said = "and so we went on with some more of the same plain talk about nothing in particular".split()
    return " ".join(said[(number * 7 + at * 3) % len(said)] for at in range(count))


HISTORY: list[ModelMessage] = [
    user("Fix the cart: the total of order 8841-22 is $1,299.00 and should be less."),
    assistant(call("look", "1", path="src/shop/cart.py")),
    user(answer("1", f"def total(): ...\n{words(1, 300)}")),
    assistant("It is in src/shop/cart.py, the discount of 12.5 % is missing."),
    *[message for n in range(8) for message in (user(f"{n} {words(n, 120)}"), assistant(words(n + 50, 120)))],
]


async def compiled(summary: str | Exception, history: list[ModelMessage] = HISTORY) -> tuple[str, Compile]:
    """What the model is sent after a compile whose model says `summary`, and the row of the compile."""
    talker = Talker()
    ours = compiler(Notes(summary), budget=3_000)
    await run(Agent(talker.model, capabilities=[ours]), "and now?", message_history=history)
    [record] = await ours.views()
    assert record.compile is not None
    return talker.last.text, record.compile


def fenced(sent: str) -> str:
    found = re.search(r"=== BEGIN QUOTED ===(.*?)=== END QUOTED", sent)
    return found[1] if found else ""


async def test_specifics_that_a_summary_lost_are_quoted_verbatim_with_their_origin() -> None:
    sent, row = await compiled("The cart of order 8841-22 was looked at; a discount is missing.")
    assert re.search(r"look\(path=src/shop/cart\.py\)", fenced(sent))
    assert re.search(r"\[from turn 1 [^\]]*user\] [^\[]*\$1,299\.00", fenced(sent).replace("\\u00b7", "·"))
    assert row.survival is not None and 0 < row.survival < 1


async def test_the_share_that_survives_is_on_the_record() -> None:
    kept, lost = "Order 8841-22: $1,299.00, src/shop/cart.py, 12.5 % off.", "A cart was looked at."
    shares = [(await compiled(summary))[1].survival for summary in (kept, lost)]
    assert shares[0] is not None and shares[1] == 0.0 and shares[0] > 0.5


async def test_the_record_counts_what_is_in_summary_and_view() -> None:
    _, row = await compiled("Order 8841-22 was looked at.")
    counts = (row.input_payload or {})["specifics"]
    assert isinstance(counts, dict)
    assert row.survival == counts["in_summary"] / counts["found"]
    assert counts["in_summary"] < counts["in_view"] <= counts["found"]


async def test_the_status_reports_an_unused_answer() -> None:
    _, row = await compiled("")
    assert row.survival is None and re.search(r"survival[^;]*: the answer is not used", row.status)


async def test_lost_specifics_are_not_put_on_the_system_channel() -> None:
    talker = Talker()
    ours = compiler(Notes("A cart was looked at."), budget=3_000, inject="system")
    await run(Agent(talker.model, capabilities=[ours]), "and now?", message_history=HISTORY)
    system = [
        str(part) for message in talker.last.messages for part in message.parts if part.part_kind == "system-prompt"
    ]
    assert any("A cart was looked at." in text for text in system)
    assert not any("cart.py" in text for text in system) and "src/shop/cart.py" in fenced(talker.last.text)


def test_without_specifics_the_survival_share_is_one() -> None:
    assert survival((), "anything").share == 1.0


def test_only_a_complete_specific_counts_as_kept() -> None:
    assert survival(specifics("src/a.py and v1.2.3"), "see src/a.py, v1.2.34").share == 0.5
