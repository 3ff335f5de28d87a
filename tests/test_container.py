"""The image copies files that are there, starts commands that exist, and its health check notices failures."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from typer.testing import CliRunner

from context_compiler.cli.root import app
from context_compiler.settings import KEYS, variable
from tests.support.pages import ROOT
from tests.support.postgres import PATIENCE_S, Cluster
from tests.support.warm import python

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COMPOSED = {
    name: yaml.safe_load((ROOT / "docker" / name).read_text(encoding="utf-8"))
    for name in ("compose.yaml", "compose.postgres.yaml")
}
SERVICES = {
    f"{file}: {name}": service
    for file, composed in COMPOSED.items()
    for name, service in composed["services"].items()
    if "build" in service
}
COMMANDS = [json.loads(re.findall(r"^CMD (.*)$", DOCKERFILE, re.M)[-1])]
COMMANDS += [service["command"] for service in SERVICES.values()]


@pytest.fixture
def healthcheck() -> Any:
    spec = spec_from_file_location("healthcheck", ROOT / "docker" / "healthcheck.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_all_copied_files_exist_and_reach_the_builder() -> None:
    copied = [one for line in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.M) for one in line.split()]
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[0] == "!"}
    assert len(copied) > 4
    assert not [one for one in copied if not (ROOT / one).exists() or one.split("/")[0] not in allowed]


def test_the_image_runs_without_rights_and_knows_its_variables() -> None:
    last = DOCKERFILE.rpartition("\nFROM ")[2]
    assert re.search(r"^USER [1-9]\d+$", last, re.M) and "HEALTHCHECK" in last
    assert set(re.findall(r"CONTEXT_COMPILER_\w+", last)) <= {variable(key) for key in KEYS}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_the_commands_of_the_image_exist(command: list[str]) -> None:
    result = CliRunner().invoke(app, ["config", "show", "--json", *command])
    assert result.exit_code == 0, result.output
    given = {one["setting"] for one in json.loads(result.stdout)["settings"] if one["source"] == "argument"}
    assert given == {word for word in command if word.startswith("--")}


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
def test_a_service_is_built_from_the_image_and_reached_where_it_listens(service: dict[str, Any]) -> None:
    words = service["command"]
    assert (ROOT / "docker" / service["build"] / "Dockerfile").exists()
    assert {name for name in service.get("environment", ()) if name.startswith("CONTEXT_COMPILER_")} <= {
        variable(key) for key in KEYS
    }
    inside = [port.rpartition(":")[2] for port in service.get("ports", ())]
    assert inside == ([words[words.index("--port") + 1]] if "serve" in words else [])
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


@pytest.mark.parametrize("composed", COMPOSED.values(), ids=COMPOSED)
def test_volumes_health_checks_and_addresses_of_services_are_declared(composed: dict[str, Any]) -> None:
    services, volumes = composed["services"], set(composed.get("volumes", ()))
    assert {volume.partition(":")[0] for each in services.values() for volume in each.get("volumes", ())} == volumes
    for service in services.values():
        for name, condition in service.get("depends_on", {}).items():
            assert condition == {"condition": "service_healthy"} and services[name]["healthcheck"]["test"][0] == "CMD"
        address = service.get("environment", {}).get("CONTEXT_COMPILER_DB", "")
        if address.startswith("postgresql://"):
            match = re.fullmatch(r"postgresql://(\w+)@(\w+)/(\w+)", address)
            assert match is not None and match[2] in service["depends_on"]
            settings = services[match[2]]["environment"]
            assert (settings["POSTGRES_USER"], settings["POSTGRES_DB"]) == (match[1], match[3])
            assert settings["POSTGRES_PASSWORD"] == service["environment"]["PGPASSWORD"]


def test_a_worker_is_healthy_while_its_runs_can_be_read(
    healthcheck: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("CONTEXT_COMPILER_RUNS", "runs.db")
    monkeypatch.setattr(sys, "executable", python())
    assert healthcheck.is_healthy(["context-compiler", "worker"])
    (tmp_path / "runs.db").write_bytes(b"no database" * 1_000)
    assert not healthcheck.is_healthy(["context-compiler", "worker"])


def test_a_server_is_healthy_while_it_answers(healthcheck: Any, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = ["serve", "--host", "0.0.0.0", "--port", port, "--model", "scripted"]
    assert not healthcheck.is_healthy(words)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}  # its address must be printed at once
    command = [python(), "-m", "context_compiler", *words]
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None and b"token=" in process.stdout.readline()
            assert healthcheck.is_healthy(words), "it answers with 401, because it was given no token"
        finally:
            process.kill()


def test_the_services_of_the_postgres_file_work_together(tmp_path: Path, postgres: Cluster, healthcheck: Any) -> None:
    """The commands of the file as processes, in the environment that it gives them, on an empty database."""
    services, name = COMPOSED["compose.postgres.yaml"]["services"], f"composed_{uuid4().hex}"
    postgres.run(f"CREATE DATABASE {name} TEMPLATE template0")
    url = postgres.url(name, port=postgres.port)
    variables = services["worker"]["environment"]
    environment = {key: value.replace("postgresql://context@database/context", url) for key, value in variables.items()}
    environment = {**os.environ, **environment, "PGPASSWORD": "any", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    program = [python(), "-m", "context_compiler"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    inspector = [port if word == "8000" else word for word in services["inspector"]["command"]]
    workers = [services["worker"]["command"]] * services["worker"]["deploy"]["replicas"]

    def run(*command: str) -> str:
        words = [*program, "pipeline", *command]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def has_ended() -> bool:
        return all("success" in run("status", f"run-{number}") for number in range(2))

    graph = "digraph g { start [shape=Mdiamond]; a; done [shape=Msquare]; start -> a -> done }"
    (tmp_path / "ship.dot").write_text(graph)
    running = [
        subprocess.Popen([*program, *words], cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
        for words in (*workers, inspector)
    ]
    try:
        for number in range(2):
            run("submit", "ship.dot", "--simulate", "--id", f"run-{number}")
        end = time.monotonic() + PATIENCE_S
        while not (has_ended() and healthcheck.is_healthy(inspector)):
            assert time.monotonic() < end
            time.sleep(0.5)
    finally:
        for process in running:
            process.terminate()
        codes = [process.wait(PATIENCE_S) for process in running]
        postgres.run(f"DROP DATABASE {name} WITH (FORCE)")
    assert codes[: len(workers)] == [0] * len(workers)
