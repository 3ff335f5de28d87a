"""What an editor and a notebook show of the public names: every argument with its meaning, and short values."""

from __future__ import annotations

import asyncio
import inspect
import pydoc
import re
from enum import Enum
from pathlib import Path

import context_compiler
from context_compiler import (
    ContextCompiler,
    MemoryStore,
    TemplateLibrary,
    build_compiling_history_processor,
    compile_view,
)
from context_compiler.messages.importers import read_transcripts
from context_compiler.middleware.arguments import Arguments
from context_compiler.pipeline import parse_dot
from tests.support.pages import ROOT

DEMO = ROOT / "context_compiler" / "data" / "demo.json"
HOST = {"description", "defer_loading"}
"""Arguments that every capability of the host has."""


def test_help_lists_every_argument_with_its_meaning() -> None:
    shown = pydoc.render_doc(ContextCompiler, renderer=pydoc.plaintext)
    listed = re.findall(r"^ \|      (\w+): [A-Z]", shown.partition("Args:\n")[2].partition("\n |  \n")[0], re.M)
    assert set(listed) == set(inspect.signature(ContextCompiler).parameters) - HOST
    assert len(listed) == len(set(listed))


def test_signatures_are_complete() -> None:
    assert (
        str(inspect.signature(build_compiling_history_processor)).partition(" -> ")[0]
        == (str(inspect.signature(Arguments)).partition(" -> ")[0])
    )
    for name in context_compiler.__all__:
        value = getattr(context_compiler, name)
        if inspect.isclass(value) and (issubclass(value, Enum | Exception) or getattr(value, "_is_protocol", False)):
            continue
        parameters = inspect.signature(value).parameters.values()
        assert not [param for param in parameters if param.kind in (param.VAR_POSITIONAL, param.VAR_KEYWORD)], name


def test_values_are_short() -> None:
    [talk] = read_transcripts(str(DEMO))
    view = asyncio.run(compile_view(talk.messages, budget=2_000, store=MemoryStore()))
    compiler = ContextCompiler(budget=2_000, recall=0.25, store=None)
    graph = parse_dot((ROOT / "examples" / "review_loop.dot").read_text(encoding="utf-8"), "review_loop.dot")
    library = TemplateLibrary(system=Path("system"))
    values = [talk, view, view.record, compiler, graph, library, library.find("chat_compiler")]
    values.append(build_compiling_history_processor("extractive", budget=900))
    assert repr(compiler) == "ContextCompiler(budget=2000, store=None, recall=0.25)"
    assert repr(ContextCompiler()) == "ContextCompiler()"
    assert repr(values[-1]) == "CompilingHistoryProcessor(template='extractive', budget=900)"
    for value in values:
        assert len(repr(value)) < 200 and " object at 0x" not in repr(value), repr(value)
