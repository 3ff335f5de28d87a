"""What is shown of an entity or a step is one line that forges nothing and names no id of a database."""

from __future__ import annotations

import re

from context_compiler.messages.fences import neutral

CUT = "…"
ID = "[id]"
"""Stands where an id of a database was."""
UUID = re.compile(r"(?<![0-9A-Fa-f])[0-9A-Fa-f]{8}-?(?:[0-9A-Fa-f]{4}-?){3}[0-9A-Fa-f]{12}(?![0-9A-Fa-f])")
PENDING = re.compile(r"__pending__\w*")
_STEERING = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_REF = re.compile(r"(.*?)(\d+)\Z", re.DOTALL)


def text_in(given: object) -> str:
    """What somebody gave as a text, as one: a name that is a number, too; nothing is empty."""
    return "" if given is None else str(given)


def one_line(text: object, most: int = 0) -> str:
    """A text on one line without control and steering characters; with `most`, cut to so many with an ellipsis."""
    line = " ".join(neutral(_STEERING.sub("", " ".join(str(text).split()))).split())
    return f"{line[: most - 1].rstrip()}{CUT}" if most and len(line) > most else line


def without_ids(text: str) -> str:
    """The text with every id of a database taken out."""
    return PENDING.sub(ID, UUID.sub(ID, text)) if "-" in text or "__" in text or len(text) >= 32 else text


def label(text: object, most: int = 200) -> str:
    """A label that can stand beside a ref: one line, no id, also no half of one, no backticks to pass for a ref."""
    return one_line(without_ids(one_line(text)), most).replace("`", "'")


def paragraph(text: str) -> str:
    """A text of several lines below a line of ours: what follows its first line is indented, so it is no heading."""
    return "\n    ".join(line.rstrip() for line in neutral(_STEERING.sub("", text.strip())).split("\n"))


def ref_order(ref: str) -> tuple[str, int, str]:
    """Sorts `recipe_2` before `recipe_10`."""
    found = _REF.match(ref)
    return (found[1], int(found[2][:18]), ref) if found else (ref, 0, ref)
