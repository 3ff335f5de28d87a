"""Tests of contexts on the command line: run without pytest, and written from a session of the record."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import subprocess
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from pydantic_ai import Agent, Tool
from pydantic_ai.messages import ModelResponse, ToolCallPart

from context_compiler import testing
from context_compiler.testing import live_async, read_recording
from tests.cli.conftest import Command, Said, one_line
from tests.support.agents import Notes, Talker, compiler
from tests.support.warm import python
from tests.testing.agents import RULE, matters

FILE = """
from pydantic_ai import Agent
from pydantic_ai.capabilities import ProcessHistory

agent = Agent(capabilities=[ProcessHistory(lambda messages: messages[-3:])])


def test_everything(contexts):
    contexts.live(Agent(), ["Never push.", "Why?"]).assert_in_context("Never push.")


async def test_window(contexts):
    (await contexts.live_async(agent, ["Never push.", "Why?", "And?"])).assert_in_context("Never push.")


def test_plain():
    print("seen")
    assert 1 + 1 == 3


def test_other(tmp_path):
    pass


def helper():
    raise ValueError
"""


def test_tests_run_without_pytest_with_a_table_and_an_exit_code(cc: Command, tmp_path: Path) -> None:
    (tmp_path / "test_desk.py").write_text(FILE, encoding="utf-8")
    said = cc("test", "test_desk.py", "--html", "pages")
    assert said.code == 1
    rows = [line.split() for line in said.out.splitlines() if line.startswith("test_desk.py::")]
    assert [(row[0].partition("::")[2], row[1]) for row in rows[:4]] == [
        ("test_everything", "passed"),
        ("test_window", "failed"),
        ("test_plain", "failed"),
        ("test_other", "skipped"),
    ]
    assert "request 3 (turn 3) does not contain 'Never push.'" in said.out
    assert "test_desk.py:18: assert 1 + 1 == 3" in said.out and "seen" not in said.out
    assert "needs pytest, for tmp_path" in said.out
    assert "Never push." in (tmp_path / "pages" / "test_desk-test_window.html").read_text(encoding="utf-8")


ENDINGS = """
import asyncio
import sys
import unittest

import pytest


def test_exit():
    raise SystemExit(0)


def test_skip(contexts):
    pytest.skip("no key here")


def test_skip_of_unittest():
    raise unittest.SkipTest("no server here")


def test_fail():
    pytest.fail("too slow")


def test_nothing_raised():
    with pytest.raises(ValueError):
        pass


async def test_exit_in_a_loop():
    sys.exit("left")


async def test_cancelled():
    raise asyncio.CancelledError


def test_last():
    pass
