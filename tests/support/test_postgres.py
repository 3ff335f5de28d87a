"""The tests' own PostgreSQL: a database for each test, and no server that outlives its users."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.support.postgres import PREFIX, ROOT, Cluster

HOLDER = """
import sys, time, pytest

class Said:
    @pytest.fixture(autouse=True)
    def say(self, postgres):
        print("FOLDER", postgres.folder, flush=True)
        time.sleep(600)

sys.exit(pytest.main(["-q", "-s", "-p", "no:cacheprovider", "tests/support/test_postgres.py::test_nothing"], [Said()]))
"""


def test_nothing():
    """A test for the run that is killed."""


def test_a_database_is_empty_and_alone(postgres: Cluster, postgres_url: str):
    name = postgres_url.partition("?")[0].rpartition("/")[2]
    postgres.run("CREATE TABLE here (n int)", name)
    assert postgres.run("SELECT * FROM here", name) == []
    assert [tuple(row) for row in postgres.run("SHOW fsync", name)] == [("off",)]


def test_a_run_that_is_killed_leaves_no_server_behind(postgres: Cluster):
    with subprocess.Popen([sys.executable, "-c", HOLDER], cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        folder = next(Path(line.split()[-1]) for line in run.stdout if line.startswith("FOLDER"))
        pid = int((folder / "data" / "postmaster.pid").read_text().splitlines()[0])
        run.send_signal(signal.SIGKILL)
    end = time.monotonic() + 60
    while folder.exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert not folder.exists() and folder.name.startswith(PREFIX)
    assert not Path(f"/proc/{pid}").exists()
    assert postgres.run("SELECT 1")
