"""`chat` line by line: plain text in a pipe, the commands beside the model, and what keeps it from answering."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Command, Said

SCRIPTED = ("chat", "--model", "scripted:0")


def talk(cc: Command, *lines: str, args: tuple[object, ...] = ()) -> Said:
    return cc(*SCRIPTED, *args, input="\n".join(lines) + "\n")


def test_a_pipe_gets_the_answers_as_plain_text_and_nothing_else(cc: Command, tmp_path: Path) -> None:
    said = talk(cc, "What about the queue?")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("On “What about the queue?”:\n\n")
    assert "\x1b" not in said.out
    transcript = (tmp_path / "system" / "Chat_Sessions" / "main.md").read_text()
    assert said.out.strip() in transcript


def test_both_modes_print_and_store_the_same_text(cc: Command, tmp_path: Path) -> None:
    lines = [f"Question number {number} about the table of receipts?" for number in range(25)]
    outs = [
        talk(cc, *lines, args=(*mode, "--system", f"{number}", "--db", f"{number}.db", "--budget", "900"))
        for number, mode in enumerate([(), ("--endless",)])
    ]
    assert outs[0].out == outs[1].out
    normal, endless = (
        [
            line
            for line in (tmp_path / str(number) / "Chat_Sessions" / "main.md").read_text().splitlines()
            if " UTC*" not in line
        ]
        for number in range(2)
    )
    assert normal == endless and len([line for line in normal if line == "**User:**"]) == 25


def test_view_says_what_was_sent_and_why(cc: Command) -> None:
    lines = [f"Question number {number} about the table of receipts?" for number in range(9)]
    said = talk(cc, *lines, "/view", "/view full", args=("--endless", "--budget", "900"))
    view = said.out.rpartition("Kept: ")[2]
    assert "current turn, with its recall block" in view and "with the notes" in view
    assert "recalled for its prompt" in view and "Left out" in view and "summary" in view
    assert "BEGIN QUOTED" in said.out


def test_a_recorded_view_shows_a_prompt_with_its_recall_block_as_the_users(cc: Command) -> None:
    lines = [f"Question number {number} about the table of receipts?" for number in range(9)]
    talk(cc, *lines, args=("--endless", "--budget", "900"))
    shown = cc("views", "show", "9").out
    [title] = [line for line in shown.splitlines() if "with its recall block" in line]
    below = shown.partition(title)[2]
    assert " user " in title and "BEGIN RECALLED" in below and lines[-1] in below
    assert re.search(r"recalled before prompts +\d+", shown)
    stats = cc("stats", "--json").json["total"]
    assert 0 < stats["with_recall"] < 9 and 0 < stats["tokens_recall"] < stats["tokens_sent"]
    assert f"tokens in {stats['with_recall']} request" in cc("stats").out


def test_every_request_of_the_normal_mode_is_on_the_record(cc: Command) -> None:
    assert "the whole history was sent as it is: 3 messages" in talk(cc, "Hello.", "And now?", "/view").out
    views = cc("views", "list", "--json").json["views"]
    assert [(view["turn_index"], view["budget"], view["status"].partition(";")[0]) for view in views] == [
        (1, None, "raw"),
        (0, None, "raw"),
    ]
    assert "Hello." in cc("views", "show", views[0]["id"]).out


def test_view_in_normal_mode_reports_that_everything_was_sent(cc: Command) -> None:
    assert "nothing has been sent yet" in talk(cc, "/view").out
    assert "the whole history was sent as it is: 1 message, " in talk(cc, "Hello.", "/view").out


def test_endless_mode_is_switched_during_a_chat(cc: Command) -> None:
    said = talk(cc, "/endless on", "Hello.", "/view", "/endless off", "/endless maybe")
    assert "Endless is on: views are written with chat_compiler" in said.out
    assert "Endless is off: the whole history is sent" in said.out
    assert "/endless maybe: say on or off" in said.out


def test_templates_are_listed_selected_and_refused(cc: Command) -> None:
    said = talk(cc, "/template", "/template goal_oriented", "/template gaol_oriented", "/template ../../etc/passwd")
    assert "*  chat_compiler" in said.out
    assert "views are written with goal_oriented (builtin); Endless is off" in said.out
    assert "not selected: gaol_oriented: there is no template of that name; did you mean goal_oriented?" in said.out
    assert said.out.count("not selected") == 2


def test_a_broken_template_is_reported_once_and_the_template_command_shows_where(cc: Command, tmp_path: Path) -> None:
    file = tmp_path / "system" / "ContextTemplates" / "mine.md"
    file.parent.mkdir(parents=True)
    file.write_text("---\nrecent_turns: many\n---\nNotes")
    said = talk(cc, "Hello.", "And?", "/template", args=("--endless", "--template", "mine"))
    assert said.code == 0 and said.out.count("On “") == 2
    assert said.err.count("mine.md:2") == 1
    assert "selected, but invalid: " in said.out and "mine.md:2" in said.out


def test_recall_quotes_earlier_messages_word_for_word(cc: Command) -> None:
    lines = [f"The port of service {number} is {8080 + number}." for number in range(12)]
    said = talk(cc, *lines, "/recall port 8084", "/recall xyzzy", "/recall")
    assert "[5 user] The port of service 4 is 8084." in said.out
    assert "nothing was said about xyzzy" in said.out
    assert "/recall WORDS" in said.out


def test_stats_and_help_list_turns_files_and_commands(cc: Command) -> None:
    said = talk(cc, "Hello.", "/stats", "/help", "/nonsense", "//help me", "/quit", "never said")
    assert "turns          1" in said.out and "Chat_Sessions/main.md" in said.out
    assert all(f"/{name}" in said.out for name in ("endless", "template", "view", "recall", "stats", "help", "quit"))
    assert "there is no /nonsense" in said.out
    assert "On “/help me”" in said.out
    assert "never said" not in said.out


def test_stats_count_compiles_and_those_written_by_a_model(cc: Command) -> None:
    lines = [f"Question number {number} about the table of receipts?" for number in range(9)]
    looked = [command for line in lines for command in (line, "/view")]
    quoted = talk(cc, *looked, "/stats", args=("--endless", "--budget", "900"))
    assert re.search(r"compiles here +[1-9], 0 of them by a model", quoted.out)
    assert re.search(r"recall blocks +[\d,]+ +\d+%", quoted.out)
    assert "no model was asked: the summary may have only" in quoted.out, "why there are quotes and no notes"
    noted = talk(cc, *lines, "/stats", args=("--endless", "--every-turn", "--session", "notes"))
    assert re.search(r"compiles here +([1-9]), \1 of them by a model", noted.out)


def test_a_mistyped_command_is_named_in_the_error(cc: Command) -> None:
    assert "there is no /recal, but there is /recall; /help lists all" in talk(cc, "/recal the queue").out


def test_a_session_continues_where_it_ended(cc: Command) -> None:
    talk(cc, "One.", "Two.", args=("--session", "plan"))
    assert "turns          3" in talk(cc, "Three.", "/stats", args=("--session", "plan")).out
    assert "turns          1" in talk(cc, "One.", "/stats", args=("--session", "other")).out


def test_the_vault_holds_transcripts_and_templates(cc: Command, tmp_path: Path) -> None:
    templates = tmp_path / "vault" / "AssistantMD" / "ContextTemplates"
    templates.mkdir(parents=True)
    (templates / "mine.md").write_text("---\ndescription: My own\n---\nNotes on {{ recent_turns }}")
    said = talk(cc, "Hello.", "/template", args=("--vault", "vault", "--template", "mine"))
    assert "*  mine" in said.out and "My own" in said.out
    assert (tmp_path / "vault" / "AssistantMD" / "Chat_Sessions" / "main.md").is_file()


@pytest.mark.parametrize("session", ["../../escaped", "/tmp/escaped", "a/../../b"])
def test_a_session_stays_in_its_folder(session: str, cc: Command, tmp_path: Path) -> None:
    assert talk(cc, "Hello.", args=("--session", session)).code == 0
    assert [path.parent.name for path in tmp_path.rglob("*.md") if "ContextTemplates" not in str(path)] == [
        "Chat_Sessions"
    ]


def test_escape_sequences_are_not_passed_to_the_terminal(cc: Command) -> None:
    said = talk(cc, "\x1b]0;owned\x07\x1b[2Jhello\x9b31m \u202eback", "/recall hello", "/stats")
    assert "hello" in said.out
    assert not set("\x1b\x07\x9b\u202e") & set(said.out)


def test_a_line_that_is_not_valid_text_is_sent_anyway(cc: Command, tmp_path: Path) -> None:
    said = cc(*SCRIPTED, input=b"caf\xe9 \x00\xff queue\n")
    assert said.code == 0 and "queue" in said.out
    assert "queue" in (tmp_path / "system" / "Chat_Sessions" / "main.md").read_text()


def test_a_missing_key_is_named(cc: Command) -> None:
    pytest.importorskip("anthropic")
    said = cc("chat", input="Hello.\n", ANTHROPIC_API_KEY="")
    assert said.code == 2 and said.out == ""
    assert "set the environment variable ANTHROPIC_API_KEY" in said.err and "--model scripted needs no key" in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("model", ["nobody:knows", "scripted:fast", "scripted:-1"])
def test_a_model_that_cannot_be_used_is_one_line(model: str, cc: Command) -> None:
    said = cc("chat", "--model", model, input="Hello.\n")
    assert said.code == 2 and said.err.startswith("error: --model") and said.err.count("\n") == 1


def test_a_wrong_budget_is_one_line(cc: Command) -> None:
    assert "--budget 'much'" in talk(cc, "Hello.", args=("--budget", "much")).err


def test_with_json_every_line_is_a_prompt_and_every_answer_one_object(cc: Command) -> None:
    said = talk(cc, "What about the queue?", "/view", args=("--json",))
    first, second = map(json.loads, said.out.splitlines())
    assert first["answer"].startswith("On “What about the queue?”") and second["answer"].startswith("On “/view”")
    assert first["raw"] == first["sent"] > 0 and first["stopped"] is False


def test_view_reports_why_the_whole_history_was_sent_instead(cc: Command, tmp_path: Path) -> None:
    (tmp_path / "system" / "ContextTemplates").mkdir(parents=True)
    (tmp_path / "system" / "ContextTemplates" / "mine.md").write_text("{{ topic")
    said = talk(cc, "Hello.", "And?", "/view", args=("--endless", "--template", "mine"))
    assert "the whole history was sent as it is: 3 messages, " in said.out
    assert "what failed: TemplateError: " in said.out and "mine.md:1" in said.out
    assert "Left out" not in said.out


def test_view_separates_kept_messages_from_left_out_ones_even_if_the_template_fails(
    cc: Command, tmp_path: Path
) -> None:
    (tmp_path / "system" / "ContextTemplates").mkdir(parents=True)
    (tmp_path / "system" / "ContextTemplates" / "mine.md").write_text("{{ topic")
    lines = [f"Question number {number} about the table of receipts?" for number in range(12)]
    said = talk(cc, *lines, "/view", args=("--endless", "--template", "mine", "--budget", "400"))
    kept, raw = map(int, re.findall(r"Kept: (\d+) of (\d+) messages", said.out)[0])
    assert 0 < kept < raw == 23 and "what failed: TemplateError: " in said.out


def test_the_view_command_accepts_only_the_word_full(cc: Command) -> None:
    assert "/view all: say full, or nothing" in talk(cc, "Hello.", "/view all").out


def test_a_vault_that_does_not_exist_yet_is_created_with_a_note(cc: Command, tmp_path: Path) -> None:
    said = talk(cc, "Hello.", args=("--vault", "notse"))
    assert said.code == 0 and said.err == "note: notse: no such folder; it is created for this chat\n"
    assert "no such folder" not in talk(cc, "Hello.", args=("--vault", "notse")).err


@pytest.mark.parametrize("command", [SCRIPTED, ("serve", "--chat", "--model", "scripted")])
def test_a_chat_does_not_go_against_a_settings_file_that_records_less(command: tuple[str, ...], cc: Command) -> None:
    Path("context_compiler.toml").write_text('record = "off"\n')
    said = cc(*command, input="What about the queue?\n")
    assert said.code and "record='off': a chat stores all of its text" in said.err
    assert not Path("system").exists()
