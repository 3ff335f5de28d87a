"""What a view is written with, as somebody says it on the command line: a template's name, or any markdown file."""

from __future__ import annotations

from pathlib import Path

from context_compiler.errors import TemplateError
from context_compiler.fidelity import Fidelity
from context_compiler.template import Template
from context_compiler.template.lookup import TemplateLibrary


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


def chosen_fidelity(text: str | None) -> Fidelity | None:
    """The fidelity that is named; None is the template's.

    Raises:
        FidelityError: it is none of the six.
    """
    return None if text is None else Fidelity.parse(text, where="--fidelity")
