"""Workflows: markdown files with front matter, and one step under each `##` heading.

A workflow is parsed into a pipeline with one stage after another, so everything for pipelines works for workflows. A
failed step ends the run. Directives such as `@model openai:gpt-5` at the top of a prompt become attributes of its
stage. `read_directives` does not depend on pipelines: the caller gives the names of the directives.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from context_compiler.errors import FidelityError, GraphError
from context_compiler.fidelity import Fidelity
from context_compiler.paths import unify_lines
from context_compiler.pipeline.attributes import Value
from context_compiler.pipeline.dot import read_source
from context_compiler.pipeline.graph import AGENTS, Diagnostic, Edge, Graph, Node, Severity
from context_compiler.template.front_matter import Entry, FrontMatterError, split_front_matter

SUFFIXES = (".md", ".markdown")
LARGEST = 1_000_000
"""Maximum length of a workflow file, in characters."""
MAX_STEPS = 5_000
"""Maximum number of steps of a workflow."""
KEYS = ("name", "description", "goal", "model", "fidelity")
"""Keys of the front matter."""
START, DONE = "start", "done"
"""Names of the stages added before and after the steps."""

_HEADING = re.compile(r" {0,3}##(?P<rest>[ \t].*)?")
_FENCE = re.compile(r" {0,3}(?P<mark>`{3,}|~{3,})(?P<info>.*)")
_NOT_IN_SLUG = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    """A heading and the text below it."""

    title: str
    line: int
    """Line of the heading in the file, from 1."""
    text: str
    """Text below the heading, without surrounding blank lines."""
    begins: int
    """First line of the text in the file, from 1."""


def load_workflow(path: str | Path) -> Graph:
    """Parse the workflow in a file.

    Raises:
        GraphError: the file cannot be read or is not a workflow.
    """
    try:
        text = read_source(Path(path), LARGEST)
    except UnicodeDecodeError as error:
        raise GraphError(f"this is not UTF-8 text (byte {error.start})", path=str(path)) from None
    except OSError as error:
        raise GraphError(f"cannot be read: {error.strerror}", path=str(path)) from error
    return parse_workflow(text, str(path))


def parse_workflow(text: str, path: str | None = None) -> Graph:
    """Parse a workflow into a pipeline whose stages are its steps, in order.

    Args:
        text: Content of the file.
        path: The file, for errors. Its name is the name of the workflow unless the front matter has one.

    Raises:
        GraphError: there is no step, a step has no name, or the front matter is invalid; it has the line.
    """
    try:
        source = split_front_matter(_normalise(text))
        facts, findings = _read_front_matter(source.entries)
        parts = list(_sections(source.body.split("\n"), source.offset, findings))
    except FrontMatterError as error:
        raise GraphError(str(error), path=path, line=error.line) from None
    if len(parts) > MAX_STEPS:
        message = f"there are {len(parts):,} steps, and a workflow has at most {MAX_STEPS:,}; split it"
        raise GraphError(message, path=path, line=parts[MAX_STEPS].line)
    if not parts:
        raise GraphError("there is no step in it; write one under a heading such as `## Plan`", path=path, line=1)
    name = str(facts.get("name", "") or (Path(path).stem if path else "workflow"))
    steps = _build_steps(parts, findings)
    ends = (Node(name=START, attrs={"shape": "Mdiamond"}), Node(name=DONE, attrs={"shape": "Msquare"}))
    nodes = {node.name: node for node in (ends[0], *steps, ends[1])}
    names = tuple(nodes)
    return Graph(
        name=_slug(name) or "workflow",
        attrs=_graph_attributes(name, facts),
        nodes=nodes,
        edges=tuple(Edge(source=step, target=other) for step, other in zip(names, names[1:], strict=False)),
        diagnostics=tuple(findings),
        path=path,
    )


def _normalise(text: str) -> str:
    if len(text) > LARGEST:
        raise FrontMatterError(f"the workflow is longer than {LARGEST:,} characters", 1)
    if "\0" in text:
        raise FrontMatterError(
            "it contains a NUL character; is it a text file?", text.count("\n", 0, text.index("\0")) + 1
        )
    return unify_lines(text.removeprefix("\ufeff"))


def _read_front_matter(entries: Mapping[str, Entry]) -> tuple[dict[str, str], list[Diagnostic]]:
    """Return the values of the front matter, and findings about unknown keys."""
    facts: dict[str, str] = {}
    findings: list[Diagnostic] = []
    for spelt, entry in entries.items():
        key = spelt.strip().lower()
        if key not in KEYS:
            near = next(iter(get_close_matches(key, KEYS, n=1)), None)
            fix = f"did you mean {near}?" if near else f"known are {', '.join(KEYS)}"
            severity = Severity.WARNING if near else Severity.INFO
            message = f"unknown key {spelt!r}"[:100]
            findings.append(_diagnostic("front_matter_known", severity, message, fix, entry.line))
        elif entry.value is not None:
            facts[key] = _front_matter_value(key, entry)
    return facts, findings


def _front_matter_value(key: str, entry: Entry) -> str:
    if isinstance(entry.value, Mapping | list | bool):
        raise FrontMatterError(f"{key}: give a text", entry.line)
    text = str(entry.value).strip()
    try:
        return str(Fidelity.parse(text, where=key)) if key == "fidelity" and text else text
    except FidelityError as error:
        raise FrontMatterError(str(error), entry.line) from None


def _graph_attributes(name: str, facts: Mapping[str, str]) -> dict[str, Value]:
    """Build the attributes of the pipeline; at `full`, all steps share one conversation."""
    fidelity = facts.get("fidelity", "")
    attrs: dict[str, Value] = {
        "label": name,
        "goal": facts.get("goal", ""),
        "comment": facts.get("description", ""),
        "llm_model": facts.get("model", ""),
        "default_fidelity": fidelity,
        "default_thread_id": "workflow" if fidelity == Fidelity.FULL else "",
    }
    return {**{key: value for key, value in attrs.items() if value}, "strict_failure_edges": True}


def _sections(lines: Sequence[str], offset: int, findings: list[Diagnostic]) -> Iterator[_Section]:
    """Split the lines into one section per heading; headings in fenced blocks are content."""
    starts: list[tuple[int, str]] = []
    fence, opened = "", 0
    for index, line in enumerate(lines):
        mark = _FENCE.fullmatch(line)
        if fence:
            closes = mark is not None and mark["mark"].startswith(fence) and not mark["info"].strip()
            fence = "" if closes else fence
        elif mark is not None and not (mark["mark"][0] == "`" and "`" in mark["info"]):
            fence, opened = mark["mark"], index
        elif (heading := _HEADING.fullmatch(line)) is not None:
            starts.append((index, _heading_text(heading["rest"] or "")))
    if fence:
        message = "a fenced block begins here and never ends, so headings below it are not steps"
        fix = f"close it with {fence}"
        findings.append(_diagnostic("fence_closed", Severity.WARNING, message, fix, opened + offset + 1))
    ends = [*(index for index, _ in starts[1:]), len(lines)]
    for (index, title), end in zip(starts, ends, strict=False):
        if not title.strip("#").strip():
            raise FrontMatterError("a step has no name; write one after the ##", index + offset + 1)
        text = "\n".join(lines[index + 1 : end]).rstrip()
        above = len(text) - len(text.lstrip("\n"))
        yield _Section(title=title, line=index + offset + 1, text=text[above:], begins=index + offset + 2 + above)


def _heading_text(rest: str) -> str:
    """Text of a heading, without closing `#` signs."""
    text = rest.rstrip(" \t")
    bare = text.rstrip("#")
    return (bare if bare.endswith((" ", "\t")) else text).strip()


def _build_steps(parts: Sequence[_Section], findings: list[Diagnostic]) -> list[Node]:
    """Build a stage for each section, each with its own name."""
    nodes: dict[str, Node] = {}
    counts: dict[str, int] = {}
    for number, part in enumerate(parts, 1):
        slug = _slug(part.title) or f"step_{number}"
        name = slug
        while name in nodes or name in (START, DONE):
            counts[slug] = counts.get(slug, 1) + 1
            name = f"{slug}_{counts[slug]}"
        if not part.text.strip():
            fix = "write below the heading what the step should do; without text, its prompt is the heading"
            findings.append(_diagnostic("step_empty", Severity.WARNING, "the step has no text", fix, part.line, name))
        prompt = {"prompt": part.text} if part.text.strip() else {}
        nodes[name] = Node(
            name=name, attrs={"label": part.title, **prompt}, line=part.line, column=1, prompt_line=part.begins
        )
    return list(nodes.values())


def _slug(title: str) -> str:
    """Convert a title to a stage name; empty if it contains no Latin letter or digit."""
    name = _NOT_IN_SLUG.sub("_", title.lower()).strip("_")[:60].strip("_")
    return name if name[:1].isalpha() else f"step_{name}" if name else ""


def _diagnostic(
    rule: str, severity: Severity, message: str, fix: str, line: int, node: str | None = None
) -> Diagnostic:
    return Diagnostic(rule=rule, severity=severity, message=message, fix=fix, line=line, column=1, node_id=node)


DIRECTIVES = MappingProxyType({"model": "llm_model", "context-helper": "context_helper"})
"""Directives of a prompt, with the attributes that they set."""


def apply_directives(graph: Graph) -> Graph:
    """Convert directives in prompts to attributes; return the same graph if there are none."""
    lowered = {
        name: _with_directives(node, directives)
        for name, node, directives in _directives_of(graph)
        if directives.text != node.prompt
    }
    return replace(graph, nodes={**graph.nodes, **lowered}) if lowered else graph


def directives_known(graph: Graph) -> Iterator[Diagnostic]:
    """Report directives that are unknown, have no value, or are repeated."""
    for name, node, directives in _directives_of(graph):
        for finding in directives.findings:
            foreign = finding.kind == "unknown" and finding.near is None  # probably meant for another application
            placed = node.prompt_line is not None
            yield Diagnostic(
                rule="directive_known",
                severity=Severity.INFO if foreign else Severity.WARNING,
                message=finding.message,
                fix=finding.fix,
                node_id=name,
                line=finding.line if placed else node.line,
                column=1 if placed else node.column,
            )


def _directives_of(graph: Graph) -> Iterator[tuple[str, Node, Directives]]:
    """Yield the agent stages with an `@` in their prompt, with the directives of the prompt."""
    for name, node in graph.nodes.items():
        if node.handler in AGENTS and "@" in node.prompt:
            yield name, node, read_directives(node.prompt, DIRECTIVES, path=graph.path, line=node.prompt_line or 1)


def _with_directives(node: Node, directives: Directives) -> Node:
    rest = {key: value for key, value in node.attrs.items() if key not in ("prompt", *node.spellings("prompt"))}
    prompt = {"prompt": directives.text} if directives.text.strip() else {}
    set_by_directives = {DIRECTIVES[name]: value for name, value in directives.values.items()}
    return replace(node, attrs={**rest, **prompt, **set_by_directives})


_DIRECTIVE_LINE = re.compile(r" {0,3}@(?P<name>[A-Za-z][A-Za-z0-9_-]{0,63})(?::(?!//)|(?=[ \t\r])|$)(?P<value>.*)")
_LINK = ("[[", "]]")
_QUOTES = (('"', '"'), ("'", "'"), ("`", "`"), _LINK)


MAX_FINDINGS = 100
"""Maximum number of findings per text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Directive:
    """A directive line at the top of a text."""

    name: str
    """Name as the caller spells it; for an unknown directive, as written."""
    value: str
    """Value without quotes or brackets; empty if none was given."""
    line: int
    """Line in the file, from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem with a directive; the text stays usable."""

    kind: Literal["unknown", "empty", "repeated"]
    message: str
    fix: str
    """Remedy."""
    line: int
    path: str | None = None
    """File of the text; None if it is not from a file."""
    near: str | None = None
    """Known name similar to an unknown one, if any."""

    def __str__(self) -> str:
        origin = f"{self.path}:{self.line}: " if self.path else f"line {self.line}: "
        return f"{origin}{self.message}; {self.fix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Directives:
    """A text and its directives."""

    text: str
    """Content, preceded by the lines with unknown directives as written."""
    values: Mapping[str, str]
    """Values by known name; the last value of a repeated directive counts."""
    found: tuple[Directive, ...]
    """All directives in order, including unknown ones."""
    findings: tuple[Finding, ...]


