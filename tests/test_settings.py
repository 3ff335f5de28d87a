from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from context_compiler import ContextCompiler
from context_compiler.errors import ContextCompilerError, SettingsError
from context_compiler.middleware.arguments import Arguments
from context_compiler.settings import COMMAND_LINE, KEYS, Config, Settings


def test_an_empty_environment_gives_the_defaults():
    settings = Settings.from_environment({})
    assert settings == Settings()
    assert settings.context_compiler_recent_turns == 3
    assert settings.context_compiler_recent_tool_results == 3
    assert settings.context_compiler_template == "chat_compiler"
    assert settings.context_compiler_db == "system/context.db"
    assert settings.context_compiler_system == "system"
    assert settings.context_compiler_vault is None
    assert settings.context_compiler_timeout == 60.0


def test_every_setting_has_an_environment_name():
    settings = Settings.from_environment(
        {
            "CONTEXT_COMPILER_RECENT_TURNS": "all",
            "CONTEXT_COMPILER_RECENT_TOOL_RESULTS": "0",
            "CONTEXT_COMPILER_TEMPLATE": "goal_oriented",
            "CONTEXT_COMPILER_DB": "/data/record.db",
            "CONTEXT_COMPILER_SYSTEM": "/etc/app",
            "CONTEXT_COMPILER_VAULT": "/home/me/vault",
            "CONTEXT_COMPILER_TIMEOUT": "2.5",
        }
    )
    assert settings == Settings(
        context_compiler_recent_turns="all",
        context_compiler_recent_tool_results=0,
        context_compiler_template="goal_oriented",
        context_compiler_db="/data/record.db",
        context_compiler_system="/etc/app",
        context_compiler_vault="/home/me/vault",
        context_compiler_timeout=2.5,
    )


def test_a_number_from_the_environment_is_a_number():
    turns = Settings.from_environment({"CONTEXT_COMPILER_RECENT_TURNS": " 12 "}).context_compiler_recent_turns
    assert turns == 12
    assert isinstance(turns, int)


def test_a_blank_variable_counts_as_unset():
    assert Settings.from_environment({"CONTEXT_COMPILER_RECENT_TURNS": "", "CONTEXT_COMPILER_VAULT": " "}) == Settings()


def test_other_variables_are_ignored():
    assert Settings.from_environment({"CONTEXT_COMPILER": "x", "RECENT_TURNS": "9"}) == Settings()


def test_the_environment_is_read_on_each_call(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CONTEXT_COMPILER_RECENT_TURNS", "5")
    before = Settings.from_environment()
    monkeypatch.setenv("CONTEXT_COMPILER_RECENT_TURNS", "6")
    assert (before.context_compiler_recent_turns, Settings.from_environment().context_compiler_recent_turns) == (5, 6)


@pytest.mark.parametrize("value", ["-1", "2.5", "many", "ALL", "1e3", "٣", "9999999999999"])
@pytest.mark.parametrize("name", ["CONTEXT_COMPILER_RECENT_TURNS", "CONTEXT_COMPILER_RECENT_TOOL_RESULTS"])
def test_a_wrong_count_names_the_variable_the_value_and_what_is_allowed(name: str, value: str):
    with pytest.raises(SettingsError) as caught:
        Settings.from_environment({name: value})
    assert str(caught.value) == f"{name}={value!r}: give a whole number from 0, or all"


@pytest.mark.parametrize("value", ["0", "-3", "soon", "nan", "inf", "1e999"])
def test_a_wrong_timeout_is_refused(value: str):
    with pytest.raises(SettingsError, match=f"CONTEXT_COMPILER_TIMEOUT='{value}': give a number of seconds above 0"):
        Settings.from_environment({"CONTEXT_COMPILER_TIMEOUT": value})


@pytest.mark.parametrize("value", [-1, True, 2.5, None, [3]])
def test_a_wrong_value_in_code_is_refused_as_well(value: object):
    with pytest.raises(SettingsError, match="CONTEXT_COMPILER_RECENT_TURNS"):
        Settings(context_compiler_recent_turns=value)  # pyright: ignore[reportArgumentType]


def test_the_error_is_one_of_ours_and_also_a_value_error():
    assert issubclass(SettingsError, ContextCompilerError)
    assert issubclass(SettingsError, ValueError)


OBJECTS = {"counter", "store", "rules", "reflections", "redact", "on_view", "on_error", "layers", "role"}
"""Arguments that no file can hold, such as rules that may be functions; `store` is `db` there."""


def test_a_file_has_a_key_for_every_plain_argument():
    assert set(KEYS) - {"db", *COMMAND_LINE} == {field.name for field in fields(Arguments)} - OBJECTS


def test_a_compiler_is_made_from_a_file(tmp_path: Path):
    file = tmp_path / "app.toml"
    file.write_text('budget = 900\nfidelity = "compact"\ndb = "record.db"\nrecent_turns = "all"\nchat_model = "x"\n')
    compiler = ContextCompiler.from_config(file, budget=1_000)
    assert (compiler.budget, compiler.fidelity, compiler.recent_turns) == (1_000, "compact", "all")
    assert compiler.store == str(tmp_path / "record.db")


def test_a_wrong_value_in_a_file_is_refused_like_an_argument(tmp_path: Path):
    (tmp_path / "app.toml").write_text("budget = -1\n")
    with pytest.raises(SettingsError, match="budget=-1"):
        ContextCompiler.from_config(tmp_path / "app.toml")
    with pytest.raises(SettingsError, match="cannot be read"):
        Config.load(tmp_path / "missing.toml")
