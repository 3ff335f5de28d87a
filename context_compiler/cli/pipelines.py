"""`pipeline`: graphs of stages, checked and drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from context_compiler.cli.options import Json, example, group
from context_compiler.cli.screen import Screen
from context_compiler.cli.tables import Column
from context_compiler.cli.text import json_text, plural, safe
from context_compiler.errors import GraphError, SettingsError
from context_compiler.pipeline.check import Rule, validate
from context_compiler.pipeline.dot import parse_dot
from context_compiler.pipeline.draw import to_svg
from context_compiler.pipeline.graph import Diagnostic, Graph, Severity
from context_compiler.pipeline.workflow import SUFFIXES, load_workflow

app = group("Check and draw pipelines: DOT graphs whose stages are agents.", shown="pipeline check plan.dot")

COLUMNS = (
    Column("line", right=True, style="dim"),
    Column("severity"),
    Column("rule", style="cyan", spare=1),
    Column("place", style="bold"),
    Column("finding", elastic=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a check found out about one file."""

    path: str
    name: str = ""
    stages: int = 0
    edges: int = 0
    findings: tuple[Diagnostic, ...] = ()
    snippet: str = ""
    """Where the file could not be read on."""

    def count(self, severity: Severity) -> int:
        """How many findings are that bad."""
        return sum(one.severity is severity for one in self.findings)


@app.command("check", epilog=example("pipeline check plan.dot"))
def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="DOT files, or workflows.")],
    json: Json = False,
) -> None:
    """Read graphs and hold them to every rule; exit code 1 if one has errors."""
    report([checked(file, read_graph) for file in files], json=json)


def report(found: Sequence[Checked], *, json: bool) -> None:
    """Print what was found.

    Raises:
        Exit: a file has errors.
    """
    wrong = any(one.count(Severity.ERROR) for one in found)
    screen = Screen()
    if json:
        screen.raw(json_text({"ok": not wrong, "files": found}))
    else:
        for one in found:
            _print(screen, one)
        counts = [sum(one.count(severity) for one in found) for severity in Severity]
        told = [plural(count, noun) for count, noun in zip(counts, ("error", "warning", "note"), strict=True)]
        screen.line(f"{plural(len(found), 'file')}, {', '.join(told)}")
    if wrong:
        raise typer.Exit(1)


@app.command("draw", epilog=example("pipeline draw plan.dot --out plan.svg"))
def draw(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A DOT file, or a workflow.")],
    out: Annotated[Path | None, typer.Option("--out", help="Where to write the SVG; else it is printed.")] = None,
) -> None:
    """Draw a graph as SVG, with the fidelity and thread of each stage and edge."""
    svg = to_svg(read_graph(file))
    screen = Screen()
    if out is None:
        screen.raw(svg)
        return
    try:
        out.write_text(svg, encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{out}: cannot be written: {error.strerror}") from error
    screen.line(f"{out} ({len(svg.encode()):,} bytes)")


def read_graph(file: Path) -> Graph:
    """The graph in a file: DOT, or a workflow if its name ends as markdown does.

    Raises:
        SettingsError: the file cannot be read as text.
        GraphError: there is no graph in it.
    """
    if file.suffix.lower() in SUFFIXES:
        return load_workflow(file)
    try:
        return parse_dot(file.read_bytes().decode(), str(file))
    except UnicodeDecodeError as error:
        raise SettingsError(f"{file}: this is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise SettingsError(f"{file}: cannot be read: {error.strerror}") from error


def checked(file: Path, read: Callable[[Path], Graph], *rules: Rule) -> Checked:
    """What is to be said about one file, by every rule and these."""
    try:
        graph = read(file)
    except GraphError as error:
        finding = Diagnostic(
            rule="syntax", severity=Severity.ERROR, message=error.message, line=error.line, column=error.column
        )
        return Checked(path=str(file), findings=(finding,), snippet=error.snippet)
    findings = sorted(validate(graph, rules), key=lambda one: (one.line or 0, one.column or 0))
    return Checked(
        path=str(file), name=graph.name, stages=len(graph.nodes), edges=len(graph.edges), findings=tuple(findings)
    )


def _print(screen: Screen, one: Checked) -> None:
    """A table on a terminal; elsewhere a line a finding, with the place first."""
    if not screen.rich:
        for finding in one.findings:
            screen.raw(safe(f"{one.path}:{'' if finding.line else ' '}{finding}").replace("\n", " "))
    else:
        told = f"{one.name or 'no name'}, {plural(one.stages, 'stage')}, {plural(one.edges, 'edge')}"
        screen.line((one.path, "bold"), f"  {told}" if not one.snippet else "")
        if one.findings:
            screen.table(COLUMNS, [_row(finding) for finding in one.findings])
    for line in one.snippet.splitlines():
        screen.raw(f"    {safe(line)}")


def _row(finding: Diagnostic) -> Sequence[object]:
    place = finding.place if finding.node_id is not None or finding.edge is not None else ""
    remedy = f"; {finding.fix}" if finding.fix else ""
    return finding.line or "", finding.severity.lower(), finding.rule, place, f"{finding.message}{remedy}"
