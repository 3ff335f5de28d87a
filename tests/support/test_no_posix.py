"""Every module of the package can be imported where nothing of POSIX is there, and the plugin does hide it."""

from __future__ import annotations

import subprocess

from tests.support.sources import ROOT
from tests.support.warm import ANEW, python

LOOK = """
import importlib, pkgutil
import tests.support.no_posix as hiding
import context_compiler
from tests.support.sources import without_extras
for found in pkgutil.walk_packages(context_compiler.__path__, "context_compiler."):
    if not found.name.endswith("__main__") and found.name not in without_extras():
        importlib.import_module(found.name)
from context_compiler.cli.chat import prompt
from context_compiler.pipeline import shell
print(hasattr(shell.os, "killpg"), hasattr(shell.signal, "SIGKILL"), prompt._terminal, shell.os.name)
"""


def test_the_package_does_without_posix() -> None:
    run = subprocess.run(
        [python(), "-c", ANEW + LOOK], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert (run.stdout, run.returncode) == ("False False None nt\n", 0), run.stderr
