"""The rules of a request as its page shows them, and the lines in place of what is left out."""

from __future__ import annotations

import asyncio
import html
from pathlib import Path

from starlette.testclient import TestClient

from context_compiler import ContextCompiler
from tests.web.conftest import RULE, pages_of, renovation, requests_of

DECLARED = "Answer in Dutch."


def rules(client: TestClient, number: int) -> list[tuple[str, str, str]]:
    page = client.get(f"/api/requests/{number}").json()
    return [(rule["text"], rule["origin"], rule["state"]) for rule in page["rules"]]


def test_the_rules_of_a_request_are_shown_with_their_texts(tmp_path: Path) -> None:
    prompts = renovation("Never deploy on Fridays. From now on, sign every order.", RULE)
    with pages_of(tmp_path / "context.db", prompts, budget=600, rules=[DECLARED]) as client:
        last = requests_of(client, "talk")[-1]["id"]
        assert rules(client, last) == [
            (DECLARED, "rule of rules=", "listed"),
            ("Never deploy on Fridays.", "rule of message 0", "listed"),
            ("From now on, sign every order.", "rule of message 0", "listed"),
            (RULE, "rule of message 2", "listed"),
        ]
        page = html.unescape(client.get(f"/requests/{last}").text)
        assert f'<q dir="auto">{DECLARED}</q>' in page and f'<q dir="auto">{RULE}</q>' in page
        assert "had no room" not in page


def test_a_dismissed_rule_keeps_its_own_text(tmp_path: Path) -> None:
    db = tmp_path / "context.db"
    prompts = renovation("Never deploy on Fridays. From now on, sign every order.")

    async def dismiss() -> None:
        compiler = ContextCompiler(model="none", store=db, system=None)
        await compiler.dismiss_rule("talk", "deploy on Fridays")
        await compiler.aclose()

    with pages_of(db, prompts, budget=600) as client:
        asyncio.run(dismiss())
        with pages_of(db, [*prompts, "And the porch?"], budget=600):
            last = requests_of(client, "talk")[-1]["id"]
            assert rules(client, last) == [
                ("From now on, sign every order.", "rule of message 0", "listed"),
                ("Never deploy on Fridays.", "rule of message 0", "not in force"),
            ]


def plan(times: int) -> str:
    """A rule that is as long as wanted."""
    return f"Never order anything without asking me, and {'look at the plan of the house twice, and ' * times}tell me."


def test_a_rule_without_room_is_a_warning_at_once(tmp_path: Path) -> None:
    with pages_of(tmp_path / "context.db", renovation(), budget=300, rules=[plan(20)]) as client:
        last = requests_of(client, "talk")[-1]["id"]
        assert rules(client, last) == [("", "rule of rules=", "left out")]
        page = client.get(f"/requests/{last}").text
        assert "<b>1 rule had no room</b> and is not in this request: a rule of rules=." in page
    with pages_of(tmp_path / "other.db", renovation(plan(5)), budget=300) as client:
        last = requests_of(client, "talk")[-1]["id"]
        assert (
            f'had no room</b> and is not in this request: <q dir="auto">{plan(5)}'
            in client.get(f"/requests/{last}").text
        )


def test_a_line_in_place_of_messages_has_a_form_of_its_own(tmp_path: Path) -> None:
    with pages_of(tmp_path / "context.db", renovation(plan(3)), budget=300) as client:
        last = requests_of(client, "talk")[-1]["id"]
        messages = client.get(f"/api/requests/{last}").json()["messages"]
        pieces = [piece for message in messages for part in message["parts"] for piece in part["segments"]]
        assert [piece["form"] for piece in pieces if piece["text"] == "[…]"] == ["gap"]
        assert '<span class="cc-chip cc-gap">in place of what is left out' in client.get(f"/requests/{last}").text
