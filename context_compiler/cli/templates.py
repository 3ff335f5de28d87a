"""`templates`: list, show and check templates. Also finds templates by the names and paths that users type."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from context_compiler.cli.deferred import load_placeholders
from context_compiler.cli.options import SYSTEM, Json, System, Vault, VaultOwner, example, group
from context_compiler.cli.screen import Column, Screen, print_list, print_note
from context_compiler.cli.text import json_text, plural, safe
from context_compiler.errors import TemplateError
from context_compiler.fidelity import Fidelity
from context_compiler.paths import read_text
from context_compiler.record.values import Compile, Record, template_name
from context_compiler.template import Template, TemplateLibrary, template_errors

app = group("List, show and check templates.", shown="templates list")

LIST = (
    Column("name", style="bold"),
    Column("source", style="cyan"),
    Column("description", elastic=True),
    Column("path", style="dim", spare=1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateCheck:
    """Result of checking one template."""

    name: str
    path: str
    source: str = ""
    sha256: str = ""
    wants: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    error: str | None = None
    """The first error."""
    errors: tuple[str, ...] = ()


@app.command("list", epilog=example("templates list --vault ~/notes"))
def list_(vault: Vault = None, system: System = SYSTEM, owner: VaultOwner = None, json: Json = False) -> None:
    """List templates, those in the vault first."""
    infos = TemplateLibrary(vault=vault, system=system, owner=owner).list()
    rows = [
        (info.name, f"{info.source}{', shadowed' if info.shadowed else ''}", info.description, info.path)
        for info in infos
    ]
    print_list({"templates": infos}, LIST, rows, json=json)


@app.command("show", epilog=example("templates show chat_compiler"))
def show(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of a template, or its path inside a template folder.")
    ],
    vault: Vault = None,
    system: System = SYSTEM,
    owner: VaultOwner = None,
    json: Json = False,
) -> None:
    """Show one template: its origin, settings, variables and text."""
    template = TemplateLibrary(vault=vault, system=system, owner=owner).find(name)
    wants = sorted(template.wants())
    screen = Screen()
    if json:
        document = {field.name: getattr(template, field.name) for field in fields(template) if field.repr}
        screen.raw(json_text({"template": document, "wants": wants}))
        return
    placeholders = load_placeholders()
    screen.line((template.name, "bold"), f" ({template.source})")
    screen.facts(
        [
            ("description", template.description),
            ("path", template.path),
            ("sha256", template.sha256),
            ("compiler", template.compiler),
            ("fidelity", template.fidelity),
            ("recent turns", template.recent_turns),
            ("recent tool results", template.recent_tool_results),
            ("token threshold", template.token_threshold),
            ("sections", "; ".join(placeholders.rule_text(key, rule) for key, rule in template.sections.items())),
            ("wants", ", ".join(wants)),
        ]
    )
    for warning in (*template.warnings, *placeholders.unknown_names(template)):
        screen.line(("  warning  ", "yellow"), warning)
    screen.line()
    screen.raw(safe(template.body))


@app.command("check", epilog=example("templates check notes/my_template.md"))
def check(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME|PATH", help="Templates to check; default: all.")
    ] = None,
    vault: Vault = None,
    system: System = SYSTEM,
    owner: VaultOwner = None,
    json: Json = False,
) -> None:
    """Read templates and render them without data; exit code 1 if any is invalid."""
    library = TemplateLibrary(vault=vault, system=system, owner=owner)
    with _collect_errors():
        results = [_check(library, name) for name in names] if names else _check_all(library)
    wrong = sum(result.error is not None for result in results)
    screen = Screen()
    if json:
        screen.raw(json_text({"ok": not wrong, "templates": results}))
    else:
        _print(screen, results, wrong)
    if wrong:
        raise typer.Exit(1)


def _check(library: TemplateLibrary, name: str) -> TemplateCheck:
    """Check a template by name, or a file anywhere.

    Raises:
        TemplateError: there is no such name or file.
    """
    if Path(name).is_file():
        return _try_template(name, name, partial(load_template, name))
    result = _try_template(name, "", partial(library.find, name))
    if result.error and not result.path:
        raise TemplateError(result.error.removeprefix(f"{name}: "), name=name)
    return result


def _check_all(library: TemplateLibrary) -> list[TemplateCheck]:
    """Check every template in the folders, including invalid ones, which a list leaves out."""
    with _collect_errors() as errors:
        listed = library.list()
    invalid = [_wrong(error, error.name, error.path or "") for error in errors]
    return [*(_try_template(info.name, info.path, partial(library.find, info.path)) for info in listed), *invalid]


def _try_template(name: str, path: str, read: Callable[[], Template]) -> TemplateCheck:
    """Read a template, render it without data, and report the result."""
    try:
        template = read()
        template.render({})
    except TemplateError as error:
        return _wrong(error, name, error.path or path)
    return TemplateCheck(
        name=name,
        path=template.path or path,
        source=template.source,
        sha256=template.sha256,
        wants=tuple(sorted(template.wants())),
        warnings=(*template.warnings, *load_placeholders().unknown_names(template)),
    )


def _wrong(error: TemplateError, name: str, path: str) -> TemplateCheck:
    """Report a template with an error, and all other errors of its file."""
    errors = (error,)
    if error.path and error.line:
        with suppress(OSError, UnicodeDecodeError):
            text = read_text(Path(error.path))
            errors = template_errors(text, name=error.name, path=error.path) or errors  # an error of a rendering
    return TemplateCheck(name=name, path=path, error=str(errors[0]), errors=tuple(map(str, errors)))


def _print(screen: Screen, results: Sequence[TemplateCheck], wrong: int) -> None:
    for result in results:
        text = result.error or f"{result.name} ({result.path})"
        screen.line(("wrong  " if result.error else "ok     ", "bold red" if result.error else "green"), text)
        for error in result.errors[1:]:
            screen.line(f"       {error}")
        for warning in result.warnings:
            screen.line(("       warning  ", "yellow"), warning)
    screen.line()
    warnings = sum(len(result.warnings) for result in results)
    screen.line(f"{plural(len(results), 'template')}, {wrong} wrong, {plural(warnings, 'warning')}")


class _ErrorCollector(logging.Handler):
    """Collects the template errors that are logged."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[TemplateError] = []

    def emit(self, record: logging.LogRecord) -> None:
        arguments = record.args if isinstance(record.args, tuple) else ()
        self.errors.extend(error for error in arguments if isinstance(error, TemplateError))


