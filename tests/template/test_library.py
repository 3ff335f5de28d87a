from __future__ import annotations

import hashlib
import logging
import os
import threading
from pathlib import Path

import pytest

from context_compiler.errors import TemplateError
from context_compiler.template import Template, TemplateLibrary, list_templates, shipped_templates


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    (tmp_path / "vault" / "AssistantMD" / "ContextTemplates").mkdir(parents=True)
    return tmp_path / "vault"


@pytest.fixture
def system(tmp_path: Path) -> Path:
    (tmp_path / "system" / "ContextTemplates").mkdir(parents=True)
    return tmp_path / "system"


@pytest.fixture
def library(vault: Path, system: Path) -> TemplateLibrary:
    return TemplateLibrary(vault=vault, system=system)


def put(root: Path, name: str, text: str | bytes) -> Path:
    folder = root / "AssistantMD" / "ContextTemplates" if root.name == "vault" else root / "ContextTemplates"
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_the_vault_comes_before_the_system_and_the_system_before_the_shipped(
    library: TemplateLibrary, vault: Path, system: Path
):
    assert library.find("chat_compiler").source == "builtin"
    put(system, "chat_compiler.md", "from the system")
    assert (library.find("chat_compiler").source, library.find("chat_compiler").body) == ("system", "from the system")
    put(vault, "chat_compiler.md", "from the vault")
    assert (library.find("chat_compiler").source, library.find("chat_compiler").body) == ("vault", "from the vault")


def test_without_a_vault_only_the_system_folder_is_searched(vault: Path, system: Path):
    put(vault, "mine.md", "x")
    with pytest.raises(TemplateError):
        TemplateLibrary(system=system).find("mine")


def test_a_template_has_its_source_and_path(library: TemplateLibrary, vault: Path):
    file = put(vault, "team/notes.md", "---\nfidelity: compact\n---\nHällo\r\n")
    template = library.find("team/notes")
    assert (template.name, template.source, template.path) == ("team/notes", "vault", str(file))
    assert template.sha256 == hashlib.sha256(file.read_bytes().replace(b"\r\n", b"\n")).hexdigest()


def test_the_suffix_is_optional_and_blanks_around_a_name_do_not_count(library: TemplateLibrary, vault: Path):
    put(vault, "release notes v1.2.md", "x")
    for name in ("release notes v1.2", "release notes v1.2.md", "  release notes v1.2 "):
        assert library.find(name).name == "release notes v1.2"


def test_the_source_of_a_template_is_returned_unchanged(library: TemplateLibrary):
    template = Template.parse("x", name="inline")
    assert library.find(template) is template


def test_a_path_inside_a_root_is_a_name(library: TemplateLibrary, system: Path, monkeypatch: pytest.MonkeyPatch):
    file = put(system, "team/notes.md", "x")
    assert library.find(str(file)) == library.find(str(file.with_suffix(""))) == library.find("team/notes")
    monkeypatch.chdir(system.parent)
    assert library.find("system/ContextTemplates/team/notes.md").source == "system"


def test_an_unchanged_file_is_parsed_once(library: TemplateLibrary, vault: Path):
    put(vault, "mine.md", "x")
    assert library.find("mine") is library.find("mine")


def test_an_edit_is_noticed_at_once_even_with_the_same_size_and_time(library: TemplateLibrary, vault: Path):
    file = put(vault, "mine.md", "one")
    before = library.find("mine")
    times = file.stat()
    file.write_text("two")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    after = library.find("mine")
    assert (before.body, after.body) == ("one", "two")
    assert before.sha256 != after.sha256


def test_a_deleted_or_broken_template_is_noticed(library: TemplateLibrary, vault: Path):
    file = put(vault, "mine.md", "good")
    library.find("mine")
    file.write_text("{{ bad")
    with pytest.raises(TemplateError, match="mine.md:1: "):
        library.find("mine")
    file.unlink()
    with pytest.raises(TemplateError, match="no template of that name"):
        library.find("mine")


