"""Line charts as SVG; equal data gives equal files.

matplotlib comes with the extra `bench` and is imported only when something is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from context_compiler.errors import SettingsError
from context_compiler.paths import install_command

INCHES, LEGEND = (4.2, 3.4), 2.6
"""Size of one panel, and width of the legend, in inches."""

STYLE = {
    "svg.hashsalt": "context-compiler",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "legend.frameon": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line in a panel."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    strong: bool = False
    """Drawn thick."""
    dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart with its axes."""

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    log_x: bool = False
    log_y: bool = False
    ticks: Sequence[float] = ()
    """Ticks of the x axis; chosen automatically if empty."""


def libraries() -> tuple[Any, Any]:
    """Import the matplotlib modules that draw.

    Raises:
        SettingsError: matplotlib is not installed.
    """
    try:
        return import_module("matplotlib"), import_module("matplotlib.figure")
    except ImportError:
        raise SettingsError(f"drawing needs matplotlib: {install_command('bench')}") from None


def draw(panels: Sequence[Panel], path: Path) -> None:
    """Draw panels side by side, with a common legend.

    Raises:
        SettingsError: matplotlib is not installed, or the file cannot be written.
    """
    matplotlib, figures = libraries()
    with matplotlib.rc_context(STYLE):
        figure = figures.Figure(figsize=(INCHES[0] * len(panels) + LEGEND, INCHES[1]), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        names = list(dict.fromkeys(line.name for panel in panels for line in panel.lines))
        for panel, axis in zip(panels, axes, strict=True):
            _draw_panel(panel, axis, names)
        handles = {line.get_label(): line for axis in axes for line in axis.get_lines()}
        figure.legend(handles.values(), handles.keys(), loc="outside right center", fontsize=8)
        try:
            figure.savefig(path, format="svg", metadata={"Date": None})
        except OSError as error:
            raise SettingsError(f"{path}: cannot be written: {error.strerror}") from None


def _draw_panel(panel: Panel, axes: Any, names: Sequence[str]) -> None:
    for line in panel.lines:
        color = "#333333" if line.dashed else f"C{names.index(line.name) % 10}"
        axes.plot(
            line.x,
            line.y,
            label=line.name,
            color=color,
            linewidth=2.6 if line.strong else 1.2,
            linestyle="--" if line.dashed or names.index(line.name) >= 10 else "-",
            marker="o" if len(line.x) < 10 and not line.dashed else "",
            markersize=3.5,
        )
    axes.set_title(panel.title, fontsize=10)
    axes.set_xlabel(panel.x)
    axes.set_ylabel(panel.y)
    if panel.log_x:
        axes.set_xscale("log", base=2)
    ticker: Any = import_module("matplotlib.ticker")
    if panel.log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(ticker.FuncFormatter(_short))
        axes.yaxis.set_minor_locator(ticker.NullLocator())
    if panel.ticks:
        axes.set_xticks(panel.ticks, [_short(tick) for tick in panel.ticks])
        axes.xaxis.set_minor_locator(ticker.NullLocator())


def _short(value: float, _: object = None) -> str:
    """Format a number with k for thousands; matplotlib passes its position too."""
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"
