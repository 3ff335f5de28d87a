"""The coding session of the examples through a real HTTP server that is as strict as providers are."""

from __future__ import annotations

import importlib.util
from types import ModuleType
from typing import Any

import pytest

from context_compiler import View
from tests.support.loopback import Step
from tests.support.openai_server import TemplateServer
from tests.support.sources import ROOT
from tests.support.wire import Body


@pytest.fixture
def session() -> ModuleType:
    spec = importlib.util.spec_from_file_location("coding_agent", ROOT / "examples" / "coding_agent.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def texts(message: dict[str, Any]) -> list[str]:
    """Texts of a message as a provider receives it."""
    content = message.get("content") or ""
    return [content] if isinstance(content, str) else [part["text"] for part in content]


def answering(session: ModuleType, without: str = "") -> Any:
    """A model that decides by what it receives; it is blind to lines that contain `without`."""

    def answer(body: Body) -> Step:
        messages = body["messages"]
        prompt = next(texts(message)[-1] for message in reversed(messages) if message["role"] == "user")
        lines = "\n".join(text for message in messages for text in texts(message)).splitlines()
        asked = prompt.splitlines()[-1]
        step = session.decide(asked, "\n".join(line for line in lines if not without or without not in line))
        return step if isinstance(step, str) else [("read_file", {"path": path}) for path in step]

    return answer


def test_no_file_is_read_twice_in_a_session_of_sixty_prompts(session: ModuleType) -> None:
    views: list[View] = []
    with TemplateServer(answering(session)) as server:
        answers, reads = session.work(server.model("some-coder"), views)
    assert len(answers) == session.TURNS == 60 and len(reads) == 60 and set(reads.values()) == {1}
    assert not server.refusals and set(server.statuses) == {200}
    sent = [view.record.tokens_sent for view in views if view.record is not None]
    assert len(sent) == len(server.statuses) and max(sent) <= views[-1].budget == 32_000
    assert {"raw", "compiled", "cycle"} <= {view.status for view in views}
    for turn, answer in enumerate(answers):
        retries, other = session.retries(turn), session.retries(turn + 1)
        assert answer == (
            str(session.retries(turn // 2 * 11 % turn)) if turn % 2 else f"module_{turn + (other > retries)}.py"
        )


def test_the_model_reads_again_what_a_request_does_not_show(session: ModuleType) -> None:
    with TemplateServer(answering(session, without="RETRIES_0 =")) as server, pytest.raises(Exception, match="limit"):
        session.work(server.model("some-coder"), [])
