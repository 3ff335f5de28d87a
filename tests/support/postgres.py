"""A PostgreSQL of the tests' own: one cluster for a whole run, one database for each test that wants one.

The cluster belongs to a keeper process, which ends it as soon as no test process is connected to it any more, however
those ended. `postgres_url` is the fixture for most tests; a test that kills its server starts a `Cluster` of its own.

python -m tests.support.postgres FOLDER    # the keeper
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from filelock import FileLock, Timeout

T = TypeVar("T")
PREFIX = "context-compiler-postgres-"
PATIENCE_S = 60.0
"""Seconds to wait for a server that starts, on a machine that does much else."""
ROOT = Path(__file__).parents[2]
OPTIONS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "100",
    "autovacuum": "off",
}
"""Settings of a server whose data nobody needs after the run."""


def programs() -> Path | None:
    """The folder of PostgreSQL's programs; None where it is not installed."""
    found = shutil.which("initdb")
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    return Path(found).resolve().parent if found else debian[-1].parent if debian else None


class Cluster:
    """A cluster in a folder, which is made on `start` and removed on `remove`.

    Args:
        folder: An existing, empty folder with a short path; a temporary one if None.
        port: The port on loopback; a free one if None.
        options: Settings instead of, or besides, `OPTIONS`.
    """

    def __init__(self, folder: Path | None = None, port: int | None = None, **options: str) -> None:
        self.folder = folder or Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))
        self.port = port or _free_port()
        self.options = OPTIONS | options
        self._lock = FileLock(self.folder / "lock")
        self._server: subprocess.Popen[bytes] | None = None
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:  # which PostgreSQL refuses to be
            self._as = {"user": "postgres", "group": "postgres", "extra_groups": []}

    def url(self, database: str = "postgres", *, port: int | None = None) -> str:
        """The address of a database: over the Unix socket, or over a port of loopback."""
        if port is None:
            return f"postgresql://postgres@/{database}?host={self.folder}&port={self.port}"
        return f"postgresql://postgres@127.0.0.1:{port}/{database}"

    def start(self) -> None:
        """Start the server and wait until it answers; also after `kill`."""
        binaries = programs()
        assert binaries is not None
        data = self.folder / "data"
        if not data.exists():
            self._lock.acquire()
            if self._as:
                shutil.chown(self.folder, "postgres", "postgres")
            command = [binaries / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C"]
            subprocess.run([*command, "--no-sync"], check=True, capture_output=True, cwd=self.folder, **self._as)
        options = {"listen_addresses": "127.0.0.1", "port": str(self.port), **self.options}
        settings = [piece for name, value in options.items() for piece in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._server = subprocess.Popen(
                [binaries / "postgres", "-D", data, "-k", self.folder, *settings],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                preexec_fn=_die_with_parent,
                **self._as,
            )
        end = time.monotonic() + PATIENCE_S
        while not self._ready():
            if self._server.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"PostgreSQL did not start: {(self.folder / 'log').read_text()[-2_000:]}")
            time.sleep(0.01)

    def _ready(self) -> bool:
        try:
            lines = (self.folder / "data" / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        assert self._server is not None
        return len(lines) > 7 and lines[0] == str(self._server.pid) and lines[7].strip() == "ready"

    def kill(self) -> None:
        """End the server as a power failure would: no process of it writes anything more."""
        self._end(signal.SIGQUIT)

    def stop(self) -> None:
        """End the server; connections are closed."""
        self._end(signal.SIGINT)

    def _end(self, how: signal.Signals) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.send_signal(how)
            server.wait(PATIENCE_S)

    def remove(self) -> None:
        """End the server and remove its folder."""
        self.kill()
        self._lock.release()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, statement: str, database: str = "postgres") -> list[Any]:
        """Run a statement from anywhere; its rows."""
        return run_alone(_run(self.url(database), "fetch", statement))

    def execute(self, statements: str, database: str = "postgres") -> None:
        """Run several statements from anywhere."""
        run_alone(_run(self.url(database), "execute", statements))


def run_alone(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a thread and a loop of its own, whatever runs here."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


async def _run(url: str, how: str, statement: str) -> Any:
    asyncpg = pytest.importorskip("asyncpg")
    connection = await asyncpg.connect(url)
    try:
        return await getattr(connection, how)(statement)
    finally:
        await connection.close()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _die_with_parent() -> None:
    """Have the kernel end this process with its parent, where it can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGQUIT)


def _reap() -> None:
    """Remove what keepers left behind that were killed themselves."""
    for folder in Path("/tmp").glob(f"{PREFIX}*"):
        with suppress(Timeout, OSError), FileLock(folder / "lock", timeout=0):
            if (folder / "data").exists():
                shutil.rmtree(folder, ignore_errors=True)


def keep(cluster: Cluster) -> None:
    """Run a cluster until the last process that is connected to `holders` has gone."""
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(cluster.folder / "holders"))
        door.listen(64)
        print(cluster.port, flush=True)
        holders: set[socket.socket] = set()
        while ready := select.select([door, *holders], [], [], None if holders else PATIENCE_S)[0]:
            for endpoint in ready:
                if endpoint is door:
                    holders.add(door.accept()[0])
                elif not endpoint.recv(1):
                    holders.remove(endpoint)
            if not holders:
                break


def _join(folder: Path) -> tuple[Cluster, socket.socket] | None:
    """The cluster of a keeper, and the connection that keeps it; None if it has gone."""
    holder = socket.socket(socket.AF_UNIX)
    try:
        holder.connect(str(folder / "holders"))
    except OSError:
        holder.close()
        return None
    return Cluster(folder, int((folder / "port").read_text())), holder


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster of this run, for all of its processes."""
    pytest.importorskip("asyncpg", reason="asyncpg is not installed")
    if programs() is None:
        pytest.skip("PostgreSQL is not installed")
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    note = shared / "postgres"
    with FileLock(shared / "postgres.lock"):
        joined = _join(Path(note.read_text())) if note.exists() else None
        if joined is None:
            _reap()
            folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))
            command = [sys.executable, "-m", "tests.support.postgres", str(folder)]
            keeper = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True, text=True
            )
            with keeper, keeper.stdout as answer:  # pyright: ignore[reportOptionalContextManager]
                port = answer.readline()
                assert port, "PostgreSQL did not start; its reason is above"
                keeper.returncode = 0  # it outlives this process, if another one uses it
            (folder / "port").write_text(port)
            note.write_text(str(folder))
            joined = _join(folder)
    assert joined is not None
    cluster, holder = joined
    with holder:
        yield cluster


@pytest.fixture
def postgres_url(postgres: Cluster) -> Iterator[str]:
    """The address of an empty database, which is removed after the test with all connections to it."""
    name = f"test_{uuid4().hex}"
    postgres.run(f"CREATE DATABASE {name} TEMPLATE template0")
    yield postgres.url(name)
    postgres.run(f"DROP DATABASE {name} WITH (FORCE)")


def main(folder: Path) -> None:
    """Be the keeper of a cluster in a folder."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests; their end is this process's end
    cluster = Cluster(folder)
    try:
        cluster.start()
        keep(cluster)
    finally:
        cluster.remove()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
