"""Tables are readable on a terminal of 80 columns: names stay usable, and what is left away is named."""

from __future__ import annotations

import json

import pytest

from context_compiler.cli.text import abbreviate, expand, fit_pieces, suggestions
from tests.cli.conftest import Command, chat, one_line

NAMES = [f"release_notes-0af79a4e/{step}/context-helper" for step in ("final_version", "draft_the_note", "check_them")]
LISTS = [("views", "list"), ("sessions", "list"), ("stats",)]


@pytest.fixture
def long(recorded: Command) -> Command:
    """A record in which the names of some sessions are longer than there is room for."""
    for at, name in enumerate(NAMES):
        assert recorded("import", "-", "--session", name, input=json.dumps(chat(at + 1))).code == 0
    return recorded


def names_in(plain: str) -> list[str]:
    """The shortened names of a table, in their order."""
    return [word for line in plain.splitlines() for word in line.split() if "…" in word]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_shortened_names_stay_distinct_and_can_be_typed(long: Command, width: int) -> None:
    for args in LISTS:
        said = long(*args, terminal=width)
        assert all(len(line) <= width for line in said.plain.splitlines()), said.plain
        meant = [expand(name, ["demo", *NAMES]) for name in names_in(said.plain)]
        assert all(len(names) == 1 for names in meant) and len(meant) == len({name for (name,) in meant}), said.plain


def test_a_pipe_gets_every_name_and_every_column(long: Command) -> None:
    for args in LISTS:
        said = long(*args, COLUMNS="80").out
        assert all(name in said for name in NAMES) and "…" not in said and "wider terminal" not in said


def test_columns_that_do_not_fit_are_named_below_the_table(long: Command) -> None:
    for args in LISTS:
        narrow, wide = long(*args, terminal=80).plain, long(*args, terminal=200).plain
        left_away = narrow.split("a wider terminal also shows: ")[1].splitlines()[0].split(", ")
        head = wide.splitlines()[0]
        assert left_away and all(name in head and name not in narrow.splitlines()[0] for name in left_away)
        assert "wider terminal" not in wide


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("views", "why", "1"), ("message", "assistant", "a wider terminal also shows: tokens, begins")),
        (("demo",), ("it asks for", "not without", "4 of 6", "a wider terminal also shows: view 2,000, view 4,000")),
    ],
)
def test_a_narrow_table_leaves_columns_away_before_it_breaks_words(
    recorded: Command, args: tuple[str, ...], words: tuple[str, ...]
) -> None:
    said = recorded(*args, terminal=54)
    assert said.code == 0 and all(one in " ".join(said.plain.split()) for one in words), said.plain


def test_commands_accept_a_shortened_name(long: Command) -> None:
    for args in (("views", "list", "--session"), ("stats", "--session"), ("sessions", "show")):
        said = long(*args, "release...final_version/context-helper", "--json").json
        first = (said.get("views") or said["sessions"])[0]
        assert first["session" if "stats" in args else "session_id"] == NAMES[0]
        assert long(*args, "release…final").code == 2


def test_deleting_by_a_shortened_name_deletes_that_session_only(long: Command) -> None:
    said = long("sessions", "delete", "release…final_version/context-helper", "--yes", "--json").json
    assert said["session"] == NAMES[0]
    left = [one["session_id"] for one in long("sessions", "list", "--json").json["sessions"]]
    assert sorted(left) == sorted(["demo", *NAMES[1:]])


def test_an_ambiguous_shortened_name_is_refused(long: Command) -> None:
    said = long("sessions", "delete", "release…helper", "--yes")
    assert said.code == 2 and "matches 3 names, such as 'release_notes-" in one_line(said)


def test_a_name_is_never_guessed_from_its_beginning(long: Command) -> None:
    assert long("sessions", "delete", "dem", "--yes").code == 2


def test_a_name_of_dots_matches_no_session(recorded: Command) -> None:
    assert len(recorded("sessions", "list", "--json").json["sessions"]) == 1
    for dots in ("...", "…", "d…", "…o"):
        assert recorded("sessions", "delete", dots, "--yes").code == 2


def test_names_that_look_shortened_stay_whole() -> None:
    names = ["first … and all the rest", "wait...what is all of this"]
    assert abbreviate(names, 12) == names


def test_names_that_would_become_equal_are_not_shortened() -> None:
    assert abbreviate(["a" * 20, "a" * 21], 10) == ["a" * 20, "a" * 21]
    assert abbreviate(["short", "x" * 30 + "end"], 12) == ["short", "xxxxx…xxxend"]
    assert abbreviate(["本" * 30], 12) == ["本" * 30]


def test_a_shortened_name_matches_names_with_the_same_ends() -> None:
    assert expand("ab…yz", ["abyz", "abcyz", "bcyz"]) == ["abcyz"]
    assert expand("ab", ["abc"]) == []


def test_a_status_line_omits_whole_items() -> None:
    line = "main · Endless · raw 755 · sent 348 (46%) · cached 0"
    assert fit_pieces(line, 60) == line
    assert fit_pieces(line, 50) == "main · Endless · raw 755 · sent 348 (46%)"
    assert fit_pieces("a name that is long · normal", 10) == "a name th…"


def test_suggestions_say_how_many_there_are_and_what_lists_them() -> None:
    said = suggestions("four", [f"name {number}" for number in range(9)], list_command="context-compiler sessions list")
    assert said.startswith("; there are 9, such as 'name ") and said.endswith(
        "`context-compiler sessions list` lists them all"
    )
    assert suggestions("x", ["one"], list_command="l") == "; there is 'one'"
    assert suggestions("x", ["one", "two"], list_command="l") == "; there are 'one', 'two'"


def test_an_unknown_session_or_run_names_the_command_that_lists_all(long: Command) -> None:
    said = one_line(long("sessions", "show", "nothing"))
    assert "there are 4, such as" in said and said.endswith("`context-compiler sessions list` lists them all")


def test_an_unknown_view_number_is_reported_with_the_gaps(long: Command) -> None:
    long("sessions", "delete", NAMES[0], "--yes")
    said = one_line(long("views", "show", 4))
    assert "no view 4; there are 5, from 1 to 6 with gaps, the nearest are 2, 3, 5;" in said
    assert said.endswith("`context-compiler views list` lists them")


def test_the_demo_fits_eighty_columns(recorded: Command) -> None:
    said = recorded("demo", terminal=80).plain
    assert "my explicit yes" in said and "view 1,000  view 2,000  view 4,000" in said
    said = recorded("demo", "--full", terminal=80).plain
    assert "budget 2,000  ━" in said
    assert "  # a conversation of your own\n  context-compiler compile YOUR_CHAT.json --budget 4000 --explain\n" in said
    bars = [line for line in said.splitlines() if "━" in line]
    assert len(bars) == 4 and all("tokens" in line for line in bars)


def test_stats_and_the_list_of_views_count_compiled_requests_alike(long: Command) -> None:
    long("compile", "-", "--db", "system/context.db", "--budget", 200, input=json.dumps(chat(8)))
    listed = [view["status"].split(";")[0] for view in long("views", "list", "--json").json["views"]]
    total = long("stats", "--json").json["total"]
    assert total["compiled"] == listed.count("compiled") == 4
    assert total["by_model"] == 0 and total["compiles"] == 4
    assert "compiled: as in `views list`; 4 compiles on the record, 0 by a model" in long("stats").out
