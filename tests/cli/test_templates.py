"""Templates can be listed, shown and checked before anything depends on them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.cli.conftest import Command, one_line

SHIPPED = Path(__file__).parents[2] / "templates"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A system folder with a sound template and a wrong one."""
    folder = tmp_path / "system" / "ContextTemplates"
    folder.mkdir(parents=True)
    (folder / "good.md").write_text("---\ndescription: Mine\ntags: [work]\n---\nAbout {{ topic }}.\n")
    (folder / "wrong.md").write_text("---\nfidelity: lots\n---\nHello.\n")
    return folder


def test_a_list_has_the_shipped_templates_with_their_descriptions(cc: Command) -> None:
    listed = {one["name"]: one for one in cc("templates", "list", "--json").json["templates"]}
    assert {"chat_compiler", "extractive", "goal_oriented"} <= listed.keys()
    assert all(one["source"] == "builtin" and one["description"] for one in listed.values())
    assert "chat_compiler" in cc("templates", "list").out


def test_a_list_of_templates_skips_a_wrong_one_and_names_it(cc: Command, own: Path) -> None:
    said = cc("templates", "list")
    assert said.code == 0 and "good" in said.out and "wrong" not in said.out
    assert "wrong.md:2: fidelity" in said.err


def test_a_template_is_shown_with_its_origin_hash_and_text(cc: Command, own: Path) -> None:
    said = cc("templates", "show", "good")
    digest = hashlib.sha256((own / "good.md").read_bytes()).hexdigest()
    for told in ("good (system)", "Mine", str(own / "good.md"), digest, "topic", "About {{ topic }}."):
        assert told in said.out
    shown = cc("templates", "show", "good", "--json").json
    assert shown["template"]["sha256"] == digest and shown["wants"] == ["topic"]


def test_a_template_is_shown_with_the_budgets_of_its_sections(cc: Command, own: Path) -> None:
    (own / "plan.md").write_text(
        "---\nsections:\n  topic: {priority: 1, budget: 90}\n  plan: {priority: 2}\n---\nHello.\n"
    )
    said = cc("templates", "show", "plan").out
    assert "topic: priority 1, at most 90 tokens; plan: priority 2, at most 4,000 tokens, the default\n" in said


def test_a_placeholder_that_is_always_empty_is_a_warning_with_its_line(cc: Command, own: Path) -> None:
    body = "{% set zebra = cap %}{{ zebra }}\n{{ recent_turnz }}\n{{ lion }}"
    (own / "good.md").write_text(f"---\nsections: {{topicz: {{priority: 1}}}}\n---\n\n{body}")
    said = cc("templates", "check", "good")
    assert said.code == 0 and said.out.endswith("1 template, 0 wrong, 3 warnings\n")
    assert "line 6: unknown placeholder recent_turnz; did you mean recent_turns?\n" in said.out
    assert "line 7: unknown placeholder lion; there are cap, constraints, " in said.out
    assert "sections: unknown section topicz; did you mean topic?\n" in said.out
    assert "line 6: unknown placeholder recent_turnz" in cc("templates", "show", "good").out


def test_each_kind_of_template_has_placeholders_of_its_own(cc: Command) -> None:
    files = [*(SHIPPED / "layers").glob("*.md"), *(SHIPPED / "fidelity").glob("*.md")]
    assert cc("templates", "check", *files).out.endswith(f"{len(files)} templates, 0 wrong, 0 warnings\n")


def test_all_errors_of_a_file_are_named(cc: Command, tmp_path: Path) -> None:
    text = "---\nfidelity: lots\nrecent_turns: many\n---\n{{ a b }}\n{{ c | nofilter }} {{ d | other }}\n{{ e f }}"
    (tmp_path / "note.md").write_text(text)
    said = cc("templates", "check", "note.md")
    errors = [line.strip().removeprefix("wrong").strip() for line in said.out.splitlines()[:-2]]
    assert [line.split(": ")[0] for line in errors] == [f"note.md:{line}" for line in (2, 3, 5, 6, 6, 7)]
    (template,) = cc("templates", "check", "note.md", "--json").json["templates"]
    assert template["errors"] == errors and template["error"] == errors[0]
    (tmp_path / "note.md").write_text("{% for x in y %}\n{{ a b }}\n")
    (template,) = cc("templates", "check", "note.md", "--json").json["templates"]
    assert [error.split(": ")[0] for error in template["errors"]] == ["note.md:1", "note.md:2"]


def test_an_unknown_template_is_reported_in_one_line_with_similar_names(cc: Command) -> None:
    for command in ("show", "check"):
        said = cc("templates", command, "chat_compile")
        assert said.code == 2 and "did you mean chat_compiler?" in one_line(said)


def test_all_shipped_templates_pass_their_check(cc: Command) -> None:
    said = cc("templates", "check")
    assert said.code == 0 and said.out.endswith("0 wrong, 0 warnings\n")


def test_a_check_finds_what_is_wrong_and_where(cc: Command, own: Path) -> None:
    said = cc("templates", "check")
    assert said.code == 1
    assert "wrong.md:2: fidelity: unknown fidelity 'lots'" in said.out and "1 wrong, 1 warning" in said.out
    assert "unknown key 'tags'" in said.out
    templates = {template["name"]: template for template in cc("templates", "check", "--json").json["templates"]}
    assert templates["wrong"]["error"] and not templates["good"]["error"]


def test_a_check_of_one_template_leaves_the_others_alone(cc: Command, own: Path) -> None:
    assert cc("templates", "check", "good").code == 0
    assert cc("templates", "check", "wrong").code == 1
    assert cc("templates", "check", "good", "wrong", "--json").json["ok"] is False


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"Hello {{ name", "note.md:1"),
        (b"\xff", "UTF-8"),
        (b"", "empty"),
        (b"{% for x in 'ab' %}{{ x.y.z() }}{% endfor %}", "note.md"),
    ],
)
def test_any_file_can_be_checked_before_it_is_put_anywhere(cc: Command, tmp_path: Path, body: bytes, why: str) -> None:
    (tmp_path / "note.md").write_bytes(body)
    said = cc("templates", "check", "note.md")
    assert said.code == 1 and why in said.out and said.err == ""


def test_a_check_also_renders_the_template(cc: Command, tmp_path: Path) -> None:
    (tmp_path / "note.md").write_text("{{ 1 / 0 }}")
    assert cc("templates", "check", "note.md").code == 1
