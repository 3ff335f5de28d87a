"""What holds for every module: size, direction of imports, where failures are swallowed, what things are called."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Callable, Iterator
from functools import cache

import pytest

from tests.support.sources import MODULES, PACKAGE, ROOT, nodes, text, tree

pytestmark = pytest.mark.slow  # whichever is first reads all modules for all; `make lint` runs them

MOST_LINES = 600
MOST_CODE = 40

ALIASES = {"workflow"}
"""Public paths of names that live elsewhere: each loads them from there."""

BROAD = {
    "resilience": (3, "the one place that fails open, for plain and for awaited work; a thread hands its error over"),
    "tokens": (1, "the tokenizer's panic is no Exception, and a count must not end a run"),
    "cli.testing": (1, "an exit and a skip are no Exception, and one test must not end the others"),
}
"""Where `except Exception` or wider stands, how often, and why."""

DYNAMIC = {
    "lazy": "public names load when they are first used",
    "paths": "how the package was installed is read when an extra is missing",
    "compiler.facts": "the index of recall is needed when nothing has the words as they stand",
    "record.values": "HTML is written in a notebook",
    "messages.history": "the host is imported when one of its messages is read",
    "record.store": "PostgreSQL comes with an extra, and is needed when an address is opened",
    "chat.local_model": "server and client come with packages of their own, and are needed when a model is served",
    "testing.written": "pydantic_evals comes with an extra, and is needed when a case is added to a dataset",
    "middleware.harness": "the harness comes with an extra, and is needed when its search asks",
    "tokens.prices": "the table of prices is read when something is priced",
    "tokens": "the encoder is built when something is counted",
    "pipeline.dot": "the parser comes with an extra, and is needed when a graph is read",
    "pipeline.run": "PostgreSQL comes with an extra, and is needed when runs are kept there",
    "pipeline.interviewers": "terminals are of another kind on some systems",
    "cli": "a Ctrl-C while the commands are imported ends the program with one line",
    "cli.chat.prompt": "terminals are of another kind on some systems",
    "cli.chat": "the prompt is there before the host is imported",
    "cli.root": "a command loads when it is called",
    "cli.deferred": "a command or its text loads when it is needed",
    "cli.view_text": "tools are counted when they are shown",
    "cli.serve": "the pages come with an extra, and are needed when they are served",
    "cli.drawing": "matplotlib comes with an extra, and is needed when something is drawn",
}
"""Where a module is imported by a name in a string, and why."""

NAMED_SO = {"manager.manager": ("ContextManager", "the design that it follows calls it so, and so do its users")}
"""Classes whose names say little, and why."""

LATER = re.compile(r"TODO|FIXME|XXX|(type|pyright): ignore(?!\[\w)")

VAGUE = re.compile(r"(Manager|Helper|Utils?|Base|Impl)\b")


def functions(module: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from nodes(module, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def source_lines(module: str) -> list[str]:
    return text(module).splitlines()


def code_lines(module: str, function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a body that hold code: no docstring, no signature, no blank lines, no comments."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    if not body or function.end_lineno is None:
        return 0
    lines = source_lines(module)[body[0].lineno - 1 : function.end_lineno]
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in lines)


@cache
def imported(module: str) -> frozenset[str]:
    """The modules of this package that a module imports by statement."""
    names: set[str] = set()
    for node in nodes(module, ast.Import):
        names |= {alias.name for alias in node.names}
    for node in nodes(module, ast.ImportFrom):
        if node.module:
            assert not node.level, f"{module}: relative import on line {node.lineno}"
            below = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = {name for name in below if name.removeprefix("context_compiler.") in MODULES}
            names |= modules or {node.module}
    ours = (name for name in names if name.split(".")[0] == "context_compiler")
    return frozenset(name.removeprefix("context_compiler").removeprefix(".") for name in ours)


def wrong(check: Callable[[str], object]) -> dict[str, object]:
    """What a check finds, by module; only where it finds something."""
    return {module: found for module in MODULES if (found := check(module))}


def test_a_module_fits_on_a_few_screens() -> None:
    assert not wrong(lambda module: len(text(module).splitlines()) > MOST_LINES)


def test_a_function_fits_on_one_screen() -> None:
    sizes = {f"{module}.{one.name}": code_lines(module, one) for module in MODULES for one in functions(module)}
    assert not {name: size for name, size in sizes.items() if size >= MOST_CODE}


def test_a_module_describes_its_purpose() -> None:
    def silent(module: str) -> bool:
        docstring = ast.get_docstring(tree(module)) or ""
        return not docstring.partition("\n")[0].endswith((".", ":", ",", ";"))

    assert not wrong(silent)


def test_imports_are_at_the_top() -> None:
    def inner(module: str) -> list[int]:
        top = {id(node) for node in tree(module).body}
        conditional = [node for test in tree(module).body if isinstance(test, ast.If | ast.Try) for node in test.body]
        top |= {id(node) for node in conditional}
        return [node.lineno for node in nodes(module, ast.Import, ast.ImportFrom) if id(node) not in top]

    assert not wrong(inner)


def test_modules_are_named_in_strings_only_for_a_listed_reason() -> None:
    assert wrong(lambda module: re.search(r"import_module\(|__import__\(", text(module))).keys() == DYNAMIC.keys()


def test_packages_import_downward_only() -> None:
    """The contract is in pyproject.toml, `[tool.importlinter]`."""
    command = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    run = subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_library_has_few_packages() -> None:
    tops = {name.split(".")[0] for name in MODULES if name and not name.startswith("__")} - ALIASES
    packages = {name for name in tops if (PACKAGE / name).is_dir()}
    assert len(packages) <= 14 and len(tops - packages) <= 8, sorted(tops)


def test_a_module_is_used_by_another_one() -> None:
    used = set().union(*(imported(module) - {module} for module in MODULES))
    naming = {*DYNAMIC, *(module for module in MODULES if "lazy_exports(__name__" in text(module))}
    loaded = {node.value for module in naming for node in nodes(module, ast.Constant) if isinstance(node.value, str)}
    reachable = {"", "__main__"} | {name.removeprefix("context_compiler.") for name in loaded}
    reachable |= {f"cli.{name}" for name in loaded} | {"testing.plugin"}  # pytest loads it by its entry point
    reachable |= {name for name in MODULES if name.split(".")[0] in ALIASES}
    reachable |= {name.rpartition(".")[0] for name in MODULES}
    assert not set(MODULES) - used - reachable


def test_failures_are_swallowed_only_where_that_has_a_reason() -> None:
    broad = {module: sum(map(_is_broad, nodes(module, ast.ExceptHandler, ast.Call))) for module in MODULES}
    assert {module: times for module, times in broad.items() if times} == {name: one[0] for name, one in BROAD.items()}


def _is_broad(node: ast.ExceptHandler | ast.Call) -> bool:
    """Whether it catches or suppresses every exception."""
    caught: list[ast.AST] = []
    if isinstance(node, ast.ExceptHandler):
        caught = [node.type or ast.Name(id="BaseException")]
    elif "suppress" in (getattr(node.func, "id", ""), getattr(node.func, "attr", "")):
        caught = [*node.args]
    names = {getattr(part, "id", "") for expression in caught for part in ast.walk(expression)}
    return bool(names & {"Exception", "BaseException"})


GUARDED = ("pydantic_ai._enqueue",)
"""Private modules of the host without which all works but what they were imported for; tests take them away."""


def test_only_the_public_api_of_the_host_is_used() -> None:
    def private(module: str) -> list[str]:
        names = re.findall(r"pydantic_(?:ai|graph)[\w.]*\._\w+", text(module))
        for node in nodes(module, ast.ImportFrom):
            if (node.module or "").split(".")[0] in ("pydantic_ai", "pydantic_graph"):
                names += [alias.name for alias in node.names if alias.name.startswith("_")]
        return [name for name in names if name not in GUARDED]

    assert not wrong(private)


def test_text_for_models_is_in_templates() -> None:
    def prose(module: str) -> list[str]:
        documentation = {id(node.value) for node in nodes(module, ast.Expr)}
        strings = [node for node in nodes(module, ast.Constant) if id(node) not in documentation]
        said = [node.value for node in strings if isinstance(node.value, str)]
        return [passage for passage in said if len(re.findall(r"[a-z]{2}[.!?]\s+[A-Z][a-z]", passage)) >= 2]

    assert not wrong(prose), "several sentences in a string: is that a prompt?"


def test_no_comment_postpones_work() -> None:
    def later(module: str) -> list[str]:
        if not LATER.search(text(module)):
            return []
        tokens = tokenize.generate_tokens(io.StringIO(text(module)).readline)
        return [token.string for token in tokens if token.type == tokenize.COMMENT and LATER.search(token.string)]

    assert not wrong(later)


def test_classes_are_named_after_what_they_are() -> None:
    def vague(module: str) -> list[str]:
        spared = NAMED_SO.get(module, ("",))[0]
        names = [node.name for node in nodes(module, ast.ClassDef)]
        return [name for name in names if VAGUE.search(name) and name != spared]

    assert not wrong(vague)
