"""Templates: markdown files that define the content, the amount and the cut order of the past in a view.

Any markdown file is a template; front matter is optional. The body is rendered with Jinja in a sandbox, from values
that are plain data and are never rendered themselves.

A name is looked up in the vault, then in the system folder, then among the shipped templates. A file is read again when
its size or times change, so that an edit takes effect with the next request. Links are followed if they stay inside the
folder. Only regular files are read; pipes and devices are never opened.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal, Self, TypeAlias

from context_compiler.cache import Memo
from context_compiler.errors import SettingsError, TemplateError
from context_compiler.fidelity import Fidelity
from context_compiler.ids import text_hash
from context_compiler.paths import OWNER, decode_text, make_private, unify_lines, vault_of
from context_compiler.settings import Amount, Count
from context_compiler.template.front_matter import (
    Compiler,
    FrontMatterError,
    SectionRule,
    choice_errors,
    contract,
    read_choices,
    split_front_matter,
)
from context_compiler.template.sandbox import RenderError, body_errors, compile_body, run_program

log = logging.getLogger(__name__)

Origin = Literal["vault", "system", "builtin", "inline"]

LARGEST = 256 * 1024
"""Maximum bytes of a template file."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Template:
    """One parsed and fully checked template."""

    name: str
    source: Origin
    path: str | None
    sha256: str
    """Hash of the file's bytes, in hex."""
    body: str
    description: str = ""
    compiler: Compiler = "agent"
    """Use of the body: `agent`: as the prompt for a summary; `none`: as the summary; `extractive`: above quotes."""
    fidelity: Fidelity | None = None
    recent_turns: Count | None = None
    recent_tool_results: Count | None = None
    token_threshold: Amount | None = None
    """Compile threshold in tokens or as a share of the budget; 0 is the budget, None depends on the kind of session."""
    sections: Mapping[str, SectionRule] = field(default_factory=dict[str, SectionRule], hash=False)
    contract: str | None = None
    """Text of the fenced yaml and json blocks in the body; None without any. Nothing enforces them."""
    warnings: tuple[str, ...] = ()
    offset: int = 0
    """Number of lines above the body in the file."""

    def __repr__(self) -> str:
        """Show name, origin and compiler, because the body is long."""
        return f"Template({self.name!r}, {self.source}, compiler={self.compiler!r}, {len(self.body):,} characters)"

    @classmethod
    def parse(cls, text: str, *, name: str, source: Origin = "inline", path: str | None = None) -> Self:
        """Parse a template from the text of its file.

        Raises:
            TemplateError: The text is not a valid template; the message says where and why.
        """
        try:
            parts = split_front_matter(_normalize(text))
            choices, warnings = read_choices(parts.entries)
        except FrontMatterError as error:
            raise TemplateError(str(error), name=name, path=path, line=error.line) from None
        for warning in warnings:
            _warn_once(f"{path or name}: {warning}")
        template = cls(
            name=name,
            source=source,
            path=path,
            sha256=text_hash(text),
            body=parts.body,
            contract=contract(parts.body),
            warnings=warnings,
            offset=parts.offset,
            **choices,
        )
        template.wants()
        return template

    def wants(self) -> frozenset[str]:
        """Names of the values that the body uses.

        Raises:
            TemplateError: The body is not a valid Jinja template.
        """
        with self._located_errors():
            return compile_body(self.body).names

    def lines(self) -> Mapping[str, int]:
        """The first line of each name in the body, by the lines of the file.

        Raises:
            TemplateError: The body is not a valid Jinja template.
        """
        with self._located_errors():
            return {name: line + self.offset for name, line in compile_body(self.body).lines.items()}

    def render(self, values: Mapping[str, object]) -> str:
        """Render the body with values: strings, numbers, lists and mappings.

        A value that is missing or None renders as nothing. A rendering may take 2 s of CPU time, and may be 1,000,000
        characters longer than the texts among the values.

        Raises:
            TemplateError: A value causes an error in the body, or the rendering exceeds a limit.
        """
        with self._located_errors():
            return run_program(compile_body(self.body), values).strip("\n")

    @contextmanager
    def _located_errors(self) -> Generator[None]:
        """Convert errors of the body to ones with the line in the file."""
        try:
            yield
        except RenderError as error:
            line = error.line + self.offset if error.line else None
            raise TemplateError(str(error), name=self.name, path=self.path, line=line) from None


