"""A transcript in, a view out: as text, as markdown, as JSON, explained, and within its budget or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic_ai.messages import ModelMessagesTypeAdapter

from context_compiler.messages.importers import FORMATS
from context_compiler.paths import install_command
from tests.cli.conftest import DEMO, Command, chat, message, one_line, written


@pytest.mark.parametrize("how", [("--json",), ("--format", "json")])
def test_json_has_exactly_the_promised_fields(cc: Command, how: tuple[str, ...]) -> None:
    said = cc("compile", DEMO, "--budget", 2000, *how)
    assert (said.code, said.err) == (0, "")
    assert list(said.json) == ["messages", "tokens", "budget", "status", "ledger", "record"]
    assert said.json["tokens"] <= said.json["budget"] == 2000
    assert said.json["status"] == "compiled"
    assert said.json["record"]["session_id"] == "demo"
    assert said.json["record"]["compile"]["template_name"] == "extractive"


def test_the_messages_in_json_have_the_format_of_the_host(cc: Command) -> None:
    said = cc("compile", DEMO, "--budget", 2000, "--json")
    view = ModelMessagesTypeAdapter.validate_json(json.dumps(said.json["messages"]))
    raw = ModelMessagesTypeAdapter.validate_json(DEMO.read_bytes())
    assert view[-1] == raw[-1]


def test_the_view_is_printed_message_by_message(cc: Command) -> None:
    said = cc("compile", DEMO, "--budget", 2000, "--recent-turns", 3)
    assert "demo: 13," in said.out and "of a budget of 2,000" in said.out
    assert "Context summary (compiled):" in said.out
    assert "user · " in said.out and "assistant · " in said.out
    assert "Great work. I am off from tomorrow" in said.out


def test_a_pipe_gets_plain_text_in_full(cc: Command) -> None:
    said = cc("compile", DEMO, "--budget", 8000, COLUMNS="40")
    assert "\x1b" not in said.out and "╭" not in said.out
    longest = "Great work. I am off from tomorrow and Tomasz takes over. For his handover note: which table"
    assert any(longest in line for line in said.out.splitlines())


def test_a_terminal_gets_panels_in_colour(cc: Command) -> None:
    said = cc("compile", DEMO, "--budget", 2000, terminal=100)
    assert "\x1b[" in said.out and "╭" in said.out
    assert all(len(line) <= 100 for line in said.plain.splitlines())


def test_no_color_removes_the_colour_and_keeps_the_panels(cc: Command) -> None:
    said = cc("compile", DEMO, "--budget", 2000, terminal=100, NO_COLOR="1")
    assert "╭" in said.out
    assert "\x1b[" not in said.out, "bold and dim text is styled text too"


def test_markdown_is_a_document(cc: Command) -> None:
    said = cc("compile", DEMO, "--budget", 2000, "--format", "markdown", "--recent-turns", 3)
    assert (
        said.out.startswith("# demo\n") and "\n## 1. user (" in said.out and "Context summary (compiled):" in said.out
    )
    assert "**calls `query_metrics`**" in said.out


def test_explain_lists_each_message_with_its_tokens_and_why_it_is_in_the_view_or_not(cc: Command) -> None:
    said = cc("compile", DEMO, "--budget", 2000, "--explain", "--recent-turns", 3)
    kept, rest = said.out.split("Left out\n")
    left_out, tokens = rest.split("Tokens\n")
    assert "current turn" in kept and "recent turn, with the notes" in kept
    assert "older than what were then the last 3 turns" in left_out and "Pull the gateway log" in left_out
    assert "quoted from what is left out" in tokens


def test_explain_adds_up_to_the_view(cc: Command) -> None:
    view = cc("compile", DEMO, "--budget", 2000, "--json").json
    said = cc("compile", DEMO, "--budget", 2000, "--explain", "--format", "markdown")
    rows = [line.split(" | ") for line in said.out.split("## Kept")[1].split("\n## ")[0].splitlines()[4:] if line]
    assert sum(int(row[3].replace(",", "")) for row in rows) == view["tokens"]
    assert len(rows) == len(view["messages"])


def test_explain_names_the_raw_message_behind_each_message(cc: Command) -> None:
    said = cc("compile", DEMO, "--budget", 2000, "--explain").out.splitlines()
    system = next(line.split() for line in said if "[system] You are the engineering" in line)
    question = next(line.split() for line in said if "Great work. I am off" in line)
    assert system[:2] == ["0", "system"] and question[:2] == ["104", "user"]


def test_a_view_of_the_whole_history_has_nothing_left_out(cc: Command) -> None:
    said = cc("compile", DEMO, "--budget", "0.9", "--explain")
    assert "it fits as it is" in said.out and "Left out\n  nothing\n" in said.out


@pytest.mark.parametrize(("given", "tokens"), [("4000", 4000), ("4_000", 4000), ("0.5", 16000), ("1.0", 32000)])
def test_a_budget_is_tokens_or_a_share(cc: Command, given: str, tokens: int) -> None:
    assert cc("compile", DEMO, "--budget", given, "--json").json["budget"] == tokens


@pytest.mark.parametrize("given", ["0", "-5", "1.5", "0.0", "lots", "", "nan", "inf", "1e400"])
def test_a_budget_that_is_neither_tokens_nor_a_share_is_refused(cc: Command, given: str) -> None:
    said = cc("compile", DEMO, "--budget", given)
    assert said.code == 2 and "give whole tokens such as 4000" in one_line(said)


def test_strict_fails_if_even_the_smallest_view_is_over_the_budget(cc: Command) -> None:
    said = cc("compile", DEMO, "--budget", 3, "--strict")
    assert said.code == 1 and "give a larger budget" in one_line(said)
    assert cc("compile", DEMO, "--budget", 3).code == 0


@pytest.mark.parametrize("budget", [12, 40, 90])
def test_strict_fails_where_the_prompt_was_cut_to_fit(cc: Command, budget: int) -> None:
    said = cc("compile", DEMO, "--budget", budget, "--strict")
    sizes = "it takes 61, and what no view can leave out takes 54: give a larger budget"
    assert said.code == 1 and f"{budget} tokens are enough only if the prompt is cut: {sizes}" in one_line(said)


def test_strict_accepts_a_view_with_the_whole_prompt(cc: Command, tmp_path: Path) -> None:
    said = cc("compile", DEMO, "--budget", 200, "--strict", "--json")
    assert said.code == 0 and said.json["tokens"] <= 200
    assert said.json["messages"][-1]["parts"] == json.loads(DEMO.read_bytes())[-1]["parts"]
    written(tmp_path / "long.json", [message("user", "Look at this log: " + "line of a log " * 400)])
    assert cc("compile", "long.json", "--budget", 500).code == 0
    assert cc("compile", "long.json", "--budget", 500, "--strict").code == 1


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("--fidelity", "most", "--fidelity: unknown fidelity 'most'; use one of full, truncate"),
        ("--template", "extractiv", "did you mean extractive?"),
        ("--template", "../secret", "name of a template"),
        ("--recent-turns", "some", "a whole number from 0, or all"),
        ("--from", "word", f"unknown format 'word'; use one of {', '.join(FORMATS)}"),
    ],
)
def test_a_wrong_value_is_reported_with_the_valid_ones(cc: Command, option: str, value: str, why: str) -> None:
    said = cc("compile", DEMO, option, value)
    assert said.code == 2 and why in one_line(said)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b"{", "is not JSON"),
        (b'{"a": 1}', "no transcript was found"),
        (b"\xff[]", "is not UTF-8"),
        (b"[]", "contains no messages"),
    ],
)
def test_a_file_that_is_not_a_transcript_is_refused_with_the_reason(
    cc: Command, tmp_path: Path, content: bytes, why: str
) -> None:
    (tmp_path / "chat.json").write_bytes(content)
    said = cc("compile", "chat.json")
    assert said.code == 2 and one_line(said).startswith("error: chat.json: ") and why in said.err


def test_a_folder_is_not_accepted_as_a_transcript(cc: Command, tmp_path: Path) -> None:
    assert "is a directory" in one_line(cc("compile", tmp_path))


def test_a_transcript_can_be_piped_in(cc: Command) -> None:
    said = cc("compile", "-", "--budget", 500, "--json", input=json.dumps(chat(12)))
    assert said.json["status"] == "compiled" and said.json["record"]["session_id"] == "stdin"


def test_the_same_chat_compiles_from_other_formats(cc: Command, tmp_path: Path) -> None:
    written(tmp_path / "chat.json", chat(12))
    said = cc("compile", "chat.json", "--budget", 500, "--from", "anthropic", "--json")
    assert said.json["messages"] == cc("compile", "chat.json", "--budget", 500, "--json").json["messages"]


def test_one_of_several_conversations_must_be_selected(cc: Command, tmp_path: Path) -> None:
    written(tmp_path / "chats.json", [{"id": f"c{number}", "messages": chat(number)} for number in range(1, 4)])
    said = cc("compile", "chats.json")
    assert said.code == 2
    assert "contains 3 conversations; select one with --select" in one_line(said) and "'chats#c1'" in said.err
    for name in ("1", "c2", "chats#c2"):
        assert cc("compile", "chats.json", "--select", name, "--json").json["record"]["session_id"] == "chats#c2"
    assert "there are 'chats#c" in one_line(cc("compile", "chats.json", "--select", "chats#c9"))


def test_a_view_is_recorded_only_where_a_record_is_named(cc: Command, tmp_path: Path) -> None:
    assert cc("compile", DEMO).code == 0
    assert list(tmp_path.iterdir()) == []
    said = cc("compile", DEMO, "--db", "here/context.db", "--session", "mine")
    assert said.out.endswith("recorded as view 1 of session mine\n")
    assert cc("views", "list", "--db", "here/context.db", "--json").json["views"][0]["session_id"] == "mine"


def test_the_record_can_be_named_by_the_environment(cc: Command, tmp_path: Path) -> None:
    assert cc("compile", DEMO, CONTEXT_COMPILER_DB="there.db").code == 0
    assert (tmp_path / "there.db").exists()


def test_a_wrong_environment_variable_is_reported_in_one_line(cc: Command) -> None:
    said = cc("compile", DEMO, CONTEXT_COMPILER_TIMEOUT="soon")
    assert said.code == 2 and "CONTEXT_COMPILER_TIMEOUT='soon'" in one_line(said)


def test_a_record_that_cannot_be_written_is_reported_in_one_line(cc: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    said = cc("compile", DEMO, "--db", "file/context.db")
    assert said.code == 2 and "file/context.db" in one_line(said)


def test_a_template_can_be_any_markdown_file(cc: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.md").write_text("---\ncompiler: none\n---\nMy own words, {{ turns_left_out }} turns left out.")
    said = cc("compile", DEMO, "--template", "mine.md", "--budget", 2000)
    assert "My own words, " in said.out and "template mine" in said.out


def test_a_vaults_template_comes_before_the_shipped_one(cc: Command, tmp_path: Path) -> None:
    folder = tmp_path / "vault" / "AssistantMD" / "ContextTemplates"
    folder.mkdir(parents=True)
    (folder / "extractive.md").write_text("---\ncompiler: none\n---\nFrom the vault.")
    said = cc("compile", DEMO, "--vault", "vault", "--budget", 2000, "--json")
    assert said.json["record"]["compile"]["template_source"] == "vault"


def test_a_model_is_asked_for_the_summary_when_one_is_named(cc: Command) -> None:
    said = cc("compile", DEMO, "--budget", 4000, "--model", "test", "--json")
    made = said.json["record"]["compile"]
    assert made["model_alias"] == "test" and made["template_name"] == "chat_compiler"
    assert made["status"].startswith("refused") and made["compiled_prompt"] and made["raw_output"]


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("openai:gpt-5", "set the environment variable OPENAI_API_KEY"),
        ("nobody:knows", "Unknown model: nobody:knows; give provider:name"),
        ("", "Unknown model"),
    ],
)
def test_a_model_that_cannot_be_used_is_reported_in_one_line_with_the_remedy(cc: Command, model: str, why: str) -> None:
    said = cc("compile", DEMO, "--model", model)
    assert said.code == 2 and why in one_line(said)


def test_a_text_without_speakers_is_refused_with_what_it_lacks(cc: Command, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("Remember the milk.")
    assert "nor a text in which lines such as `User:`" in one_line(cc("compile", "notes.txt"))


def test_a_missing_provider_is_named_with_its_extra(cc: Command) -> None:
    said = cc("compile", DEMO, "--model", "google:gemini-2.5-pro")
    if "GOOGLE_API_KEY" in said.err:
        pytest.skip("the provider is installed, so that the error about a missing one cannot come")
    assert said.code == 2 and install_command("google") in one_line(said)


def test_recent_turns_can_be_none_or_all(cc: Command) -> None:
    def messages(turns: str) -> int:
        return len(cc("compile", DEMO, "--budget", 6000, "--recent-turns", turns, "--json").json["messages"])

    assert messages("0") < messages("3") < messages("all")