def read_directives(text: str, allowed: Iterable[str], *, path: str | None = None, line: int = 1) -> Directives:
    r"""Remove the directives from the top of a text and return them. Never raises; problems become findings.

    `@name value` and `@name: value` are equivalent. Names ignore case, and `-` and `_` are the same.
    Blank lines between directives are allowed. The first other line ends the directives; below it, a line that begins
    with `@` is content. A line that begins with `\@` is always content.

    Args:
        text: The text of a step, a prompt or a note.
        allowed: Names of the directives; lines with other names stay in the text as written.
        path: The file that contains the text, for findings.
        line: The first line of the text in that file, from 1.
    """
    names = {_fold_name(name): name for name in allowed}
    lines = text.split("\n")
    values: dict[str, str] = {}
    directives: list[Directive] = []
    findings: list[Finding] = []
    taken: set[int] = set()
    for index, spelt, value in _leading_directives(lines):
        name = names.get(_fold_name(spelt))
        directive = Directive(name=name or spelt, value=value, line=line + index)
        directives.append(directive)
        if len(findings) < MAX_FINDINGS:
            findings += _directive_findings(directive, path, is_known=name is not None, values=values, names=names)
        if name is not None:
            taken.add(index)
            values |= {name: value} if value else {}
    rest = _remove_lines(lines, taken)
    return Directives(text=rest, values=values, found=tuple(directives), findings=tuple(findings))


