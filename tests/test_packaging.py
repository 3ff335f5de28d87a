"""What is built holds what it needs, and works where it is installed."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # whichever is first builds for all

ROOT = Path(__file__).parents[1]

SOURCES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "context_compiler").rglob("*.py"))
TEMPLATES = sorted(path.relative_to(ROOT / "templates").as_posix() for path in (ROOT / "templates").rglob("*.md"))
DATA = (
    "data/o200k.xz",
    "data/NOTICE",
    "data/demo.json",
    "pipeline/dot.lark",
    "record/row_security.sql",
    "py.typed",
    ".agents/skills/context-compiler/SKILL.md",
)

LOOK_UP = "from context_compiler import TemplateLibrary as T; print(T(system=None).find('chat_compiler').path)"


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def environment(folder: Path) -> Path:
    """A fresh virtual environment that finds what is installed here, but not this project; its Python."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    Path(site, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def install(python: Path, *what: str | Path, cwd: Path) -> None:
    """Install into an environment, with the pip of this one."""
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", *what, cwd=cwd)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a source archive, and the wheel that was built from that archive alone."""
    folder = tmp_path_factory.mktemp("built")
    python = folder / "venv" / "bin" / "python"
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    install(python, "hatchling>=1.26", cwd=folder)
    run(python, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    run(python, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=folder / archive.name[: -len(".tar.gz")])
    return folder


def test_the_wheel_holds_code_templates_and_data(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert set(SOURCES) <= names
    assert {f"context_compiler/_templates/{name}" for name in TEMPLATES} <= names
    assert {f"context_compiler/{name}" for name in DATA} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests", "docs", "benchmarks", "templates"))]


def test_the_source_archive_contains_everything_needed_to_build_a_wheel(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert set(SOURCES) | {f"templates/{name}" for name in TEMPLATES} <= names
    assert {f"context_compiler/{name}" for name in DATA} <= names
    assert {"README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "docs/path.svg"} <= names


def test_the_wheel_works_where_it_is_installed(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    python = environment(tmp_path / "venv")
    install(python, "--no-deps", wheel, cwd=tmp_path)
    assert "6 of 6" in run(tmp_path / "venv" / "bin" / "context-compiler", "demo", cwd=tmp_path)
    location = Path(run(python, "-c", LOOK_UP, cwd=tmp_path).strip())
    assert location.is_relative_to(tmp_path) and location.parent.name == "_templates"
