"""A configuration file holds for every command, and `config show` says where a value comes from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from context_compiler.cli.options import parse_place
from context_compiler.cli.text import json_text
from tests.cli.conftest import DEMO, Command, one_line

CONFIG = Path("context_compiler.toml")


def origins(cc: Command, *args: object, **env: str) -> dict[str, tuple[object, str]]:
    found = cc("config", "show", "--json", *args, **env).json["settings"]
    return {one["setting"]: (one["value"], one["source"]) for one in found}


def test_options_override_the_configuration_file(cc: Command) -> None:
    CONFIG.write_text("budget = 900\n")
    assert cc("compile", DEMO, "--json").json["budget"] == 900
    assert cc("compile", DEMO, "--json", CONTEXT_COMPILER_BUDGET="950").json["budget"] == 950
    assert cc("compile", DEMO, "--json", "--budget", "1000", CONTEXT_COMPILER_BUDGET="950").json["budget"] == 1000
    CONFIG.unlink()
    assert cc("compile", DEMO, "--json").json["budget"] == 2000, "nothing of the file stays in the process"


@pytest.mark.parametrize("budget", ["much", "$much"])
def test_a_wrong_budget_is_reported_where_it_was_given(cc: Command, budget: str) -> None:
    CONFIG.write_text(f"budget = '{budget}'\n")
    said = cc("compile", DEMO)
    assert said.code == 2 and f"context_compiler.toml: budget = '{budget}'" in one_line(said), said
    assert "--budget" not in one_line(said)
    assert f"CONTEXT_COMPILER_BUDGET = '{budget}'" in one_line(cc("compile", DEMO, CONTEXT_COMPILER_BUDGET=budget))
    assert f"--budget '{budget}'" in one_line(cc("compile", DEMO, "--budget", budget))


def test_every_origin_is_named(cc: Command) -> None:
    CONFIG.write_text('budget = 900\ntemplate = "extractive"\nevery_turn = true\n')
    settings = origins(cc, CONTEXT_COMPILER_TIMEOUT="5", CONTEXT_COMPILER_TEMPLATE="chat_compiler")
    assert settings["budget"] == ("900", "context_compiler.toml")
    assert settings["every_turn"] == ("true", "context_compiler.toml")
    assert settings["template"] == ("chat_compiler", "CONTEXT_COMPILER_TEMPLATE")
    assert settings["timeout"] == ("5", "CONTEXT_COMPILER_TIMEOUT")
    assert settings["recall"] == (1.0, "default")
    options = origins(cc, "compile", "chat.json", "-f", "compact")
    assert options["--fidelity"] == ("compact", "argument")
    assert options["--budget"] == ("900", "context_compiler.toml")
    assert options["--strict"] == (False, "default")


def test_the_table_of_the_project_file_is_read_too(cc: Command) -> None:
    Path("pyproject.toml").write_text('[tool.context_compiler]\ndb = "data/record.db"\n')
    assert origins(cc)["db"] == ("data/record.db", "pyproject.toml")
    Path("pyproject.toml").write_text('[project]\nname = "other"\n')
    assert origins(cc)["db"][1] == "default"


def test_a_file_elsewhere_is_named_by_a_variable_and_its_paths_are_relative_to_it(cc: Command) -> None:
    Path("etc").mkdir()
    Path("etc/app.toml").write_text('db = "record.db"\n')
    assert origins(cc, CONTEXT_COMPILER_CONFIG="etc/app.toml")["db"] == (
        str(Path("etc/record.db")),
        str(Path("etc/app.toml")),
    )


def test_no_password_of_a_database_is_printed(cc: Command) -> None:
    address, shown = "postgresql://ann:s3cret@127.0.0.1:1/x?password=s3cret", "postgresql://ann@127.0.0.1:1/x"
    CONFIG.write_text(f"runs = {address!r}\nvault = {address!r}\n")
    for args in ((), ("sessions", "list"), ("pipeline", "runs")):
        for form in ((), ("--json",)):
            said = cc("config", "show", *form, *args, CONTEXT_COMPILER_DB=address)
            assert said.code == 0 and "127.0.0.1" in said.out and "s3cret" not in said.out + said.err, args
    assert origins(cc, CONTEXT_COMPILER_DB=address)["db"] == (shown, "CONTEXT_COMPILER_DB")
    assert origins(cc)["runs"] == (shown, "context_compiler.toml")
    assert origins(cc, "sessions", "list", CONTEXT_COMPILER_DB=address)["--db"] == (shown, "CONTEXT_COMPILER_DB")
    assert json.loads(json_text({"db": parse_place(address)})) == {"db": shown}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("buget = 1", "there is no key 'buget'; did you mean 'budget'?"),
        ("budget = [1]", "budget = [1]: give a text, a number, true or false"),
        ("budget 1", "is not valid TOML"),
    ],
)
def test_a_wrong_file_is_reported_in_one_line(cc: Command, text: str, why: str) -> None:
    CONFIG.write_text(text)
    assert f"context_compiler.toml: {why}" in one_line(cc("stats"))
    assert cc("--help").code == 0


def test_a_wrong_command_is_reported_in_one_line(cc: Command) -> None:
    assert "'compil': no such command" in one_line(cc("config", "show", "compil"))
    assert "views: give one of its commands: list" in one_line(cc("config", "show", "views"))