@contextmanager
def _collect_errors() -> Generator[list[TemplateError]]:
    """Collect the template errors that a library logs, instead of printing them."""
    log, collector = logging.getLogger("context_compiler"), _ErrorCollector()
    handlers = log.handlers
    log.handlers = list[logging.Handler]([collector])
    try:
        yield collector.errors
    finally:
        log.handlers = handlers


def load_template(path: str) -> Template:
    """Read a template from any file.

    Raises:
        TemplateError: the file cannot be read, or is not a valid template.
    """
    name = Path(path).stem
    try:
        return Template.parse(read_text(Path(path)), name=name, path=path)
    except UnicodeDecodeError:
        raise TemplateError("the template is not UTF-8 text; save it as UTF-8", name=name, path=path) from None
    except OSError as error:
        raise TemplateError(f"cannot be read: {error.strerror}", name=name, path=path) from None


def choose_template(name: str | None, *, model: str, vault: Path | None, system: Path) -> Template:
    """Find a template by name or path; None selects the default with or without a model.

    Raises:
        TemplateError: there is no such template, or it is invalid.
    """
    wanted = name or ("extractive" if model == "none" else "chat_compiler")
    try:
        return TemplateLibrary(vault=vault, system=system).find(wanted)
    except TemplateError as error:
        if error.path is None and Path(wanted).is_file():
            return load_template(wanted)
        raise


def recorded_template(record: Record, *, model: str, vault: Path | None, system: Path) -> Template:
    """Find the current text of the template of a recorded request, or the default one if nothing was compiled for it.

    Raises:
        TemplateError: the template no longer exists, or was never a file.
    """
    compiled = record.compile
    if compiled is None:
        name = template_name(record) if model == "none" else None
        return choose_template(name, model=model, vault=vault, system=system)
    name, path = compiled.template_name, compiled.template_path
    try:
        template = TemplateLibrary(vault=vault, system=system).find(name)
    except TemplateError:
        template = None
    if (template is None or template.sha256 != compiled.template_hash) and path and Path(path).is_file():
        template = load_template(path)
    if template is None:
        raise TemplateError("the template of that view cannot be found; name one with --template", name=name)
    if template.sha256 != compiled.template_hash:
        print_note(f"template {name} has changed since that view was written; the current text is used")
    return template


def recorded_fidelity(compiled: Compile | None, template: Template) -> Fidelity | None:
    """Return the fidelity of a recorded compile; None if it was the template's own."""
    if compiled is None or compiled.fidelity == template.fidelity:
        return None
    return Fidelity.parse(compiled.fidelity, where="the record")


def parse_fidelity(text: str | None) -> Fidelity | None:
    """Parse a fidelity; None means the template's own.

    Raises:
        FidelityError: there is no such fidelity.
    """
    return None if text is None else Fidelity.parse(text, where="--fidelity")
