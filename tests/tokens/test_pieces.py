from __future__ import annotations

import base64
import random
from collections.abc import Sequence

import pytest

from context_compiler.tokens import PIECE, TokenCounter, pieces
from tests.support.o200k import theirs

GRAINS = ["word", "Don't", "x1y2", "12345", " ", "  ", "\t", "\n", "\r\n", "\n\n", "/", "//", ".", "...", "'s"]
GRAINS += ["。", "，", "我们", "é", "e\u0301", "😀", "_", '"', "{", "}", "-", "\u00a0", "\u2028"]
GRAINS += ["ABCdef", "٣٤", "Ⅷ", "²", "'LL", "we've", "I'd", "!?", "\x1c"]


def long_text(seed: int, grains: Sequence[str] = tuple(GRAINS)) -> str:
    """Words, signs, numbers and white space of all kinds, in no order."""
    return "".join(random.Random(seed).choices(grains, k=60_000))


@pytest.mark.parametrize("seed", range(6))
def test_cutting_a_long_text_into_pieces_changes_no_count(seed: int) -> None:
    text = long_text(seed)
    assert len(text) > 2 * PIECE
    assert TokenCounter().text(text) == len(theirs().encode_ordinary(text))


@pytest.mark.parametrize("seed", range(3))
def test_a_list_counts_like_its_text_even_after_a_few_items_change(seed: int) -> None:
    dice, counter = random.Random(seed), TokenCounter()
    items = ["".join(dice.choices(GRAINS, k=dice.choice((0, 1, 6, 20, 200)))) for _ in range(400)]
    for _ in range(3):
        text = "\n- ".join(items)
        assert counter.text(text) == len(theirs().encode_ordinary(text))
        items[dice.randrange(len(items))] += dice.choice(GRAINS)
        items.pop(dice.randrange(len(items)))


@pytest.mark.parametrize("seed", range(4))
def test_labelled_lines_count_like_their_text(seed: int) -> None:
    dice, counter = random.Random(seed), TokenCounter()
    grains = [*GRAINS, "[", "]", "] ", "\n[", "[14 user] ", "\n[from turn 3 · 2024-05-15 · user] "]
    for _ in range(60):
        text = "".join(dice.choices(grains, k=dice.choice((0, 1, 6, 20, 400))))
        assert TokenCounter().labelled(text) == counter.labelled(text) == len(theirs().encode_ordinary(text))
    assert TokenCounter(len).labelled("[14 user] hello\n[15 user] you") == 29


@pytest.mark.parametrize("grains", [GRAINS, [".\n", "/", "a\n"]], ids=["all", "lines"])
def test_every_cut_is_safe_wherever_a_piece_ends(grains: list[str]) -> None:
    text = long_text(7, grains)[:PIECE]
    whole = len(theirs().encode_ordinary(text))
    for shift in range(1, 60):
        first, second = pieces("x" * shift + "\n" + text)
        first = first[shift + 1 :]
        assert len(theirs().encode_ordinary(first)) + len(theirs().encode_ordinary(second)) == whole


def test_text_without_safe_cuts_is_off_by_a_few_tokens() -> None:
    text = base64.b64encode(random.Random(2).randbytes(150_000)).decode().replace("/", "a").replace("+", "b")
    assert abs(TokenCounter().text(text) - len(theirs().encode_ordinary(text))) <= 2 * (len(text) // PIECE)


def test_pieces_add_up_to_the_text_and_keep_surrogates_together() -> None:
    text = "a" + "\ud83d\ude00" * 80_000
    cut = list(pieces(text))
    assert "".join(cut) == text
    assert not any(piece[0] == "\ude00" for piece in cut)
