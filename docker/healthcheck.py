"""Exit with 0 if the program of this container works: its server answers, or its store of runs can be read."""

from __future__ import annotations

import http.client
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def is_healthy(words: Sequence[str]) -> bool:
    """True if the program that was started with these words works; a server that asks for its token does."""
    if "serve" not in words:
        listing = [sys.executable, "-m", "context_compiler", "pipeline", "runs", "--json"]
        return subprocess.run(listing, stdout=subprocess.DEVNULL, check=False).returncode == 0
    port = int(words[words.index("--port") + 1]) if "--port" in words else 8000
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status < 500
    except OSError:
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    started = Path("/proc/1/cmdline").read_bytes().decode().split("\0")
    sys.exit(0 if is_healthy(started) else 1)
