"""What a view is written with, as somebody says it on the command line: a template's name, or any markdown file."""

from __future__ import annotations

from pathlib import Path

from context_compiler.cli.screen import warn
from context_compiler.errors import TemplateError
from context_compiler.fidelity import Fidelity
from context_compiler.record.values import Compile
from context_compiler.template import Template
from context_compiler.template.library import TemplateLibrary


def from_file(path: str) -> Template:
    """A template from a file that need not lie in a folder of templates.

    Raises:
        TemplateError: it cannot be read, or is wrong.
    """
    name = Path(path).stem
    try:
        return Template.parse(Path(path).read_bytes().decode(), name=name, path=path)
    except UnicodeDecodeError:
        raise TemplateError("the template is not UTF-8 text; save it as UTF-8", name=name, path=path) from None
    except OSError as error:
        raise TemplateError(f"cannot be read: {error.strerror}", name=name, path=path) from None


def chosen_template(name: str | None, *, model: str, vault: Path | None, system: Path) -> Template:
    """The template that is meant: by name, by path, or for None the one that suits a model or none.

    Raises:
        TemplateError: there is none of that name, or it is wrong.
    """
    wanted = name or ("extractive" if model == "none" else "chat_compiler")
    try:
        return TemplateLibrary(vault=vault, system=system).find(wanted)
    except TemplateError as error:
        if error.path is None and Path(wanted).is_file():
            return from_file(wanted)
        raise


def recorded_template(made: Compile | None, *, model: str, vault: Path | None, system: Path) -> Template:
    """The template that a request was written with, as it is now; the default where nothing was compiled for it.

    Raises:
        TemplateError: it is not there any more, or was never a file.
    """
    if made is None:
        return chosen_template(None, model=model, vault=vault, system=system)
    name, path = made.template_name, made.template_path
    try:
        found = TemplateLibrary(vault=vault, system=system).find(name)
    except TemplateError:
        found = None
    if (found is None or found.sha256 != made.template_hash) and path and Path(path).is_file():
        found = from_file(path)
    if found is None:
        raise TemplateError("the view was written with it, and it cannot be found; name one with --template", name=name)
    if found.sha256 != made.template_hash:
        warn(f"template {name} has changed since that view was written; it is used as it is now")
    return found


def recorded_fidelity(made: Compile | None, template: Template) -> Fidelity | None:
    """The fidelity that a request was written with; None where that is what its template says."""
    if made is None or made.fidelity == template.fidelity:
        return None
    return Fidelity.parse(made.fidelity, where="the record")


def chosen_fidelity(text: str | None) -> Fidelity | None:
    """The fidelity that is named; None is the template's.

    Raises:
        FidelityError: it is none of the six.
    """
    return None if text is None else Fidelity.parse(text, where="--fidelity")
