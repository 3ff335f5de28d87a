"""Text of files that people and their tools write, with any line ends, and with or without a byte order mark."""

from __future__ import annotations

import codecs
from pathlib import Path

_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (codecs.BOM_UTF8, "utf-8"),
)
"""Byte order marks, with the encodings that they announce."""


def encoding_of(data: bytes) -> str:
    """Encoding that the byte order mark of a file announces; UTF-8 if it has none."""
    return next((encoding for mark, encoding in _MARKS if data.startswith(mark)), "utf-8")


def decode_text(data: bytes, errors: str = "strict") -> str:
    r"""Decode the content of a file, without its byte order mark and with `\n` at the end of each line.

    Raises:
        UnicodeDecodeError: `errors` is strict, and the content is not in the encoding of its mark.
    """
    return unify_lines(data.decode(encoding_of(data), errors).removeprefix("\ufeff"))


def read_text(path: Path) -> str:
    """Read a text file as `decode_text` does.

    Raises:
        OSError: The file cannot be read.
        UnicodeDecodeError: It is not text in the encoding of its mark.
    """
    return decode_text(path.read_bytes())


def unify_lines(text: str) -> str:
    r"""Replace the line ends `\r\n` and `\r` by `\n`."""
    return text.replace("\r\n", "\n").replace("\r", "\n")
