"""Templates: markdown files that define what a view tells of the past, how much, and its cut order.

Plain markdown is a template. Front matter may say more. The body is rendered with Jinja, in a sandbox, from
values that are data and are never rendered again.

A name is looked up in the vault first, then in the system folder, then among the shipped ones. A file is read again
when its size or times change, so that an edit counts from the next request on. Links are followed as long as they stay
inside the folder; any name leads to a plain file in the folder or to an error, and no pipe is waited for and no device
opened.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Literal, Self, TypeAlias

from context_compiler.cache import Memo
from context_compiler.errors import SettingsError, TemplateError
from context_compiler.fidelity import Fidelity
from context_compiler.ids import text_hash
from context_compiler.paths import OWNER, make_private, vault_of
from context_compiler.settings import Amount, Count
from context_compiler.template.front_matter import (
    Compiler,
    FrontMatterError,
    SectionRule,
    contract,
    read_choices,
    split_front_matter,
)
from context_compiler.template.sandbox import RenderError, compile_body, run_program

log = logging.getLogger(__name__)

Origin = Literal["vault", "system", "builtin", "inline"]

LARGEST = 256 * 1024
"""Bytes of a template file."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Template:
    """One parsed and fully checked template."""

    name: str
    source: Origin
    path: str | None
    sha256: str
    """Of the file's bytes, in hex."""
    body: str
    description: str = ""
    compiler: Compiler = "agent"
    """`agent`: the body asks a model for the summary; `none`: it is the summary; `extractive`: it heads quotes."""
    fidelity: Fidelity | None = None
    recent_turns: Count | None = None
    recent_tool_results: Count | None = None
    token_threshold: Amount | None = None
    """Threshold, as `trigger`: tokens, or a share of the budget; 0: the budget; None: by kind of session."""
    sections: Mapping[str, SectionRule] = field(default_factory=dict[str, SectionRule], hash=False)
    contract: str | None = None
    """The fenced yaml and json blocks of the body, as text. Nothing enforces them."""
    warnings: tuple[str, ...] = ()
    offset: int = 0
    """Lines of the file above the body."""

    def __repr__(self) -> str:
        """Name, origin and compiler; the body is long."""
        return f"Template({self.name!r}, {self.source}, compiler={self.compiler!r}, {len(self.body):,} characters)"

    @classmethod
    def parse(cls, text: str, *, name: str, source: Origin = "inline", path: str | None = None) -> Self:
        """Read a template from the text of its file.

        Raises:
            TemplateError: it is not one; the message says where and why.
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
        """The names that the body asks for.

        Raises:
            TemplateError: the body is not one that can be rendered.
        """
        try:
            return compile_body(self.body).names
        except RenderError as error:
            raise self._wrong(error) from None

    def render(self, values: Mapping[str, object]) -> str:
        """Fill in the body. Values are texts, numbers, lists and mappings; one that is missing or None is empty.

        A rendering takes 2 s at most, and has at most 1,000,000 characters more than the texts it is given.

        Raises:
            TemplateError: the body trips over a value, or asks for more than that.
        """
        try:
            return run_program(compile_body(self.body), values).strip("\n")
        except RenderError as error:
            raise self._wrong(error) from None

    def _wrong(self, error: RenderError) -> TemplateError:
        line = error.line + self.offset if error.line else None
        return TemplateError(str(error), name=self.name, path=self.path, line=line)


def _normalize(text: str) -> str:
    """Normalize line ends and strip the byte order mark; refuse text that is empty, binary or too large."""
    if len(text) > LARGEST:
        raise FrontMatterError(f"the template is larger than {LARGEST // 1024} kB", 1)
    if "\0" in text:
        raise FrontMatterError(
            "the template holds a NUL character; is it a text file?", text.count("\n", 0, text.index("\0")) + 1
        )
    if not text.strip("\ufeff \t\r\n"):
        raise FrontMatterError("the template is empty", 1)
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


@lru_cache(maxsize=1024)
def _warn_once(warning: str) -> None:
    log.warning(warning)


@cache
def shipped_templates() -> Path:
    """The folder of the shipped templates: inside the package when installed, beside it in a checkout."""
    package = Path(__file__).parent.parent
    inside = package / "_templates"
    return inside if inside.is_dir() else package.parent / "templates"


@cache
def prompt_text(name: str) -> str:
    """A shipped prompt of `templates/parts/` by name, without surrounding blank lines."""
    return (shipped_templates() / "parts" / f"{name}.md").read_text(encoding="utf-8").strip()


DEFAULT = "chat_compiler"
"""The template that is put into a system folder which lacks it."""


SETTLED_NS = 2_000_000_000
"""Age from which a file's times tell one edit from the next; clocks of file systems are coarse."""

Stamp: TypeAlias = tuple[int, int, int, int]

