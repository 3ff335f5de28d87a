"""The record proves itself, gets smaller, leaves as JSON lines, and says what was saved."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from context_compiler.cli.options import parse_age
from context_compiler.cli.stats import percentile
from context_compiler.record.store import SQLiteStore
from context_compiler.record.values import Entry
from tests.cli.conftest import DEMO, Command, one_line, request


def damage(db: Path, statement: str) -> None:
    with closing(sqlite3.connect(db)) as connection:
        connection.execute(statement)
        connection.commit()


def test_verify_reports_a_sound_record(recorded: Command) -> None:
    said = recorded("verify")
    assert (said.code, said.out) == (0, "system/context.db: sound\n")
    assert recorded("verify", "--json").json == {"db": "system/context.db", "sound": True, "defects": [], "notes": []}


def test_verify_finds_a_changed_record(recorded: Command, tmp_path: Path) -> None:
    damage(tmp_path / "system" / "context.db", "UPDATE views SET tokens_sent = 1 WHERE rowid = 2")
    said = recorded("verify")
    assert said.code == 1
    assert said.out.startswith("system/context.db: 1 defect\n  views 2: changed since it was written\n")
    advice = " ".join(said.out.splitlines()[2:])
    assert "Restore a backup" in advice and "`context-compiler sessions delete`" in advice
    assert recorded("verify", "--json").json["defects"] == ["views 2: changed since it was written"]


def test_verify_checks_what_was_recorded_since_an_age(recorded: Command, tmp_path: Path) -> None:
    assert recorded("verify", "--since", "1d").out == "system/context.db: sound, of the last 1d\n"
    damage(tmp_path / "system" / "context.db", "UPDATE views SET tokens_sent = 1 WHERE rowid = 2")
    assert recorded("verify", "--since", "1d", "--json").json["defects"] == ["views 2: changed since it was written"]
    said = recorded("verify", "--since", "soon")
    assert said.code == 2 and "--since 'soon': give a number" in said.err


BAD_BYTE = "UPDATE {0} SET {1} = CAST(x'7bff' || substr(CAST({1} AS BLOB), 3) AS TEXT) WHERE rowid = 1"


def test_an_unreadable_row_hides_no_other_defect(recorded: Command, tmp_path: Path) -> None:
    db = tmp_path / "system" / "context.db"
    damage(db, BAD_BYTE.format("views", "status"))
    damage(db, "UPDATE views SET tokens_sent = 1 WHERE rowid = 2")
    assert recorded("verify", "--json").json["defects"] == [
        "views 1: changed since it was written; status: not valid UTF-8",
        "views 2: changed since it was written",
    ]
    assert "All checks ran to the end." in recorded("verify").out


def test_a_damaged_row_is_left_out_of_an_export_and_named(recorded: Command, tmp_path: Path) -> None:
    whole = recorded("export").out.splitlines()
    damage(tmp_path / "system" / "context.db", BAD_BYTE.format("views", "status"))
    damage(tmp_path / "system" / "context.db", "UPDATE contents SET body = x'00' WHERE rowid = 1")
    said = recorded("export")
    assert said.code == 1 and len(said.out.splitlines()) == len(whole) - 2
    assert set(said.out.splitlines()) < set(whole)
    assert "note: left out: views 1: status is not valid UTF-8\n" in said.err
    assert said.err.splitlines()[-1] == "error: system/context.db: 2 defects; everything else was exported"


@pytest.mark.parametrize(
    "column", ["views.status", "views.created_at", "sessions.created_at", "context_summaries.summary"]
)
def test_a_damaged_value_spoils_no_list(recorded: Command, tmp_path: Path, column: str) -> None:
    recorded("import", DEMO, "--session", "sound")
    damage(tmp_path / "system" / "context.db", BAD_BYTE.format(*column.split(".")))
    for args in (("views", "list"), ("sessions", "list"), ("stats",)):
        said = recorded(*args)
        assert said.code == 0 and "sound" in said.out and "demo" in said.out
    left_out = column == "views.created_at"
    assert ("views 1 cannot be read and is left out" in recorded("views", "list").err) == left_out
    assert recorded("sessions", "delete", "demo", "--yes").code == 0
    assert recorded("verify").code == 0


def test_a_session_with_a_damaged_name_is_listed_and_deleted(recorded: Command, tmp_path: Path) -> None:
    damage(tmp_path / "system" / "context.db", BAD_BYTE.format("sessions", "session_id"))
    assert "{\ufffdmo" in recorded("sessions", "list").out and "{\ufffdmo" in recorded("views", "list").out
    said = recorded("sessions", "delete", "{\ufffdmo", "--yes")
    assert (said.code, said.out) == (0, "system/context.db: session {\ufffdmo deleted, 3 requests removed\n")
    assert recorded("verify").code == 0


def test_a_session_whose_messages_cannot_be_read_is_deleted(recorded: Command, tmp_path: Path) -> None:
    damage(tmp_path / "system" / "context.db", "UPDATE contents SET body = x'00'")
    asked = recorded("sessions", "delete", "demo", input="n\n")
    assert asked.code == 1 and "with 3 requests and damaged messages" in asked.err
    assert recorded("sessions", "delete", "demo", "--yes").code == 0
    assert recorded("verify").code == 0


@pytest.mark.parametrize("table", ["contents", "views"])
def test_a_malformed_file_is_not_said_to_be_checked(recorded: Command, tmp_path: Path, table: str) -> None:
    db = tmp_path / "system" / "context.db"
    with closing(sqlite3.connect(db)) as connection:
        connection.execute("PRAGMA wal_checkpoint (TRUNCATE)")
        [page] = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    whole = bytearray(db.read_bytes())
    whole[(page - 1) * 4096 : (page - 1) * 4096 + 64] = b"\xaa" * 64
    db.write_bytes(whole)
    said = recorded("verify")
    assert said.code == 1 and "malformed; the rest was not checked" in said.out
    assert "Not everything could be checked" in said.out and "ran to the end" not in said.out
    assert recorded("verify", "--json").json["notes"] == [
        "Not everything could be checked, so there may be more defects"
    ]
    said = recorded("export")
    assert said.code == 1 and f"left out: {table}: the rest of the table cannot be read" in said.err
    assert '"table": "sessions"' in said.out


def test_verifying_writes_nothing(recorded: Command, tmp_path: Path) -> None:
    before = (tmp_path / "system" / "context.db").read_bytes()
    recorded("verify")
    assert (tmp_path / "system" / "context.db").read_bytes() == before


def test_pruning_keeps_the_newest_requests(recorded: Command) -> None:
    said = recorded("prune", "--keep-last", 1)
    assert said.code == 0 and "2 requests removed" in said.out
    assert [view["id"] for view in recorded("views", "list", "--json").json["views"]] == [3]
    assert recorded("verify").code == 0


def test_pruning_keeps_requests_younger_than_the_age(recorded: Command) -> None:
    assert recorded("prune", "--older-than", "1d", "--json").json["removed"] == 0
    assert recorded("prune", "--older-than", "0m", "--json").json["removed"] == 3


@pytest.mark.parametrize("args", [(), ("--older-than", "soon"), ("--older-than", "30"), ("--older-than", "-3d")])
def test_pruning_requires_an_age_or_a_number(recorded: Command, args: tuple[str, ...]) -> None:
    said = recorded("prune", *args)
    assert said.code == 2 and "30d" in one_line(said)


@pytest.mark.parametrize(("text", "days"), [("30d", 30), ("12h", 0.5), ("2w", 14), ("90m", 0.0625), ("1.5D", 1.5)])
def test_an_age_has_a_unit(text: str, days: float) -> None:
    assert parse_age(text) == pytest.approx(days)


def test_an_export_is_one_json_object_a_line(recorded: Command) -> None:
    rows = [json.loads(line) for line in recorded("export").out.splitlines()]
    assert {row["table"] for row in rows} >= {"contents", "nodes", "sessions", "context_summaries", "views"}
    assert recorded("export", "--json").out == recorded("export").out


def test_stats_add_up(recorded: Command) -> None:
    said = recorded("stats", "--json").json
    total, (session,) = said["total"], said["sessions"]
    assert session == {**total, "session": "demo"}
    assert total["requests"] == total["compiles"] == 3
    assert total["tokens_saved"] == total["tokens_raw"] - total["tokens_sent"] > 0
    assert total["fallbacks"] == 0


def test_stats_have_no_columns_that_are_empty_in_every_row(recorded: Command) -> None:
    head = recorded("stats").out.splitlines()[0].split()
    assert "fallbacks" in head and not {"quality", "health"} & {*head}


def test_stats_of_one_session_leave_out_the_others(recorded: Command) -> None:
    recorded("compile", DEMO, "--db", "system/context.db", "--session", "other")
    assert recorded("stats", "--json").json["total"]["requests"] == 4
    assert recorded("stats", "--session", "other", "--json").json["total"]["requests"] == 1
    rows = recorded("stats").out.splitlines()
    assert [line.split()[0] for line in rows] == ["session", "other", "demo", "all", "compiled:", "cost"]


def test_an_import_does_not_count_as_a_request(recorded: Command) -> None:
    recorded("import", DEMO, "--session", "there")
    said = recorded("stats", "--json").json["total"]
    assert said["requests"] == 3 and said["imported"] == 1
    assert "1 imported conversation is not counted" in recorded("stats").out


def test_an_import_is_not_shown_as_sent(cc: Command) -> None:
    (done,) = cc("import", DEMO, "--session", "there", "--json").json["sessions"]
    (view,) = cc("views", "list", "--json").json["views"]
    assert (view["tokens_raw"], view["tokens_sent"]) == (done["tokens"], 0)
    assert view["status"].startswith("imported; nothing was sent")
    shown, listed = cc("views", "show", view["id"]), cc("views", "list")
    assert shown.code == 0 and "Raw history: " in shown.out and "raw →" not in shown.out
    assert "%" not in listed.out and "imported" in listed.out
    assert cc("sessions", "list", "--json").json["sessions"][0]["tokens_sent"] == 0
    assert cc("verify").code == 0


def test_fallbacks_and_latencies_are_counted(cc: Command) -> None:
    store = SQLiteStore("system/context.db")
    records = [request("compiled; run_id: no run", latency) for latency in range(1, 20)] + [request("fallback", 1000.0)]
    for index, record in enumerate(records):
        asyncio.run(store.save(Entry(record=replace(record, request_index=index), raw=None, view=None)))
    asyncio.run(store.close())
    total = cc("stats", "--json").json["total"]
    assert (total["fallbacks"], total["over_budget"], total["compiled"]) == (1, 0, 19)
    assert (total["latency_p50_ms"], total["latency_p95_ms"]) == (10, 19)
    assert total["tokens_saved"] == 20 * 150


def test_an_empty_list_has_no_percentile() -> None:
    assert percentile([], 0.5) is None
    assert percentile([7.0], 0.95) == 7.0


def test_copying_a_missing_record_creates_no_target(cc: Command, tmp_path: Path) -> None:
    said = cc("copy", "none.db", "target.db")
    assert said.code == 2 and "none.db: there is no record here" in said.err
    assert not (tmp_path / "target.db").exists()


@pytest.mark.parametrize("command", [("stats", "--db"), ("copy", "a.db"), ("chat", "--model", "scripted", "--db")])
def test_a_url_of_another_database_is_refused(cc: Command, tmp_path: Path, command: tuple[str, ...]) -> None:
    said = cc(*command, "sqlite:///x.db")
    assert said.code == 2 and "postgresql://USER@HOST/DB" in one_line(said)
    assert not list(tmp_path.iterdir())
