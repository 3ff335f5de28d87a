"""The pytest plugin: its fixture, HTML files and JUnit properties of failures, and what it costs a suite without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from context_compiler.testing import ContextFailure, Recording, live, write_html
from tests.support.warm import python
from tests.testing.agents import RULE, failure, matters, trimming

MODULE = "context_compiler.testing.plugin"

TEST = """
import pytest
from pydantic_ai import Agent
from pydantic_ai.capabilities import ProcessHistory

RULE = "Never refund more than 50 euros."
agent = Agent(capabilities=[ProcessHistory(lambda messages: messages[-3:])])


def test_desk_keeps_its_rules(contexts):
    conversation = contexts.live(agent, [RULE, "And now?", "And then?"])
    conversation.at_turn(1).assert_in_context(RULE)
    conversation.assert_in_context(RULE)


def test_replay(contexts):
    contexts.replay("desk.json", Agent()).assert_in_context(RULE)


def test_snapshot(contexts):
    contexts.snapshot(contexts.live(agent, [RULE, "And now?"]))


@pytest.mark.parametrize("number", range(3))
def test_planted(contexts, number):
    planted = contexts.plant(["Hello."] * 4, facts=2, seed=number)
    planted.survival(contexts.live(Agent(), planted.prompts)).assert_at_least(fact=1)
"""


def run_pytest(folder: Path, *arguments: str) -> str:
    command = [python(), "-m", "pytest", "-p", "no:contexts", "-p", MODULE, "-p", "no:cacheprovider", "-q"]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # importing them takes longer than the tests
    done = subprocess.run([*command, *arguments], cwd=folder, env=env, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def project(folder: Path) -> Path:
    (folder / "test_desk.py").write_text(TEST, encoding="utf-8")
    Recording(messages=live(trimming(), [RULE, "Thanks."]).raw).save(folder / "desk.json")
    return folder


def test_a_failure_is_shown_at_the_line_of_the_test_with_its_explanation(tmp_path: Path) -> None:
    shown = run_pytest(project(tmp_path), "-k", "keeps or replay or planted")
    assert "1 failed, 4 passed" in shown
    assert ">       conversation.assert_in_context(RULE)\nE       context_compiler" in shown, "no line of ours"
    assert "request 3 (turn 3) does not contain 'Never refund more than 50 euros.'" in shown
    assert "last sent: request 2 (turn 2), message 0, word for word" in shown


def test_a_failure_is_in_the_junit_file_and_in_a_file_beside_it(tmp_path: Path) -> None:
    run_pytest(project(tmp_path), "--junit-xml", "reports/junit.xml", "-k", "keeps")
    [case] = ElementTree.parse(tmp_path / "reports" / "junit.xml").iter("testcase")
    values = {element.attrib["name"]: element.attrib["value"] for element in case.iter("property")}
    assert (values["context_check"], values["context_request"], values["context_turn"]) == ("in_context", "3", "3")
    assert values["context_explanation"].startswith("request 3 (turn 3) does not contain")
    page = (tmp_path / values["context_html"]).read_text(encoding="utf-8")
    assert Path(values["context_html"]).parent == Path("reports/contexts")
    assert "And then?" in page and "a window of" in page and "src=" not in page and "href=" not in page


def test_a_snapshot_is_written_on_demand_and_fails_with_a_readable_difference(tmp_path: Path) -> None:
    folder = project(tmp_path)
    assert "there is no such snapshot yet" in run_pytest(folder, "-k", "snapshot")
    assert "1 passed" in run_pytest(folder, "-k", "snapshot", "--contexts-update")
    assert "1 passed" in run_pytest(folder, "-k", "snapshot")
    [file] = (folder / "snapshots").iterdir()
    assert file.read_text(encoding="utf-8").count("request ") == 2
    test = folder / "test_desk.py"
    test.write_text(test.read_text(encoding="utf-8").replace("messages[-3:]", "messages[-1:]"), encoding="utf-8")
    shown = run_pytest(folder, "-k", "snapshot")
    assert "1 failed" in shown and "+- user: Never refund more than 50 euros." in shown


def test_the_page_of_a_secret_does_not_show_it(tmp_path: Path) -> None:
    conversation = live(trimming(), matters(2, said_1="My card is 4111 1111 1111 1111."))
    found: ContextFailure = failure(lambda: conversation.assert_not_in_context("4111 1111 1111 1111"))
    page = write_html(found, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "4111 1111" not in page and "contains a text that no request may contain" in page


def test_text_of_a_conversation_is_escaped_on_the_page(tmp_path: Path) -> None:
    found = failure(lambda: live(trimming(), ["<script>alert(1)</script>"]).assert_in_context("<b>no</b>"))
    page = write_html(found, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<script>" not in page and "<b>" not in page and "&lt;script&gt;" in page


def test_the_plugin_loads_neither_the_host_nor_this_package_until_its_fixture_is_used() -> None:
    code = f"import sys, pytest; before = set(sys.modules); import {MODULE}; print(len(set(sys.modules) - before));"
    code += "print([name for name in ('pydantic_ai', 'context_compiler.testing.live_runs') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    count, loaded = done.stdout.split("\n", 1)
    assert int(count) < 10 and json.loads(loaded) == []
