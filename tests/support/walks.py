"""Files of the package that one request enters: the files that a reader must open to follow it.

    python -m tests.support.walks [-v]
    python -m tests.support.walks --structure

Each walk runs once unmeasured, to load imports, tables and encoders, and once under a profiler that notes every call of
a function of the package, in every thread. The walks are the first live request of a compiler whose history fits, a
request that a model summarises, and a pipeline of one stage. The record is in memory.

`--structure` describes the imports between the packages and modules at the top level. Levels are the length of the
longest chain of imports, and a cycle is a group that imports itself. Imports for types and lazy names do not count.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from graphlib import TopologicalSorter
from pathlib import Path
from types import FrameType

from grimp import build_graph
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import context_compiler
from context_compiler import ContextCompiler
from context_compiler.pipeline import SQLiteRuns, run_pipeline

PACKAGE = str(Path(context_compiler.__file__).parent) + os.sep

GRAPH = """digraph g {
  goal="Say hello."
  start [shape=Mdiamond]
  greet [prompt="Greet the reader of $goal"]
  done [shape=Msquare]
  start -> greet -> done
}"""


def conversation(turns: int) -> list[ModelMessage]:
    """Build a conversation of about 100 tokens per turn."""
    made: list[ModelMessage] = []
    for turn in range(turns):
        made.append(ModelRequest(parts=[UserPromptPart(f"Question {turn}: which port does service-{turn} use? " * 3)]))
        text = f"service-{turn} uses port {8000 + turn}, see conf/{turn}.yaml. " * 3
        made.append(ModelResponse(parts=[TextPart(text)]))
    return made


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Return an answer to any prompt."""
    return ModelResponse(parts=[TextPart("They asked which service uses which port.")])


async def request(budget: int) -> set[str]:
    """Run an agent with one request."""
    compiler = ContextCompiler(budget=budget, store=None, system=None)
    agent = Agent(FunctionModel(answer), capabilities=[compiler])
    history = conversation(40)
    with entered() as files:
        await agent.run("And service-3?", message_history=history)
    return files


async def stage() -> set[str]:
    """Run a pipeline of one stage, with an agent and a record."""
    with tempfile.TemporaryDirectory() as folder:
        runs = SQLiteRuns(Path(folder) / "runs.db")
        with entered() as files:
            result = await run_pipeline(GRAPH, model=FunctionModel(answer), runs=runs, logs_root=Path(folder) / "logs")
        await runs.close()
    assert result.ok, result.failure_reason
    return files


WALKS: dict[str, Callable[[], Awaitable[set[str]]]] = {
    "a raw request": partial(request, 100_000),
    "a request with a summary": partial(request, 3_000),
    "a pipeline of one stage": stage,
}


@contextmanager
def entered() -> Generator[set[str]]:
    """Collect the files of the package whose functions are called, relative to the package."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and code.co_name != "<module>":
            files.add(code.co_filename.removeprefix(PACKAGE))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield files
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


async def walk(follow: Callable[[], Awaitable[set[str]]]) -> list[str]:
    """Return the files that a walk enters once everything is loaded, sorted."""
    await follow()
    asyncio.get_running_loop().set_default_executor(
        ThreadPoolExecutor()
    )  # a profiler does not see threads that already exist
    return sorted(await follow())


def structure() -> dict[str, int]:
    """Return figures of the package's structure, from its imports."""
    imports = build_graph("context_compiler", exclude_type_checking_imports=True, cache_dir=None)
    below: dict[str, set[str]] = {}
    for module in imports.modules - {"context_compiler", "context_compiler.__main__"}:
        top = module.split(".")[1]
        others = {name.split(".")[1] for name in imports.find_modules_directly_imported_by(module) if "." in name}
        below.setdefault(top, set()).update(others - {top})
    sorter, levels = TopologicalSorter(below), 0
    cycles: set[str] = set()
    lengths = sorted(len(file.read_text(encoding="utf-8").splitlines()) for file in Path(PACKAGE).rglob("*.py"))
    for top in below:
        seen, left = set[str](), set(below[top])
        while left:
            seen |= (reached := left - seen)
            left = {name for package in reached for name in below[package]} - seen
        cycles |= {top} & seen
    if not cycles:
        sorter.prepare()
        while sorter.is_active():
            sorter.done(*sorter.get_ready())
            levels += 1
    return {
        "packages and top-level modules": len(below),
        "levels": levels,
        "imports between them": sum(map(len, below.values())),
        "in import cycles": len(cycles),
        "files": len(lengths),
        "lines of the middle file": lengths[len(lengths) // 2],
        "lines of the longest file": lengths[-1],
        "lines": sum(lengths),
    }


def main() -> None:
    """Run every walk, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-v", "--verbose", action="store_true", help="also name the files")
    parser.add_argument("--structure", action="store_true", help="print the figures of the package's structure instead")
    arguments = parser.parse_args()
    if arguments.structure:
        print("| structure | |\n|---|---:|", *(f"| {name} | {n:,} |" for name, n in structure().items()), sep="\n")
        return
    verbose: bool = arguments.verbose
    walks = {name: asyncio.run(walk(follow)) for name, follow in WALKS.items()}
    print("| walk | files entered |\n|---|---:|")
    for name, files in walks.items():
        print(f"| {name} | {len(files)} |")
    for name, files in walks.items() if verbose else ():
        print(f"\n{name}:", *files, sep="\n  ")


if __name__ == "__main__":
    main()
