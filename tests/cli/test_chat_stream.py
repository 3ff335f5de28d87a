"""Answers on a terminal: whole blocks stay, the growing one is drawn, and nothing in them is obeyed or hidden."""

from __future__ import annotations

from io import StringIO

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from context_compiler.cli.chat.stream import Blocks, MarkdownStream, markdown

TABLE = "| a | b |\n|---|---|\n| 1 | 2 |\n"
CODE = "```python\ndef f():\n\n    return 1\n```\n"


def blocks(text: str, size: int) -> tuple[list[str], str]:
    """The blocks of a text that comes in pieces, and what is left growing."""
    heap = Blocks()
    done = [heap.add(text[at : at + size]) for at in range(0, len(text), size)]
    return [one for one in done if one], heap.tail


def shown(text: str, size: int = 7) -> str:
    console = Console(file=StringIO(), force_terminal=True, width=60, height=20, color_system=None)
    with MarkdownStream(console) as voice:
        for start in range(0, len(text), size):
            voice.write(text[start : start + size])
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_a_block_is_complete_when_an_empty_line_follows_it() -> None:
    assert blocks("One.\n\nTwo.\n\nThree.", 1) == (["One.\n\n", "Two.\n\n"], "Three.")


def test_an_empty_line_inside_a_code_block_does_not_end_it() -> None:
    assert blocks(f"{CODE}\nAfter.", 1) == ([f"{CODE}\n"], "After.")


@given(
    st.lists(st.sampled_from(["One.\n\n", "Two", "\n", TABLE, CODE, "~~~\nx\n\n", "````\n```\n"])), st.integers(1, 9)
)
def test_blocks_are_the_text_in_order(pieces: list[str], size: int) -> None:
    text = "".join(pieces)
    done, rest = blocks(text, size)
    assert "".join(done) + rest == text


def test_every_block_is_shown_by_the_end_of_the_answer() -> None:
    text = shown(f"First words.\n\n{TABLE}\n{CODE}\nLast words.")
    assert all(words in text for words in ("First words.", "return 1", "Last words."))


def test_control_characters_are_not_shown() -> None:
    text = shown("Look: \x1b]0;owned\x07\x1b[8mhidden\x9b2J \u202eback", 60)
    assert "hidden" in text and "back" in text
    assert not [one for one in ("\x1b]0;", "\x07", "\x1b[8m", "\x9b", "\u202e") if one in text]


def test_control_characters_written_as_html_entities_are_not_shown() -> None:
    text = shown("Pay &#8238;&#x202e;&rlm;&#x2066; me.\n\n| a&#8238; |\n|---|\n| b |\n", 60)
    assert "Pay" in text and "me." in text
    assert not [one for one in "\u202e\u200f\u2066" if one in text]


def test_a_link_shows_its_address_and_html_is_shown_as_text() -> None:
    console = Console(file=StringIO(), width=100)
    console.print(markdown("[your bank](https://evil.example) and <script>alert(1)</script>"))
    assert isinstance(console.file, StringIO)
    assert "https://evil.example" in console.file.getvalue()
    assert "<script>alert(1)</script>" in console.file.getvalue()


def test_an_answer_longer_than_the_screen_is_shown_whole() -> None:
    text = shown("\n".join(f"line {number}  " for number in range(60)))
    assert all(f"line {number}" in text for number in range(60))