"""


def test_a_test_that_exits_or_skips_or_fails_as_with_pytest_leaves_the_others_their_outcomes(
    cc: Command, tmp_path: Path
) -> None:
    (tmp_path / "test_desk.py").write_text(ENDINGS, encoding="utf-8")
    said = cc("test", "test_desk.py", "--json")
    ended = {test["test"].partition("::test_")[2]: test for test in said.json["tests"]}
    assert said.code == 1 and {name: test["outcome"] for name, test in ended.items()} == {
        "exit": "failed",
        "skip": "skipped",
        "skip_of_unittest": "skipped",
        "fail": "failed",
        "nothing_raised": "failed",
        "exit_in_a_loop": "failed",
        "cancelled": "failed",
        "last": "passed",
    }
    assert ended["skip"]["explanation"] == "no key here" and "SystemExit: 0" in ended["exit"]["explanation"]


def test_a_file_that_skips_itself_is_skipped_and_one_that_exits_is_wrong_input(cc: Command, tmp_path: Path) -> None:
    (tmp_path / "test_desk.py").write_text("def test_it():\n    pass\n", encoding="utf-8")
    skipping = "class Skipped(BaseException):\n    pass\n\n\nraise Skipped('no key here')\n"  # as pytest's is
    (tmp_path / "test_rest.py").write_text(skipping, encoding="utf-8")
    said = cc("test", "test_rest.py", "test_desk.py", "--json")
    assert said.code == 0
    assert [(test["test"], test["outcome"]) for test in said.json["tests"]] == [
        ("test_rest.py", "skipped"),
        ("test_desk.py::test_it", "passed"),
    ]
    assert said.json["tests"][0]["explanation"] == "no key here"
    (tmp_path / "test_exit.py").write_text("raise SystemExit(0)", encoding="utf-8")
    said = cc("test", "test_exit.py")
    assert said.code == 2 and "cannot be imported: SystemExit" in one_line(said)


def test_ctrl_c_in_a_test_ends_the_run(cc: Command, tmp_path: Path) -> None:
    code = "def test_it():\n    raise KeyboardInterrupt\n\n\ndef test_rest():\n    pass\n"
    (tmp_path / "test_desk.py").write_text(code, encoding="utf-8")
    said = cc("test", "test_desk.py")
    assert said.code == 130 and not said.out


def test_the_outcomes_as_json(cc: Command, tmp_path: Path) -> None:
    (tmp_path / "test_desk.py").write_text(FILE.partition("def test_plain")[0], encoding="utf-8")
    said = cc("test", "test_desk.py", "--json")
    first, second = said.json["tests"]
    assert said.code == 1 and (first["outcome"], first["request"]) == ("passed", None)
    assert (second["outcome"], second["request"], second["turn"]) == ("failed", 3, 3)


def test_a_run_in_which_all_tests_pass_ends_with_0(cc: Command, tmp_path: Path) -> None:
    (tmp_path / "test_desk.py").write_text(FILE.partition("async def")[0], encoding="utf-8")
    assert cc("test", "test_desk.py").code == 0


def test_a_file_without_tests_is_wrong_input(cc: Command, tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("", encoding="utf-8")
    (tmp_path / "broken.py").write_text("import nothing_of_that_name", encoding="utf-8")
    for name, why in (
        ("missing.py", "no such"),
        ("empty.py", "has no function"),
        ("broken.py", "nothing_of_that_name"),
    ):
        said = cc("test", name)
        assert said.code == 2 and why in one_line(said)


def look(what: str) -> str:
    return f"Nothing about {what}."


def session(path: Path, **settings: Any) -> None:
    """A record of a session with a rule, a changed value and personal data."""
    path.write_bytes(_session(**settings))


@cache
def _session(**settings: Any) -> bytes:
    prompts = matters(
        16,
        said_2=RULE,
        said_3="The refund limit is 50 euros.",
        said_4="Never write to ann@example.com or call +49 170 1234567; the card is 4111 1111 1111 1111.",
        said_6="The refund limit is 80 euros now.",
    )
    steps: Any = [step for turn in range(16) for step in ([("look", {"what": f"matter {turn}"})], "Seen.")]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "record.db"
        ours = compiler(Notes("Matter 3 is well."), budget=2_000, store=path, **settings)
        agent = Agent(tools=[look], capabilities=[ours])
        asyncio.run(live_async(agent, prompts, model=Talker(steps).model, conversation_id="desk 1"))
        asyncio.run(ours.aclose())
        return path.read_bytes()


def test_a_test_that_is_written_from_a_session_passes_and_has_no_personal_data(cc: Command, tmp_path: Path) -> None:
    session(tmp_path / "record.db")
    said = cc("sessions", "test", "desk 1", "--db", "record.db", "--out", "tests/test_desk.py")
    assert said.code == 0 and RULE in said.out
    test, recording = (tmp_path / "tests" / name for name in ("test_desk.py", "test_desk.json"))
    code = test.read_text(encoding="utf-8")
    assert f"conversation.assert_in_context({RULE!r})  # turn 2" in code
    assert "conversation.assert_newest('The refund limit is', '80')  # turn 6" in code
    assert "pairs=True" in code
    for text in (code, recording.read_text(encoding="utf-8")):
        assert not any(secret in text for secret in ("ann@", "1234567", "4111 1111", "1111 1111"))
    assert "[email 1]" in recording.read_text(encoding="utf-8")
    assert len(read_recording(recording).messages) == 64
    assert cc("test", test).code == 0
    command = [python(), "-m", "pytest", "-q", "-p", "no:contexts", "-p", "context_compiler.testing.plugin"]
    done = subprocess.run([*command, str(test)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout


def test_a_written_test_fails_when_the_rule_is_lost(cc: Command, tmp_path: Path) -> None:
    session(tmp_path / "record.db")
    cc("sessions", "test", "desk 1", "--db", "record.db", "--out", "test_desk.py")
    test = tmp_path / "test_desk.py"
    code = test.read_text(encoding="utf-8").replace("budget=2_000", "budget=700, detect_rules=False", 1)
    test.write_text(code, encoding="utf-8")
    said = cc("test", test)
    assert said.code == 1 and f"does not contain {RULE!r}" in said.out and "would keep it: rules=" in said.out


def test_a_written_test_names_the_agent_of_its_user(cc: Command, tmp_path: Path) -> None:
    session(tmp_path / "record.db")
    said = cc(
        "sessions", "test", "desk 1", "--db", "record.db", "--out", "test_desk.py", "--agent", "my.desk:agent", "--json"
    )
    assert said.code == 0 and {claim["check"] for claim in said.json["claims"]} == {"in_context", "newest"}
    code = (tmp_path / "test_desk.py").read_text(encoding="utf-8")
    assert "from my.desk import agent\n" in code and "contexts.replay('test_desk.json', agent)" in code


def test_claims_about_an_agent_have_no_personal_data_either(cc: Command, tmp_path: Path) -> None:
    session(tmp_path / "record.db")
    cc("sessions", "test", "desk 1", "--db", "record.db", "--out", "test_desk.py", "--agent", "my.desk:agent")
    code = (tmp_path / "test_desk.py").read_text(encoding="utf-8")
    assert "Never write to [email 1]" in code and not any(secret in code for secret in ("ann@", "1234567", "4111 1111"))


def test_the_answer_to_a_question_is_a_claim(cc: Command, tmp_path: Path) -> None:
    agent = Agent(capabilities=[compiler(store=tmp_path / "record.db")])
    model = Talker(["Order 7 costs 42 euros.", "Order 8 costs 50 euros."]).model
    asyncio.run(live_async(agent, ["What does order 7 cost?", "Thanks."], model=model, conversation_id="desk"))
    cc("sessions", "test", "desk", "--db", "record.db", "--out", "test_desk.py")
    code = (tmp_path / "test_desk.py").read_text(encoding="utf-8")
    assert "assert_in_context('Order 7 costs 42 euros.')  # turn 1" in code and "50 euros" not in code


def orders(**arguments: Any) -> dict[str, Any]:
    return {"count": 2, "paid_with": 4111111111111111}


ARGUMENTS = (
    '{"since": 1700000000000, "at": [48.8583701234567, -4111111111111111]}',
    r'{"note": "to\nann@example.com", "path": "C:\\4111 1111 1111 1111"}',
    '{"card": 4111111111111111, "of": "{\\"mail\\": \\"bob@example.com\\"}"}',
)


def test_masked_arguments_and_results_of_tools_stay_what_they_are(cc: Command, tmp_path: Path) -> None:
    calls = [ToolCallPart("orders", text, f"c{number}") for number, text in enumerate(ARGUMENTS)]
    calls.append(ToolCallPart("orders", {"card": 4111111111111111, "since": 1700000000000}, "c9"))
    model = Talker([ModelResponse(parts=calls), "Two.", "Bye."]).model
    tools = [Tool.from_schema(orders, "orders", None, {"type": "object", "additionalProperties": True})]
    agent = Agent(tools=tools, capabilities=[compiler(store=tmp_path / "record.db")])
    asyncio.run(live_async(agent, ["List my orders.", "Thanks."], model=model, conversation_id="desk"))
    assert cc("sessions", "test", "desk", "--db", "record.db", "--out", "test_desk.py").code == 0
    assert cc("test", "test_desk.py").code == 0
    recording = read_recording(tmp_path / "test_desk.json")
    parts: list[Any] = [part for message in recording.messages for part in message.parts]
    texts = [part.args for part in parts if part.part_kind == "tool-call" and isinstance(part.args, str)]
    first, second, third = map(json.loads, texts)
    assert texts[0] == ARGUMENTS[0], "no card number, and so nothing to mask"
    assert re.fullmatch(r"to\n\[email \d]", second["note"]) and re.fullmatch(r"C:\\\[card \d]", second["path"])
    assert re.fullmatch(r"\[email \d]", json.loads(third["of"])["mail"])
    number = third["card"]
    assert isinstance(number, int) and number != 4111111111111111 and len(str(number)) == 16
    assert next(part.args for part in parts if part.part_kind == "tool-call" and part.tool_call_id == "c9") == {
        "card": number,
        "since": 1700000000000,
    }
    assert {part.content["paid_with"] for part in parts if part.part_kind == "tool-return"} == {number}


def test_digits_are_masked_if_they_are_a_card_or_a_phone_number(cc: Command, tmp_path: Path) -> None:
    cards = "Pay with no.4111111111111111, or 5500-0000-0000-0004, or 2026 4111 1111 1111 1111."
    others = "It is at 48.8583701234567, and my order is 1234567890123."
    prompts = [cards, others, "Call 0049 170 1234567 89."]
    agent = Agent(capabilities=[compiler(store=tmp_path / "record.db")])
    asyncio.run(live_async(agent, prompts, conversation_id="desk"))
    cc("sessions", "test", "desk", "--db", "record.db", "--out", "test_desk.py")
    messages = read_recording(tmp_path / "test_desk.json").messages
    said: list[Any] = [
        part.content for message in messages for part in message.parts if part.part_kind == "user-prompt"
    ]
    assert said == [
        "Pay with no.[card 1], or [card 2], or 2026 [card 3].",
        others,
        "Call [phone 4].",
    ]


def test_the_name_of_a_session_is_masked_in_its_test(cc: Command, tmp_path: Path) -> None:
    agent = Agent(capabilities=[compiler(store=tmp_path / "record.db")])
    asyncio.run(live_async(agent, [RULE], conversation_id="ann@example.com"))
    assert cc("sessions", "test", "ann@example.com", "--db", "record.db", "--out", "test_desk.py").code == 0
    assert "def test_email_1_keeps" in (tmp_path / "test_desk.py").read_text(encoding="utf-8")


def test_a_request_that_lacks_a_text_becomes_a_test_in_one_command(cc: Command, tmp_path: Path) -> None:
    session(tmp_path / "record.db")
    said = cc("views", "export", "32", "Matter 8:", "--db", "record.db", "--out", "test_case.py", "--json")
    [claim] = said.json["claims"]
    assert (claim["arguments"], claim["turn"], claim["holds"]) == (["Matter 8:"], 8, False)
    assert "1111 1111" not in (tmp_path / "test_case.json").read_text(encoding="utf-8")
    failed = cc("test", "test_case.py", "--json")
    [outcome] = failed.json["tests"]
    assert failed.code == 1 and (outcome["request"], outcome["turn"]) == (32, 16)
    test = tmp_path / "test_case.py"
    written = test.stat()
    test.write_text(test.read_text(encoding="utf-8").replace("budget=2_000", "budget=8_000"), encoding="utf-8")
    os.utime(test, ns=(written.st_atime_ns, written.st_mtime_ns))  # an edit within the same second is read too
    assert cc("test", "test_case.py").code == 0


def test_an_exported_request_lacks_the_rules_and_values_that_the_record_finds(cc: Command, tmp_path: Path) -> None:
    session(tmp_path / "record.db", recall=0)
    said = cc("views", "export", "30", "--db", "record.db", "--out", "test_case.py", "--json")
    lacking = [claim["arguments"][0] for claim in said.json["claims"]]
    assert lacking and not any(claim["holds"] for claim in said.json["claims"])
    assert not any(RULE in text or "4111 1111" in text for text in lacking)


def test_an_export_names_a_text_that_nobody_said_and_a_request_that_lacks_nothing(cc: Command, tmp_path: Path) -> None:
    session(tmp_path / "record.db")
    for view, texts, why in (
        ("32", ["a pink cow"], "nobody said this"),
        ("1", [], "lacks no rule"),
        ("99", [], "no view 99"),
    ):
        said = cc("views", "export", view, *texts, "--db", "record.db", "--out", "test_case.py")
        assert said.code == 2 and why in one_line(said)
    assert not list(tmp_path.glob("test_case*"))


def test_requests_become_cases_of_a_dataset(cc: Command, tmp_path: Path) -> None:
    evals = pytest.importorskip("pydantic_evals", reason="pydantic-evals is not installed")
    session(tmp_path / "record.db")

    def export(view: str) -> Said:
        return cc("views", "export", view, "Matter 1:", "--db", "record.db", "--out", "cases.yaml")

    assert [export(view).code for view in ("32", "12", "12")] == [0, 0, 2]
    kinds: Any = {"custom_evaluator_types": testing.EVALUATORS}
    cases = evals.Dataset[Any, Any, Any].from_file(tmp_path / "cases.yaml", **kinds).cases
    limit = testing.WithinBudget(2_000, last=True)
    assert [case.name for case in cases] == ["view 32", "view 12"]
    assert cases[0].evaluators == [testing.InContext("Matter 1:", last=True), limit]
    (tmp_path / "cases.yaml").write_text("mine", encoding="utf-8")
    said = export("32")
    assert said.code == 2 and "no dataset" in one_line(said)


def test_a_test_is_never_overwritten_and_an_agent_is_a_name(cc: Command, tmp_path: Path) -> None:
    session(tmp_path / "record.db")
    (tmp_path / "test_desk.py").write_text("mine", encoding="utf-8")
    (tmp_path / "recorded.json").write_text("mine", encoding="utf-8")
    outs = (("test_desk.py",), ("recorded.py",), ("test_new.txt",), ("test_new.py", "--agent", "a:b; c"))
    for more in outs:
        assert cc("sessions", "test", "desk 1", "--db", "record.db", "--out", *more).code == 2
    assert all((tmp_path / name).read_text(encoding="utf-8") == "mine" for name in ("test_desk.py", "recorded.json"))
    assert json.dumps([path.name for path in tmp_path.glob("test_new*")]) == "[]"


def test_a_test_of_a_session_with_any_name_is_python(cc: Command, tmp_path: Path) -> None:
    session(tmp_path / "record.db")
    name = "CO₂ im Büro, ½ Tag 会議"
    with closing(sqlite3.connect(tmp_path / "record.db")) as database, database:
        database.execute("UPDATE sessions SET session_id = ?", (name,))
    assert cc("sessions", "test", name, "--db", "record.db", "--out", "test_co2.py").code == 0
    source = (tmp_path / "test_co2.py").read_text(encoding="utf-8")
    assert "def test_co_im_büro_tag_会議_keeps" in source and compile(source, "test_co2.py", "exec")