def template_errors(text: str, *, name: str, path: str | None = None) -> tuple[TemplateError, ...]:
    """Find all errors in the text of a template's file, in the order of their lines; `Template.parse` raises one."""
    try:
        parts = split_front_matter(_normalize(text))
    except FrontMatterError as error:
        return (TemplateError(str(error), name=name, path=path, line=error.line),)
    errors = [(str(error), error.line) for error in choice_errors(parts.entries)]
    errors += [(str(error), error.line and error.line + parts.offset) for error in body_errors(parts.body)]
    errors.sort(key=lambda entry: entry[1] or 0)
    return tuple(TemplateError(message, name=name, path=path, line=line) for message, line in errors)


def _normalize(text: str) -> str:
    """Normalize line ends and remove the byte order mark; reject text that is empty, binary or too large."""
    if len(text) > LARGEST:
        raise FrontMatterError(f"the template is larger than {LARGEST // 1024} kB", 1)
    if "\0" in text:
        raise FrontMatterError(
            "the template contains a NUL character; is it a text file?", text.count("\n", 0, text.index("\0")) + 1
        )
    if not text.strip("\ufeff \t\r\n"):
        raise FrontMatterError("the template is empty", 1)
    return unify_lines(text.removeprefix("\ufeff"))


@lru_cache(maxsize=1024)
def _warn_once(warning: str) -> None:
    log.warning(warning)


@cache
def shipped_templates() -> Path:
    """Folder of the shipped templates: inside the package if it is installed, beside it in a checkout."""
    package = Path(__file__).parent.parent
    inside = package / "_templates"
    return inside if inside.is_dir() else package.parent / "templates"


@cache
def shipped_template(name: str) -> Template:
    """Load a template that comes with the package, by its path without the suffix."""
    path = shipped_templates() / f"{name}.md"
    return Template.parse(path.read_text(encoding="utf-8"), name=name, source="builtin", path=str(path))


@cache
def prompt_text(name: str) -> str:
    """Text of a shipped prompt in `templates/parts/`, without surrounding blank lines."""
    return (shipped_templates() / "parts" / f"{name}.md").read_text(encoding="utf-8").strip()


DEFAULT = "chat_compiler"
"""Template that `TemplateLibrary.seed` copies to the system folder if it is missing there."""


SETTLED_NS = 2_000_000_000
"""Minimum age of a file's times before they are trusted to reveal an edit: file systems have coarse clocks."""

Stamp: TypeAlias = tuple[int, int, int, int]

_LOADED: Memo[tuple[Origin, str, str], tuple[Stamp | None, Template]] = Memo(1_000)
"""Parsed templates of all libraries, by origin, folder and path."""


