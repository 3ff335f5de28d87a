"""Templates: the source of each, what shadows it, and its prompt for a recorded request."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler.compiler.trace import request_of
from context_compiler.errors import ContextCompilerError, TemplateError
from context_compiler.middleware.one_shot import compile_view
from context_compiler.template import Template
from context_compiler.web.data import Inspector

ANSWER = "(the answer of the model)"


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateRow:
    """One template in the list."""

    name: str
    source: str
    """vault, system or builtin."""
    path: str
    """Path relative to its root folder."""
    hash: str
    """SHA-256 of the file."""
    description: str
    shadowed_by: str | None
    """Source of the template of the same name that is used instead; None if this one is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RootRow:
    """One step of the lookup order."""

    source: str
    folder: str
    exists: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """A file that is not a valid template."""

    name: str
    path: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplatesPage:
    """All templates, and the order in which they are looked up."""

    roots: tuple[RootRow, ...]
    templates: tuple[TemplateRow, ...]
    defects: tuple[Defect, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplatePage:
    """One template with its settings, and its prompt for a recorded request."""

    row: TemplateRow
    folder: str
    compiler: str
    fidelity: str | None
    recent_turns: str | None
    wants: tuple[str, ...]
    warnings: tuple[str, ...]
    text: str
    request: int | None
    prompt: str
    """Prompt that the model would get; for a template that calls no model, the note that it writes."""
    asks_model: bool


def template_rows(inspector: Inspector) -> tuple[TemplateRow, ...]:
    """Return all readable templates, in lookup order."""
    first: dict[str, str] = {}
    rows: list[TemplateRow] = []
    roots = {source: folder for source, folder in inspector.template_library.roots}
    for info in inspector.template_library.list():
        template = inspector.template_library.find(info.path)
        rows.append(
            TemplateRow(
                name=info.name,
                source=info.source,
                path=_inside(info.path, roots.get(info.source)),
                hash=template.sha256,
                description=info.description,
                shadowed_by=first.get(info.name) if info.shadowed else None,
            )
        )
        first.setdefault(info.name, info.source)
    return tuple(rows)


def _inside(path: str, root: Path | None) -> str:
    folder = None if root is None else root.absolute()
    return Path(path).relative_to(folder).as_posix() if folder and Path(path).is_relative_to(folder) else path


async def load_templates(inspector: Inspector) -> TemplatesPage:
    """Load all templates, the lookup order, and invalid files."""
    library = inspector.template_library
    roots = [RootRow(source=source, folder=str(path), exists=path.is_dir()) for source, path in library.roots]
    defects = [Defect(name=each.name, path=each.path or "", error=str(each)) for each in library.defects()]
    return TemplatesPage(roots=tuple(roots), templates=template_rows(inspector), defects=tuple(defects))


async def load_template(inspector: Inspector, name: str, source: str, request: int | None) -> TemplatePage:
    """Load a template by its name and optionally its source, with its prompt for a request if one is given.

    Raises:
        TemplateError: There is no such template.
    """
    rows = [row for row in template_rows(inspector) if row.name == name and source in ("", row.source)]
    if not rows:
        raise TemplateError("there is no template of that name", name=name)
    folder = next(folder for origin, folder in inspector.template_library.roots if origin == rows[0].source)
    template = inspector.template_library.find(str((folder / rows[0].path).absolute()))
    prompt = "" if request is None else await _prompt(inspector, template, request)
    return TemplatePage(
        row=rows[0],
        folder=str(folder),
        compiler=template.compiler,
        fidelity=None if template.fidelity is None else str(template.fidelity),
        recent_turns=None if template.recent_turns is None else str(template.recent_turns),
        wants=tuple(sorted(template.wants())),
        warnings=template.warnings,
        text=template.body,
        request=request,
        prompt=prompt,
        asks_model=template.compiler == "agent",
    )


async def _prompt(inspector: Inspector, template: Template, request: int) -> str:
    """Build the prompt of a template for a recorded history; no model is called."""
    row, _ = await inspector.read(partial(request_of, number=request))
    raw = await inspector.read(lambda db: inspector.host_messages(db, inspector.chain(db, row.raw_tip, row.session)))
    if not raw:
        raise ContextCompilerError(f"request {request} was recorded without its raw history")
    prompts: list[str] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        prompts.extend(str(part.content) for part in messages[-1].parts if part.part_kind == "user-prompt")
        return ModelResponse(parts=[TextPart(content=ANSWER)])

    model = FunctionModel(answer) if template.compiler == "agent" else "none"
    work = partial(compile_view, raw, template, row.budget or 2_000, model=model, system=None, session="preview")
    view = await asyncio.to_thread(lambda: asyncio.run(work()))
    return "\n\n".join(prompts) or view.summary