_LOADED: Memo[tuple[Origin, str, str], tuple[Stamp | None, Template]] = Memo(1_000)
"""Cache of parsed templates for all libraries, by origin, folder and path."""


def _stamp(file: Path) -> Stamp | None:
    """Inode, size and times of a file; None if it changed too recently for them to be reliable."""
    found = os.stat(file)
    changed = max(found.st_mtime_ns, found.st_ctime_ns)
    recent = time.time_ns() - changed < SETTLED_NS
    return None if recent else (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateInfo:
    """One line of a list of templates."""

    name: str
    source: Origin
    path: str
    description: str
    shadowed: bool
    """True if an earlier template of the same name hides it."""


Listing: TypeAlias = list[TemplateInfo]


class TemplateLibrary:
    """The templates of one vault and one system folder, and the ones that come with the package.

    Args:
        vault: The user's vault; its templates are in `AssistantMD/ContextTemplates/`. None: no vault. `{owner}` in it
            stands for the folder of the owner.
        system: The application's folder; its templates are in `ContextTemplates/`. None: no such folder.
        owner: The owner, where each has a vault.

    Raises:
        SettingsError: each owner has a vault but no owner is named, or the vaults are inside the system templates.
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
        limits: dict[Origin, Path | None] = {"vault": own}
        self._roots = tuple(
            Root(source=source, folder=folder, within=limits.get(source))
            for source, folder in folders.items()
            if folder
        )

    def __repr__(self) -> str:
        """Its folders, in the order in which they are looked into."""
        return f"TemplateLibrary({', '.join(str(root.folder) for root in self._roots)})"

    def find(self, name: str | Template) -> Template:
        """The template of that name; one that is a template already is given back as it is.

        Args:
            name: Such as `chat_compiler`, `team/notes` or `notes.md`; or the path of a file in one of the folders.

        Raises:
            TemplateError: there is none, it cannot be read, it is wrong, or the name leads elsewhere.
        """
        return name if isinstance(name, Template) else self._load(*self._locate(name))

    def check(self, name: str) -> None:
        """Check that there is a file of that name, without reading it.

        Raises:
            TemplateError: there is none, or the name leads elsewhere.
        """
        self._locate(name)

    def _locate(self, name: str) -> tuple[Root, Path]:
        try:
            name = check_name(name)
        except UnusableTemplate as error:
            raise TemplateError(str(error), name=repr(name[:200])) from None
        for root in self._roots:
            for file in root.where(name):
                if path_exists(file):
                    return root, file
        raise self._unknown(name)

    def list(self) -> Listing:
        """Every readable template, the vault's first; one that is not is left out, with a warning in the log."""
        found: Listing = []
        for root in self._roots:
            before = {info.name for info in found}
            for file in root.files():
                try:
                    template = self._load(root, file)
                except TemplateError as error:
                    log.warning("left out of the list of templates: %s", error)
                else:
                    found.append(_info(template, file, before))
        return found

    def defects(self) -> tuple[TemplateError, ...]:
        """Errors of the files that `list` leaves out."""
        found: list[TemplateError] = []
        for root in self._roots:
            for file in root.files():
                try:
                    self._load(root, file)
                except TemplateError as error:
                    found.append(error)
        return tuple(found)

    @property
    def roots(self) -> tuple[tuple[Origin, Path], ...]:
        """Folders in the order in which they are looked in, with the source of their templates."""
        return tuple((root.source, root.folder) for root in self._roots)

    def seed(self) -> Path | None:
        """Put the default template into the system folder if that file is not there; its path if it was put.

        Raises:
            TemplateError: it could not be written.
        """
        if self._system is None:
            return None
        file = self._system / f"{DEFAULT}.md"
        try:
            make_private(file.parent.parent)
            file.parent.mkdir(exist_ok=True)
            return file if write_new(file, (shipped_templates() / file.name).read_bytes()) else None
        except OSError as error:
            raise TemplateError(f"could not be put there: {error.strerror}", name=DEFAULT, path=str(file)) from error

    def _load(self, root: Root, file: Path) -> Template:
        """The template in a file, read again only where the file has changed, as far as its size and times tell."""
        key = root.source, os.path.abspath(root.folder), os.path.abspath(file)
        try:
            known, stamp = _LOADED.get(key), _stamp(file)
            if known is not None and known[0] is not None and known[0] == stamp:
                return known[1]
            data = root.read(file)
            template = known[1] if known is not None else None
            if template is None or template.sha256 != sha256(data).hexdigest():
                template = Template.parse(data.decode(), name=root.name(file), source=root.source, path=key[2])
            _LOADED.keep(key, (stamp, template))
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise _wrong(root, file, "this is not UTF-8 text", line) from None
        except UnusableTemplate as error:
            raise _wrong(root, file, str(error)) from None
        except OSError as error:
            raise _wrong(root, file, f"cannot be read: {error.strerror}") from error
        return template

    def _unknown(self, name: str) -> TemplateError:
        names = {root.name(file) for root in self._roots for file in root.files()}
        near = get_close_matches(name.removesuffix(".md"), names, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(sorted(names)[:10])}."
        looked = ", ".join(str(root.folder) for root in self._roots)
        return TemplateError(f"there is no template of that name; {hint} Looked in {looked}", name=name)


def _wrong(root: Root, file: Path, message: str, line: int | None = None) -> TemplateError:
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
    """Every readable template: the vault's, then the system's, then the ones that come with the package."""
    return TemplateLibrary(vault=vault, system=system).list()


MOST_FILES = 1_000
"""Templates of one folder that are listed."""

UNFIT_NAMES = (
    (re.compile(r"\Z"), "it is empty"),
    (re.compile(r"(?s:.*)[\x00-\x1f\x7f]"), "it holds control characters"),
    (re.compile(r".*\\"), "it holds a backslash"),
    (re.compile(r"~"), "it begins with ~"),
    (re.compile(r"[A-Za-z]:"), "it begins with a drive"),
    (re.compile(r"(.*/)?\.\.?(/|\Z)"), "it holds . or .. as a folder"),
    (re.compile(r".*(.//|/\Z)"), "a folder or file in it has no name"),
)
"""Names that no template has, and why."""


class UnusableTemplate(Exception):
    """A name or a file that no template can have."""


def check_name(name: str) -> str:
    """Strip a name and check that a template can have it; UnusableTemplate gives the reason if not."""
    name = name.strip(" ")
    for pattern, reason in UNFIT_NAMES:
        if pattern.match(name):
            raise UnusableTemplate(f"this cannot be the name of a template: {reason}")
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """One folder of templates, which need not exist."""

    source: Origin
    folder: Path
    within: Path | None = None
    """The vault of an owner; neither the folder nor a link in it may lead out of it."""

    def leads_out(self) -> bool:
        """True if a link makes it the folder of somebody else."""
        folder = Path(os.path.realpath(self.folder))
        return self.within is not None and not folder.is_relative_to(os.path.realpath(self.within))

    def files(self) -> Iterator[Path]:
        """Its templates, sorted; hidden ones are left out, and the folders of the package that hold other prose."""
        found: list[Path] = []
        for folder, inner, files in os.walk(self.folder) if not self.leads_out() else ():
            inner[:] = [] if self.source == "builtin" else [one for one in inner if not one.startswith(".")]
            found += [Path(folder, file) for file in files if file.endswith(".md") and not file.startswith(".")]
            if len(found) >= MOST_FILES:
                break
        yield from sorted(found, key=self.name)[:MOST_FILES]

    def name(self, file: Path) -> str:
        """Template name of a file: its relative path with `/`, without `.md`."""
        return Path(os.path.relpath(file, self.folder)).with_suffix("").as_posix()

    def where(self, name: str) -> Iterator[Path]:
        """Candidate files for a name; a path counts if it lies in this folder."""
        file = name if name.endswith(".md") else f"{name}.md"
        if not os.path.isabs(file):
            yield self.folder / file
        if "/" in file:
            path = Path(os.path.abspath(file))
            if path.is_relative_to(os.path.abspath(self.folder)):
                yield path

    def read(self, file: Path) -> bytes:
        """Content of a file in this folder.

        Raises:
            UnusableTemplate: it lies elsewhere, is not a plain file, or is far too large.
            OSError: it cannot be read.
        """
        real = os.path.realpath(file, strict=True)
        if self.leads_out() or not Path(real).is_relative_to(os.path.realpath(self.folder)):
            raise UnusableTemplate(f"it leads out of {self.within or self.folder}")
        _plain(os.stat(real))
        with open(os.open(real, _CAREFULLY), "rb") as opened:
            _plain(os.fstat(opened.fileno()))
            return opened.read(LARGEST + 1)


_CAREFULLY = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""Not through a link that was put there a moment ago, and without waiting for the other end of a pipe."""


def _plain(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise UnusableTemplate("it is not a file")
    if found.st_size > LARGEST:
        raise UnusableTemplate(f"it is larger than {LARGEST // 1024} kB")


def path_exists(file: Path) -> bool:
    """True if the path exists, even as a dangling link.

    Raises:
        TemplateError: nobody can tell, because a folder may not be looked into.
    """
    try:
        file.lstat()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            return False
        raise TemplateError(f"cannot be read: {error.strerror}", name=file.stem, path=str(file)) from error
    except ValueError:  # half a surrogate pair, which no file system has
        return False
    return True


def write_new(file: Path, data: bytes) -> bool:
    """Write a file unless the path exists; an unfinished file is removed."""
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
