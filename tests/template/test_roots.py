from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from context_compiler.errors import TemplateError
from context_compiler.template import TemplateLibrary

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links and pipes are made the POSIX way")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "system" / "ContextTemplates").mkdir(parents=True)
    return tmp_path / "system" / "ContextTemplates"


@pytest.fixture
def library(folder: Path) -> TemplateLibrary:
    return TemplateLibrary(system=folder.parent)


def put(folder: Path, name: str, text: str | bytes) -> Path:
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


UP_AND_OUT = ["../secret", "a/../../secret", "..", ".", "./mine", "/etc/passwd", "//server/share", "..\\secret"]
ODD = ["", "  ", "~/mine", "~root", "a\\b", "C:/mine", "c:mine", "a//b", "mine/", "mi\0ne", "mine\n"]
UNHEARD_OF = ["\ud800", "x" * 5000, "x/" * 3000 + "x"]


@pytest.mark.parametrize("name", ODD)
def test_an_odd_name_is_refused_with_the_reason(library: TemplateLibrary, name: str):
    with pytest.raises(TemplateError, match="this cannot be the name of a template: "):
        library.find(name)


@pytest.mark.parametrize("name", UP_AND_OUT + UNHEARD_OF)
def test_a_name_that_leaves_its_folder_is_refused(library: TemplateLibrary, folder: Path, name: str):
    put(folder, "mine.md", "x")
    (folder.parent / "secret.md").write_text("secret")
    with pytest.raises(TemplateError):
        library.find(name)


def test_a_path_beside_the_roots_is_refused(library: TemplateLibrary, folder: Path):
    secret = folder.parent / "secret.md"
    secret.write_text("secret")
    beside = folder.with_name(folder.name + "2")
    beside.mkdir()
    (beside / "x.md").write_text("x")
    for path in (secret, beside / "x.md"):
        with pytest.raises(TemplateError, match="no template of that name"):
            library.find(str(path))


def test_a_link_must_stay_inside_its_folder(library: TemplateLibrary, folder: Path, tmp_path: Path):
    real = put(folder, "real.md", "real")
    outside = tmp_path / "secret.md"
    outside.write_text("secret")
    (real.parent / "inside.md").symlink_to(real)
    (real.parent / "outside.md").symlink_to(outside)
    (real.parent / "folder").symlink_to(tmp_path)
    assert library.find("inside").body == "real"
    for name in ("outside", "folder/secret"):
        with pytest.raises(TemplateError, match="leads out of"):
            library.find(name)


def test_the_folder_itself_may_be_a_link(tmp_path: Path, folder: Path):
    put(folder, "mine.md", "x")
    (tmp_path / "link").symlink_to(folder.parent)
    assert TemplateLibrary(system=tmp_path / "link").find("mine").body == "x"


def test_a_path_that_is_not_a_regular_file_is_refused_without_waiting(library: TemplateLibrary, folder: Path):
    folder = put(folder, "mine.md", "x").parent
    (folder / "folder.md").mkdir()
    os.mkfifo(folder / "pipe.md")
    (folder / "loop.md").symlink_to(folder / "loop.md")
    (folder / "nowhere.md").symlink_to(folder / "gone.md")
    (folder / "device.md").symlink_to("/dev/zero")
    server = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    os.chdir(folder)  # a socket's path must be short
    try:
        server.bind("socket.md")
    finally:
        os.chdir(here)
        server.close()
    said = dict.fromkeys(("folder", "pipe", "socket"), "it is not a file") | {"device": "it leads out of"}
    for name, words in (said | dict.fromkeys(("loop", "nowhere"), "cannot be read")).items():
        with pytest.raises(TemplateError, match=f"{name}.md: {words}"):
            library.find(name)


def test_a_file_that_is_not_text_or_too_large_is_refused(library: TemplateLibrary, folder: Path):
    put(folder, "latin.md", b"one\ntw\xf6\n")
    put(folder, "binary.md", b"a\nb\0c")
    put(folder, "huge.md", b"x" * 300_000)
    put(folder, "empty.md", b"")
    said = {"latin": "md:2: this is not UTF-8", "binary": "md:2: .*NUL", "huge": "256 kB", "empty": "empty"}
    for name, words in said.items():
        with pytest.raises(TemplateError, match=words):
            library.find(name)


@pytest.mark.skipif(
    hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may read every file, so that no file can be unreadable"
)
def test_an_unreadable_file_is_an_error(library: TemplateLibrary, folder: Path):
    put(folder, "mine.md", "x").chmod(0)
    with pytest.raises(TemplateError, match="cannot be read"):
        library.find("mine")
