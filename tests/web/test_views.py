"""Timeline, difference, replay, export and compile of real requests."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic_ai.messages import ModelMessagesTypeAdapter
from starlette.testclient import TestClient
from typer.testing import CliRunner

from context_compiler.cli.root import app
from context_compiler.record.store import SQLiteStore
from tests.web.conftest import RULE, number_of, pages_of, renovation, requests_of


def compiled(client: TestClient) -> dict[str, object]:
    return next(one for one in requests_of(client, "long") if one["status"] == "compiled")


def test_the_timeline_shows_every_request_and_the_cached_part(client: TestClient) -> None:
    timeline = client.get(f"/api/sessions/{number_of(client, 'long')}/timeline").json()
    rows = requests_of(client, "long")
    assert [shown["id"] for shown in timeline["points"]] == [row["id"] for row in rows]
    for before, point in zip(timeline["points"], timeline["points"][1:], strict=False):
        grown = point["status"] in ("raw", "cycle")
        assert point["shared"] <= point["sent"] and (point["shared"] >= 0.9 * before["sent"]) is grown, point
    page = client.get(f"/sessions/{number_of(client, 'long')}").text
    assert all(f'href="/requests/{row["id"]}"' in page for row in rows)


def test_the_cost_of_an_unknown_model_is_unknown(client: TestClient) -> None:
    found = client.get(f"/api/sessions/{number_of(client, 'long')}/timeline").json()["money"]
    assert found["sent"] is None and found["raw"] is None and "notes" in found["unknown"]
    assert "unknown" in client.get(f"/sessions/{number_of(client, 'long')}").text


def test_the_cost_of_a_session_is_that_of_its_records(client: TestClient, db: Path) -> None:
    number = number_of(client, "long")
    ids = [row["id"] for row in requests_of(client, "long")]
    with closing(sqlite3.connect(db)) as record:
        change = "UPDATE views SET model = ?, provider = 'openai' WHERE session = ? AND id >= ?"
        for model, first in (("gpt-4o", ids[0]), ("gpt-4o-mini", ids[-5])):
            record.execute(change, (model, number, first))
        record.commit()
    money = client.get(f"/api/sessions/{number}/timeline").json()["money"]
    (listed,) = client.get("/api/sessions", params={"name": "long"}).json()["sessions"]
    assert (
        money["models"] == ["gpt-4o", "gpt-4o-mini"] and "gpt-4o, gpt-4o-mini" in client.get(f"/sessions/{number}").text
    )
    assert (money["sent"], money["raw"]) == (listed["cost"], listed["cost_of_everything"])
    assert money["requests"] == len(ids) and float(money["sent"]) > 0


def test_a_request_that_only_grew_shares_all_of_the_one_before(client: TestClient) -> None:
    request = next(row for row in requests_of(client, "long")[3:] if row["status"] == "raw")
    diff = client.get(f"/api/requests/{request['id']}/diff").json()
    assert diff["common"] == diff["messages"][0]
    assert [row["kind"] for row in diff["rows"] if row["kind"] in ("removed", "changed")] == []
    kinds = [row["kind"] for row in diff["rows"]]
    assert "prefix" in kinds and kinds[kinds.index("prefix") + 1 :] == ["added"] * (
        len(kinds) - kinds.index("prefix") - 1
    )


def test_a_compile_shows_the_messages_it_left_out(client: TestClient) -> None:
    number = compiled(client)["id"]
    diff = client.get(f"/api/requests/{number}/diff").json()
    kinds = {row["kind"] for row in diff["rows"]}
    assert "removed" in kinds
    raw = client.get(f"/api/requests/{number}/diff", params={"with": "raw"}).json()
    rows = raw["rows"]
    out = sum(row["count"] if row["kind"] == "fold" else 1 for row in rows if row["kind"] == "removed")
    why = client.get(f"/api/requests/{number}/why").json()
    assert out == sum(why["counts"][verdict] for verdict in ("partial", "identifier", "told", "absent"))
    assert "end of the cached beginning" in client.get(f"/requests/{requests_of(client, 'long')[3]['id']}/diff").text


@pytest.mark.parametrize("other", ["raw", "1", "previous"])
def test_any_two_requests_can_be_compared(client: TestClient, other: str) -> None:
    for request in requests_of(client, "long")[::6]:
        answer = client.get(f"/api/requests/{request['id']}/diff", params={"with": other}).json()
        right = [row for row in answer["rows"] if row["kind"] in ("added", "changed", "same")]
        folded = sum(row["count"] for row in answer["rows"] if row["kind"] == "fold")
        assert len(right) + folded == answer["messages"][1] if answer["pages"]["total"] <= 50 else True


def test_a_replay_keeps_to_its_budget_and_sends_nothing(client: TestClient) -> None:
    number = requests_of(client, "long")[-1]["id"]
    asked = {"template": "extractive", "budget": 900}
    replay = client.get(f"/api/requests/{number}/replay", params=asked).json()
    assert replay["status"] in ("cycle", "compiled") and 0 < replay["tokens"] <= 900
    assert "Nothing was sent" in client.get(f"/requests/{number}/replay", params=asked).text
    whole = client.get(f"/api/requests/{number}/replay", params={"trigger": 100_000, "budget": 100_000}).json()
    assert whole["status"] == "raw" and whole["messages"] == replay["request"]["messages_raw"]


def test_a_replay_without_a_change_is_what_was_sent(client: TestClient) -> None:
    row = requests_of(client, "long")[-1]
    empty = dict.fromkeys(("template", "budget", "fidelity", "recall", "trigger"), "")
    for asked in ({}, empty, {"budget": row["budget"]}):
        replay = client.get(f"/api/requests/{row['id']}/replay", params=asked).json()
        sent = row["tokens_sent"], row["messages_sent"]
        assert (replay["changed"], replay["tokens"], replay["messages"]) == (False, *sent)
    page = client.get(f"/requests/{row['id']}/replay").text
    assert f'placeholder="as it was ({row["budget"]:,})"' in page
    assert '<select name="fidelity"><option value="">as it was' in page and "<option selected" not in page


def test_a_replay_with_other_settings_is_that_of_the_command_line(client: TestClient, db: Path) -> None:
    row = next(row for row in requests_of(client, "long") if row["status"] == "cycle")
    tokens = {row["tokens_sent"]}
    for name, value in (("budget", 2 * row["budget"]), ("recall", "0"), ("trigger", 900)):
        replay = client.get(f"/api/requests/{row['id']}/replay", params={name: value}).json()
        command = ["views", "replay", str(row["id"]), f"--{name}", str(value), "--db", str(db), "--json"]
        said = json.loads(CliRunner().invoke(app, command).stdout)
        assert (replay["tokens"], replay["status"]) == (said["after"]["tokens"], said["after"]["status"])
        tokens.add(replay["tokens"])
    assert len(tokens) == 4, "each setting changes the request"


@pytest.mark.parametrize(
    ("asked", "status"),
    [({"template": "nothing"}, 404), ({"fidelity": "x"}, 400), ({"budget": "-1"}, 400), ({"recall": "much"}, 400)],
)
def test_an_invalid_setting_of_a_replay_is_refused(client: TestClient, asked: dict[str, str], status: int) -> None:
    assert client.get(f"/requests/{requests_of(client, 'long')[-1]['id']}/replay", params=asked).status_code == status


def test_exports_can_be_read_again(client: TestClient) -> None:
    exported = (
        (request["id"], client.get(f"/requests/{request['id']}/export/json").json())
        for request in requests_of(client, "long")
    )
    number, document = next((number, export) for number, export in exported if number > 20 and export["answer"])
    messages = ModelMessagesTypeAdapter.validate_python(document["messages"])
    code = client.get(f"/requests/{number}/export/python")
    assert "attachment" in code.headers["content-disposition"]
    names: dict[str, object] = {}
    exec(code.text, names)
    assert names["messages"] == messages
    [case] = client.get(f"/requests/{number}/export/eval").json()["cases"]
    assert case["inputs"] == document["messages"] and case["expected_output"] == document["answer"]
    assert client.get(f"/requests/{number}/export/exe").status_code == 404


def test_a_compile_has_its_prompt_answer_and_lost_specifics(client: TestClient) -> None:
    number = compiled(client)["summary_id"]
    answer = client.get(f"/api/compiles/{number}").json()
    assert answer["compile"]["raw_output"] in answer["compile"]["summary"] or answer["compile"]["summary"]
    assert answer["before"] > 0 and answer["first"] == compiled(client)["id"]
    assert answer["lost"] and all("src/" in specific["text"] or specific["text"] for specific in answer["lost"])
    page = client.get(f"/compiles/{number}").text
    assert "Raw answer" in page and "Lost by the summary" in page
    assert json.dumps(answer)


def test_a_search_finds_the_words_in_all_messages_of_a_request(tmp_path: Path) -> None:
    long = f"{'Tiles, grout and paint. ' * 900}The key is under pot 9. {'Doors. ' * 3000}"
    said = [*renovation(), long, *renovation(), *renovation(), *renovation()]
    with pages_of(tmp_path / "context.db", said, budget=200_000) as client:
        number = requests_of(client, "talk")[-1]["id"]
        assert client.get(f"/api/requests/{number}").json()["found"] == []
        request = client.get(f"/api/requests/{number}", params={"q": " under  POT 9"}).json()
        assert request["pages"]["total"] > request["pages"]["size"] and request["found"] == [20]
        found = client.get(f"/api/requests/{number}", params={"q": "order AB-4109"}).json()["found"]
        page = client.get(f"/requests/{number}", params={"q": "order AB-4109"}).text
        assert "4 messages" in page and f'/requests/{number}?page=2&amp;q=order+AB-4109#m{found[-1]}"' in page


def test_pages_stay_small(client: TestClient) -> None:
    paths = [
        f"/requests/{requests_of(client, 'long')[-1]['id']}{end}" for end in ("", "/why", "/diff", "/diff?with=raw")
    ]
    for path in ("/sessions", f"/sessions/{number_of(client, 'long')}", *paths):
        assert len(client.get(path).content) < 200_000


def test_the_cost_of_a_session_includes_compiles_without_a_request(client: TestClient, db: Path) -> None:
    async def write() -> None:
        store = SQLiteStore(db)
        (made, *_) = await store.summaries("long")
        for usage in ({"input_tokens": 100_000}, {"input_tokens": 20_000}):
            row = replace(made, session_id="../../etc/passwd?x=1#y", cache_key=None, usage=usage)
            await store.save_compile(replace(row, model_alias="claude-sonnet-4-5", status="skipped; cache_key: none"))
        await store.close()

    number = number_of(client, "../../etc/passwd?x=1#y")
    assert client.get(f"/api/sessions/{number}/timeline").json()["money"]["compiles"] == "0"
    asyncio.run(write())
    assert client.get(f"/api/sessions/{number}/timeline").json()["money"]["compiles"].rstrip("0") == "0.36"
    assert client.get(f"/api/sessions/{number}/timeline?stretch=2").json()["money"]["compiles"] == "0"


def test_a_compile_counts_identifiers_once_and_loses_no_rule(tmp_path: Path) -> None:
    with pages_of(tmp_path / "context.db", renovation(RULE), budget=400) as client:
        number = [row["summary_id"] for row in requests_of(client, "talk") if row["status"] == "compiled"][-1]
        page = client.get(f"/api/compiles/{number}").json()
        assert page["found"] > page["missing"] == len(page["lost"]) > 0
        assert not any("400 euros" in lost["text"] for lost in page["lost"])
        assert f"{page['found'] - page['missing']} of {page['found']}" in client.get(f"/compiles/{number}").text


def test_a_session_that_sends_more_than_its_history_stays_within_its_chart(client: TestClient, db: Path) -> None:
    with closing(sqlite3.connect(db)) as record:
        record.execute("UPDATE views SET tokens_sent = 3 * tokens_raw")
        record.commit()
    page = client.get(f"/sessions/{number_of(client, 'long')}").text
    for line in ("raw-area", "sent-line"):
        points = re.findall(rf'class="{line}" points="([^"]*)"', page)[0].split()
        assert all(0 <= float(point.partition(",")[2]) <= 60 for point in points)


def test_a_chart_of_few_requests_names_the_first_and_the_last(client: TestClient, db: Path) -> None:
    numbers = [row["id"] for row in requests_of(client, "long")]
    address = f"/sessions/{number_of(client, 'long')}"
    assert f"<span>request {numbers[0]}</span><span>{numbers[-1]}</span>" in client.get(address).text
    with closing(sqlite3.connect(db)) as record:
        record.execute("DELETE FROM views WHERE id > ?", (numbers[4],))
        record.commit()
    assert f"<span>requests {numbers[0]}–{numbers[4]}</span></p>" in client.get(address).text
