"""The adapter for the Agent Memory Benchmark, with a made-up data set in the format of LoCoMo and scripted models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import amb
from benchmarks.amb import Document, Memory, locomo, score, turns
from tests.support.agents import Talker
from tests.support.histories import prose

ROOT = Path(__file__).parents[1]
FACTS = {
    2: ("Maria", "I moved to Trondheim last week.", "Where did Maria move?", "Trondheim"),
    4: ("Jon", "My bakery is called Golden Crumb.", "What is Jon's bakery called?", "Golden Crumb"),
    7: ("Maria", "The dentist found two cavities.", "How many cavities did the dentist find?", "two cavities"),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    said: dict[str, Any] = {"speaker_a": "Maria", "speaker_b": "Jon"}
    for number in range(1, 11):
        lines = [
            {
                "speaker": ("Maria", "Jon")[turn % 2],
                "dia_id": f"D{number}:{turn}",
                "text": prose(number * 20 + turn, 25),
            }
            for turn in range(6)
        ]
        if number in FACTS:
            lines.append({"speaker": FACTS[number][0], "dia_id": f"D{number}:6", "text": FACTS[number][1]})
        said[f"session_{number}"] = lines
        said[f"session_{number}_date_time"] = f"1:56 pm on {number} May, 2023"
    asked = [
        {"question": question, "answer": answer, "evidence": [f"D{number}:6"], "category": 1}
        for number, (_, _, question, answer) in FACTS.items()
    ]
    asked.append({"question": "What is her sister called?", "adversarial_answer": "Anna", "category": 5})
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps([{"sample_id": "conv-1", "conversation": said, "qa": asked}]))
    return path


async def test_the_request_of_a_live_agent_contains_the_answer(file: Path) -> None:
    memory = Memory(budget=1_500)
    assert await score(file, memory) == (3, 3)
    [view], raw = await memory.async_retrieve("Where did Maria move?", user_id="conv-1")
    assert raw is None and "Maria: I moved to Trondheim" in view.content
    assert "Where did Maria move?" not in view.content and len(view.content) < len(file.read_text()) / 2


async def test_without_recall_the_script_finds_less(file: Path) -> None:
    memory = Memory(budget=1_000)
    assert await score(file, memory) == (3, 3)
    memory = Memory(budget=1_000)
    memory._compiler.recall = 0
    correct, asked = await score(file, memory)
    assert correct < asked == 3


async def test_an_agent_answers_with_a_model_of_its_own(file: Path) -> None:
    talker = Talker("In Trondheim.")
    memory = Memory(budget=1_500, model=talker.model)
    [(documents, _)] = locomo(file)
    await memory.async_ingest(documents)
    answer, context, _ = await memory.async_direct_answer("Where did Maria move?", "conv-1", "2023-06-01")
    assert answer == "In Trondheim." and "Trondheim" in context and "It is 2023-06-01" in talker.last.text
    assert talker.last.tokens <= 1_500


def test_users_are_separate_and_unknown_ones_have_nothing() -> None:
    memory = Memory()
    memory.ingest([Document(id="a", content="The code is 4711.", user_id="a")])
    memory.ingest([Document(id="b", content="The code is 8822.", user_id="b")])
    [found], _ = memory.retrieve("What is the code?", user_id="b")
    assert "8822" in found.content and "4711" not in found.content
    assert memory.retrieve("What is the code?", user_id="c") == ([], None)


def test_sessions_become_turns_whichever_side_begins() -> None:
    messages = [{"role": "assistant", "content": "Hi."}, {"role": "user", "content": "Yes?"}]
    document = Document(id="a", content="", messages=messages, timestamp="2023-05-08T13:56:00+00:00")
    assert list(turns(document)) == [("[2023-05-08 13:56]\nHello.", "Hi."), ("Yes?", "I see.")]
    later = Document(id="b", content=json.dumps([{"speaker": "A", "text": "x"}, {"speaker": "B", "text": "y"}]))
    assert list(turns(later)) == [("A: x", "B: y")]
    assert list(turns(Document(id="c", content="plain"))) == [("plain", "I see.")]


PACKAGE = {
    "__init__.py": "",
    "models.py": "from dataclasses import dataclass\n\n@dataclass\nclass Document:\n    id: str\n    content: str\n"
    "    user_id: str | None = None\n    messages: list | None = None\n    timestamp: str | None = None\n",
    "memory/__init__.py": "REGISTRY = {}\n",
    "memory/base.py": "class MemoryProvider:\n    concurrency = 4\n    def initialize(self): pass\n",
    "cli.py": "from .memory import REGISTRY\nfrom .models import Document\n\ndef app():\n"
    "    memory = REGISTRY['context-compiler']()\n    memory.initialize()\n"
    "    memory.ingest([Document(id='a', content='The code is 4711.', user_id='u')])\n"
    "    found, _ = memory.retrieve('What is the code?', k=3, user_id='u')\n"
    "    print(type(found[0]).__module__, found[0].content.split('\\n')[0], memory.concurrency)\n",
}


def test_the_command_line_of_the_benchmark_knows_this_memory(tmp_path: Path) -> None:
    """A stand-in with the benchmark's module names: the real one needs a dozen further packages."""
    for name, body in PACKAGE.items():
        (tmp_path / "memory_bench" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "memory_bench" / name).write_text(body)
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.amb", "run"],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "memory_bench.models The code is 4711. 1"


def test_without_the_benchmark_its_command_points_to_the_documentation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["amb", "run"])
    with pytest.raises(SystemExit) as ended:
        amb.main()
    assert ended.value.code == 2 and "docs/benchmarks/others.md" in capsys.readouterr().err
