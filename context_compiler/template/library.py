"""Templates are found by name: the vault's first, then the system's, then the ones that come with the package.

A file is read again when its size or its times have changed, so an edit counts from the next request on.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias

from context_compiler.cache import Memo
from context_compiler.errors import TemplateError
from context_compiler.paths import made
from context_compiler.template import Origin, Template
from context_compiler.template.prompts import shipped_templates
from context_compiler.template.roots import Root, Unfit, fit_name, is_there, written

log = logging.getLogger(__name__)

DEFAULT = "chat_compiler"
"""The template that is put into a system folder which lacks it."""


SETTLED_NS = 2_000_000_000
"""Age from which a file's times tell one edit from the next; clocks of file systems are coarse."""

Stamp: TypeAlias = tuple[int, int, int, int]

_LOADED: Memo[tuple[Origin, str, str], tuple[Stamp | None, Template]] = Memo(1_000)
"""The templates of files as they were read last, for all libraries, by origin, folder and path."""


def _stamp(file: Path) -> Stamp | None:
    """Inode, size and times of a file; None where it was changed so lately that they say nothing yet."""
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
    """Whether a template of the same name comes before it, so that its name does not find it."""


Listing: TypeAlias = list[TemplateInfo]


class TemplateLibrary:
    """The templates of one vault and one system folder, and the ones that come with the package.

    Args:
        vault: The user's vault; its templates are in `AssistantMD/ContextTemplates/`. None: no vault.
        system: The application's folder; its templates are in `ContextTemplates/`. None: no such folder.
    """

    def __init__(self, *, vault: str | Path | None = None, system: str | Path | None = "system") -> None:
        folders: dict[Origin, Path | None] = {
            "vault": None if vault is None else Path(vault, "AssistantMD", "ContextTemplates"),
            "system": None if system is None else Path(system, "ContextTemplates"),
            "builtin": shipped_templates(),
        }
        self._system = folders["system"]
        self._roots = tuple(Root(source=source, folder=folder) for source, folder in folders.items() if folder)

    def find(self, name: str | Template) -> Template:
        """The template of that name; one that is a template already is given back as it is.

        Args:
            name: Such as `chat_compiler`, `team/notes` or `notes.md`; or the path of a file in one of the folders.

        Raises:
            TemplateError: there is none, it cannot be read, it is wrong, or the name leads elsewhere.
        """
        if isinstance(name, Template):
            return name
        try:
            name = fit_name(name)
        except Unfit as error:
            raise TemplateError(str(error), name=repr(name[:200])) from None
        for root in self._roots:
            for file in root.where(name):
                if is_there(file):
                    return self._load(root, file)
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

    def seed(self) -> Path | None:
        """Put the default template into the system folder if that file is not there; its path if it was put.

        Raises:
            TemplateError: it could not be written.
        """
        if self._system is None:
            return None
        file = self._system / f"{DEFAULT}.md"
        try:
            made(file.parent.parent)
            file.parent.mkdir(exist_ok=True)
            return file if written(file, (shipped_templates() / file.name).read_bytes()) else None
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
        except Unfit as error:
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