def _leading_directives(lines: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """Yield the directives above the content, as `(line index, name, value)`."""
    for index, line in enumerate(lines):
        match = _DIRECTIVE_LINE.fullmatch(line)
        if match is not None:
            yield index, match["name"], _unwrap(match["value"])
        elif line.strip():
            return


def _remove_lines(lines: Sequence[str], taken: Collection[int]) -> str:
    """Remove lines by index, and blank lines at the top; without lines to remove, the text is unchanged."""
    rest = [line for index, line in enumerate(lines) if index not in taken]
    start = next((index for index, line in enumerate(rest) if line.strip()), len(rest))
    return "\n".join(rest[start:] if taken else rest)


def _unwrap(value: str) -> str:
    """Remove the quotes or brackets around a value; for a wiki link with a caption, return only the target."""
    text = value.strip()
    for _ in _QUOTES:
        pair = next((pair for pair in _QUOTES if _is_wrapped(text, *pair)), None)
        if pair is None:
            break
        text = text[len(pair[0]) : len(text) - len(pair[1])].strip()
        text = text.partition("|")[0].strip() if pair == _LINK else text
    return text


def _is_wrapped(text: str, opening: str, closing: str) -> bool:
    return len(text) >= len(opening) + len(closing) and text.startswith(opening) and text.endswith(closing)


def _fold_name(name: str) -> str:
    return name.replace("_", "-").lower()


def _directive_findings(
    directive: Directive, path: str | None, *, is_known: bool, values: Mapping[str, str], names: Mapping[str, str]
) -> Iterator[Finding]:
    if not is_known:
        close = get_close_matches(_fold_name(directive.name), names, n=1, cutoff=0.6)
        near = names[close[0]] if close else None
        message = f"@{directive.name} is not known here and stays in the text"
        fix = f"did you mean @{near}?" if near else f"known are {', '.join(f'@{name}' for name in names.values())}"
        yield Finding(kind="unknown", message=message, fix=fix, line=directive.line, path=path, near=near)
    elif not directive.value:
        message, fix = f"@{directive.name} has no value and is passed over", f"give one, such as @{directive.name} NAME"
        yield Finding(kind="empty", message=message, fix=fix, line=directive.line, path=path)
    elif directive.name in values:
        message, fix = f"@{directive.name} is given more than once, and the last one counts", "keep one"
        yield Finding(kind="repeated", message=message, fix=fix, line=directive.line, path=path)