def test_an_unknown_name_is_refused_with_similar_names_and_the_folders_searched(
    library: TemplateLibrary, vault: Path, system: Path
):
    put(vault, "meeting_notes.md", "x")
    with pytest.raises(TemplateError) as caught:
        library.find("meeting-notes")
    assert "did you mean meeting_notes?" in str(caught.value)
    assert str(vault / "AssistantMD" / "ContextTemplates") in str(caught.value)
    assert str(system / "ContextTemplates") in str(caught.value)
    assert caught.value.name == "meeting-notes"


def test_a_broken_template_is_not_replaced_by_the_one_it_shadows(library: TemplateLibrary, vault: Path):
    put(vault, "chat_compiler.md", "---\nfidelity: huge\n---\nx")
    with pytest.raises(TemplateError, match=r"chat_compiler.md:2: fidelity: unknown fidelity 'huge'"):
        library.find("chat_compiler")


def test_the_default_is_seeded_once(library: TemplateLibrary, tmp_path: Path):
    library = TemplateLibrary(system=tmp_path / "new" / "system")
    file = library.seed()
    assert file == tmp_path / "new" / "system" / "ContextTemplates" / "chat_compiler.md"
    assert file.read_bytes() == (shipped_templates() / "chat_compiler.md").read_bytes()
    assert library.seed() is None


def test_seeding_never_overwrites(library: TemplateLibrary, system: Path):
    file = put(system, "chat_compiler.md", "mine")
    assert library.seed() is None
    assert file.read_text() == "mine"


def test_seeding_adds_to_a_folder_with_other_templates(library: TemplateLibrary, system: Path):
    put(system, "other.md", "x")
    assert library.seed() is not None
    assert library.find("chat_compiler").source == "system"


def test_without_a_system_folder_nothing_is_seeded():
    assert TemplateLibrary(system=None).seed() is None


def test_a_folder_that_cannot_be_made_is_our_error(tmp_path: Path):
    (tmp_path / "system").write_text("a file")
    with pytest.raises(TemplateError, match="could not be written"):
        TemplateLibrary(system=tmp_path / "system").seed()


def test_one_of_several_concurrent_seedings_writes_the_file(tmp_path: Path):
    seeded: list[Path | None] = []
    library = TemplateLibrary(system=tmp_path / "system")
    threads = [threading.Thread(target=lambda: seeded.append(library.seed())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seeded) == 8
    assert sum(path is not None for path in seeded) == 1


def test_the_list_has_the_vault_first_and_marks_shadowed_templates(vault: Path, system: Path):
    put(vault, "mine.md", "---\ndescription: My own\n---\nx")
    put(vault, "chat_compiler.md", "x")
    put(system, "team/mine.md", "x")
    put(system, "mine.md", "x")
    templates = [(info.name, info.source, info.shadowed) for info in list_templates(vault, system)]
    assert templates == [
        ("chat_compiler", "vault", False),
        ("mine", "vault", False),
        ("mine", "system", True),
        ("team/mine", "system", False),
        ("chat_compiler", "builtin", True),
        ("extractive", "builtin", False),
        ("goal_oriented", "builtin", False),
        ("manager_summary", "builtin", False),
    ]


def test_the_list_has_descriptions_and_paths(vault: Path):
    file = put(vault, "mine.md", "---\ndescription: My own\n---\nx")
    info = list_templates(vault, None)[0]
    assert (info.description, info.path) == ("My own", str(file))


def test_a_bad_template_is_left_out_of_the_list_with_a_warning(vault: Path, caplog: pytest.LogCaptureFixture):
    put(vault, "bad.md", "{{ bad")
    put(vault, "notes.txt", "not a template")
    put(vault, ".obsidian/hidden.md", "x")
    put(vault, "good.md", "x")
    with caplog.at_level(logging.WARNING):
        names = [info.name for info in list_templates(vault, None) if info.source == "vault"]
    assert names == ["good"]
    assert [record.levelname for record in caplog.records if "bad.md:1" in record.getMessage()] == ["WARNING"]


def test_folders_that_do_not_exist_are_empty(tmp_path: Path):
    assert {info.source for info in list_templates(tmp_path / "no", tmp_path / "nothing")} == {"builtin"}