def _stamp(file: Path) -> Stamp | None:
    """Inode, size and times of a file; None if it changed so recently that another edit might not alter them."""
    status = os.stat(file)
    changed = max(status.st_mtime_ns, status.st_ctime_ns)
    recent = time.time_ns() - changed < SETTLED_NS
    return None if recent else (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateInfo:
    """Entry of a list of templates."""

    name: str
    source: Origin
    path: str
    description: str
    shadowed: bool
    """True if an earlier template of the same name hides it."""


Listing: TypeAlias = list[TemplateInfo]


class TemplateLibrary:
    """Templates of one vault, of one system folder, and of this package.

    Args:
        vault: Path of the user's vault, whose templates are in `AssistantMD/ContextTemplates/`; None for no vault.
            `{owner}` in it is replaced by the name of the owner's folder.
        system: Path of the application's folder, whose templates are in `ContextTemplates/`; None for no such folder.
        owner: The owner, if each owner has a vault.

    Raises:
        SettingsError: Each owner has a vault but no owner is given, or the vaults are inside the system templates.
    """

    def __init__(
        self, *, vault: str | Path | None = None, system: str | Path | None = "system", owner: str | None = None
    ) -> None:
        own = vault_of(vault, owner) if vault is not None and OWNER in str(vault) else None
        vault = own or vault
        folders: dict[Origin, Path | None] = {
            "vault": None if vault is None else Path(vault, "AssistantMD", "ContextTemplates"),
            "system": None if system is None else Path(system, "ContextTemplates"),
            "builtin": shipped_templates(),
        }
        self._system = folders["system"]
        if own and self._system and own.absolute().is_relative_to(self._system.absolute()):
            raise SettingsError(f"vault={str(vault)!r}: {self._system} is everybody's; give another folder for owners")
        self._roots = tuple(
            Root(source=source, folder=folder, within=own if source == "vault" else None)
            for source, folder in folders.items()
            if folder
        )

    def __repr__(self) -> str:
        """Show the folders, in search order."""
        return f"TemplateLibrary({', '.join(str(root.folder) for root in self._roots)})"

    def find(self, name: str | Template) -> Template:
        """Return the template with a name.

        Args:
            name: A name such as `chat_compiler`, `team/notes` or `notes.md`, or the path of a file in one of the
                folders. A `Template` is returned unchanged.

        Raises:
            TemplateError: There is no such template, it cannot be read or parsed, or it lies outside the folders.
        """
        return name if isinstance(name, Template) else self._load(*self._locate(name))

    def check(self, name: str) -> None:
        """Check that there is a template file with a name, without reading it.

        Raises:
            TemplateError: There is no such file, or the name cannot be that of a template.
        """
        self._locate(name)

    def _locate(self, name: str) -> tuple[Root, Path]:
        plain = name.strip(" ")
        for pattern, reason in UNFIT_NAMES:
            if pattern.match(plain):
                message = f"this cannot be the name of a template: {reason}"
                raise TemplateError(message, name=repr(name[:200]))
        for root in self._roots:
            for file in root.candidates(plain):
                if path_exists(file):
                    return root, file
        raise self._unknown_name(plain)

    def list(self) -> Listing:
        """List every readable template, the vault's first; others are left out, with a warning in the log."""
        listing: Listing = []
        for root in self._roots:
            before = {info.name for info in listing}
            for file in root.files():
                try:
                    template = self._load(root, file)
                except TemplateError as error:
                    log.warning("left out of the list of templates: %s", error)
                else:
                    listing.append(_info(template, file, before))
        return listing

    def defects(self) -> tuple[TemplateError, ...]:
        """Errors in the files that `list` leaves out."""
        errors: list[TemplateError] = []
        for root in self._roots:
            for file in root.files():
                try:
                    self._load(root, file)
                except TemplateError as error:
                    errors.append(error)
        return tuple(errors)

    @property
    def roots(self) -> tuple[tuple[Origin, Path], ...]:
        """Folders with the source of their templates, in search order."""
        return tuple((root.source, root.folder) for root in self._roots)

    def seed(self) -> Path | None:
        """Copy the default template to the system folder if it is missing there; return its path if it was copied.

        Raises:
            TemplateError: The file could not be written.
        """
        if self._system is None:
            return None
        file = self._system / f"{DEFAULT}.md"
        try:
            make_private(file.parent.parent)
            file.parent.mkdir(exist_ok=True)
            return file if write_new(file, (shipped_templates() / file.name).read_bytes()) else None
        except OSError as error:
            raise TemplateError(f"could not be written: {error.strerror}", name=DEFAULT, path=str(file)) from error

    def _load(self, root: Root, file: Path) -> Template:
        """Load the template in a file; read the file again only if its size or times have changed."""
        key = root.source, os.path.abspath(root.folder), os.path.abspath(file)
        try:
            cached, stamp = _LOADED.get(key), _stamp(file)
            if cached is not None and cached[0] is not None and cached[0] == stamp:
                return cached[1]
            text = decode_text(root.read(file))
            template = cached[1] if cached is not None else None
            if template is None or template.sha256 != text_hash(text):
                template = Template.parse(text, name=root.name(file), source=root.source, path=key[2])
            _LOADED.keep(key, (stamp, template))
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise _file_error(root, file, "this is not UTF-8 text", line) from None
        except UnusableTemplate as error:
            raise _file_error(root, file, str(error)) from None
        except OSError as error:
            raise _file_error(root, file, f"cannot be read: {error.strerror}") from error
        return template

    def _unknown_name(self, name: str) -> TemplateError:
        names = {root.name(file) for root in self._roots for file in root.files()}
        near = get_close_matches(name.removesuffix(".md"), names, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(sorted(names)[:10])}."
        looked = ", ".join(str(root.folder) for root in self._roots)
        return TemplateError(f"there is no template of that name; {hint} Looked in {looked}", name=name)


def _file_error(root: Root, file: Path, message: str, line: int | None = None) -> TemplateError:
    return TemplateError(message, name=root.name(file), path=os.path.abspath(file), line=line)


def _info(template: Template, file: Path, before: set[str]) -> TemplateInfo:
    return TemplateInfo(
        name=template.name,
        source=template.source,
        path=template.path or str(file),
        description=template.description,
        shadowed=template.name in before,
    )


def list_templates(vault: str | Path | None, system: str | Path | None) -> list[TemplateInfo]:
    """List every readable template: first the vault's, then the system's, then those of this package."""
    return TemplateLibrary(vault=vault, system=system).list()


MAX_FILES = 1_000
"""Maximum templates of one folder that are listed."""

UNFIT_NAMES = (
    (re.compile(r"\Z"), "it is empty"),
    (re.compile(r"(?s:.*)[\x00-\x1f\x7f]"), "it contains control characters"),
    (re.compile(r".*\\"), "it contains a backslash"),
    (re.compile(r"~"), "it begins with ~"),
    (re.compile(r"[A-Za-z]:"), "it begins with a drive letter"),
    (re.compile(r"(.*/)?\.\.?(/|\Z)"), "it contains . or .. as a folder"),
    (re.compile(r".*(.//|/\Z)"), "a folder or file in it has no name"),
)
"""Patterns of names that no template can have, with the reason."""


class UnusableTemplate(Exception):
    """The file cannot be that of a template; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """A folder of templates, which need not exist."""

    source: Origin
    folder: Path
    within: Path | None = None
    """Vault of the owner, if each owner has one; neither the folder nor a link in it may lead out of that vault."""

    def leads_out(self) -> bool:
        """True if the folder is a link that leads out of the owner's vault."""
        folder = Path(os.path.realpath(self.folder))
        return self.within is not None and not folder.is_relative_to(os.path.realpath(self.within))

    def files(self) -> Iterator[Path]:
        """Template files, sorted by name, except hidden files; subfolders of this package's own folder are skipped."""
        paths: list[Path] = []
        for folder, inner, files in os.walk(self.folder) if not self.leads_out() else ():
            inner[:] = [] if self.source == "builtin" else [name for name in inner if not name.startswith(".")]
            paths += [Path(folder, file) for file in files if file.endswith(".md") and not file.startswith(".")]
            if len(paths) >= MAX_FILES:
                break
        yield from sorted(paths, key=self.name)[:MAX_FILES]

    def name(self, file: Path) -> str:
        """Name of the template in a file: its relative path with `/`, without `.md`."""
        return Path(os.path.relpath(file, self.folder)).with_suffix("").as_posix()

    def candidates(self, name: str) -> Iterator[Path]:
        """Files that a name may refer to; a name that is a path refers to that file if it lies in this folder."""
        file = name if name.endswith(".md") else f"{name}.md"
        if not os.path.isabs(file):
            yield self.folder / file
        if "/" in file:
            path = Path(os.path.abspath(file))
            if path.is_relative_to(os.path.abspath(self.folder)):
                yield path

    def read(self, file: Path) -> bytes:
        """Read a file in this folder.

        Raises:
            UnusableTemplate: The file lies outside the folder, is not a regular file, or is too large.
            OSError: The file cannot be read.
        """
        real = os.path.realpath(file, strict=True)
        if self.leads_out() or not Path(real).is_relative_to(os.path.realpath(self.folder)):
            raise UnusableTemplate(f"it leads out of {self.within or self.folder}")
        _check_regular(os.stat(real))
        with open(os.open(real, _SAFE_FLAGS), "rb") as opened:
            _check_regular(os.fstat(opened.fileno()))
            return opened.read(LARGEST + 1)


_SAFE_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""Flags for opening a file: follow no link that replaced it in the meantime, and do not block on a pipe."""


def _check_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise UnusableTemplate("it is not a file")
    if status.st_size > LARGEST:
        raise UnusableTemplate(f"it is larger than {LARGEST // 1024} kB")


def path_exists(file: Path) -> bool:
    """True if the path exists, even as a dangling link.

    Raises:
        TemplateError: The path cannot be checked, because a folder in it may not be searched.
    """
    try:
        file.lstat()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            return False
        raise TemplateError(f"cannot be read: {error.strerror}", name=file.stem, path=str(file)) from error
    except ValueError:  # a lone surrogate, which no file name can contain
        return False
    return True


def write_new(file: Path, data: bytes) -> bool:
    """Write a file unless the path exists; return True if it was written. An unfinished file is removed."""
    try:
        opened = file.open("xb")
    except FileExistsError:
        return False
    try:
        with opened:
            opened.write(data)
    except OSError:
        file.unlink(missing_ok=True)
        raise
    return True
