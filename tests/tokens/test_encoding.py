from __future__ import annotations

import lzma
import shutil
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

import context_compiler
from context_compiler import tokens
from context_compiler.tokens import TokenCounter
from tests.support.o200k import published

PACKAGE = Path(context_compiler.__file__).parent


def test_the_packed_ranks_are_the_published_ones() -> None:
    assert sha256(published()).hexdigest() == tokens.PUBLISHED


PROGRAM = """
import logging, sys
logging.basicConfig(format="%(levelname)s %(message)s")
refused = []
sys.addaudithook(lambda event, args: refused.append(event) if event.startswith("socket.") else None)
{before}
from context_compiler.tokens import TokenCounter
print("tiktoken" in sys.modules)
counter = TokenCounter()
print(counter.text("Hello, world!"), counter.text("x" * 100), counter.head("word " * 50, 10) != "")
print(refused)
"""


def run(package: Path, before: str = "") -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(before=before)
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=package.parent, capture_output=True, text=True, check=True, timeout=300)


def copied(to: Path) -> Path:
    return Path(shutil.copytree(PACKAGE, to / "context_compiler", ignore=shutil.ignore_patterns("__pycache__")))


def test_importing_loads_nothing_and_counting_opens_no_socket() -> None:
    done = run(PACKAGE)
    assert done.stdout.splitlines() == ["False", "4 13 True", "[]"]
    assert not done.stderr


def missing(packed: Path) -> None:
    packed.unlink()


def cut_off(packed: Path) -> None:
    packed.write_bytes(packed.read_bytes()[:100_000])


def changed(packed: Path) -> None:
    packed.write_bytes(lzma.compress(lzma.decompress(packed.read_bytes()).replace(b"token", b"nekot")))


@pytest.mark.parametrize("harm", [missing, cut_off, changed])
def test_without_valid_ranks_size_is_counted_with_one_warning(harm: Callable[[Path], None], tmp_path: Path) -> None:
    package = copied(tmp_path)
    harm(package / "data" / "o200k.xz")
    done = run(package)
    assert done.stdout.splitlines()[1] == "7 50 True"
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("WARNING the o200k ranks cannot be read")


def test_without_tiktoken_size_is_counted() -> None:
    done = run(PACKAGE, before="sys.modules['tiktoken'] = None")
    assert "7 50 True" in done.stdout
    assert done.stderr.count("WARNING") == 1


def test_altered_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="reinstall"):
        tokens.unpack_ranks(lzma.compress(b"\x01a\x01b"))


def test_an_estimate_is_at_least_the_count_of_ordinary_text(tmp_path: Path) -> None:
    package = copied(tmp_path)
    (package / "data" / "o200k.xz").unlink()
    texts = [
        "The quick brown fox doesn't jump; it's 1,234.5 km away. " * 30,
        "今天天气很好，我们去公园散步吧。これはテストです。東京タワーへ行きました。",
        "مرحبا بالعالم، كيف حالك اليوم؟",
        "def f(x: int) -> str:\n\treturn f'{x!r}'  # why\n\n\nclass A(B):\n    pass\r\n",
    ]
    program = f"from context_compiler.tokens import TokenCounter as C; print([C().text(text) for text in {texts!r}])"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=300)
    estimates = [int(number) for number in done.stdout.strip("[]\n").split(",")]
    assert all(estimate >= TokenCounter().text(text) for estimate, text in zip(estimates, texts, strict=True))
