"""Token cost of images, audio, video and documents, by the providers' public rules.

A message may be sent to any provider, so each kind of medium has a single cost: the highest that any provider's rule
gives for a request without a level of detail. The table is in tokens; (a) to (c) refer to the pages below.

| kind     | OpenAI (a)                                | Anthropic (b)                | Google (c)              |
|----------|-------------------------------------------|------------------------------|-------------------------|
| image    | 85 + 170 a tile of 512 px, fitted into    | 1 a patch of 28 px, fitted   | 258 a tile of 768 px;   |
|          | 2,048 px and its short side into 768 px;  | into 2,576 px and 4,784      | from Gemini 3 on up to  |
|          | small models 1.62 a patch of 32 px, with  | patches (older models 1,568  | 1,120 an image          |
|          | at most 1,536 patches                     | and 1,568)                   |                         |
| audio    | 10 a second                               | not accepted                 | 32 a second             |
| video    | not accepted                              | not accepted                 | about 300 a second      |
| document | its text, and an image of each page       | 1,500 to 3,000 a page        | 258 to 560 a page       |

So an image costs at least 1,120 and more by its size, or 1,600 if its size cannot be read. A second of audio costs 32,
a second of video 300, and a page of a document 3,000.

(a) https://platform.openai.com/docs/guides/images-vision, /guides/pdf-files, /guides/realtime-costs
(b) https://platform.claude.com/docs/en/build-with-claude/vision, /pdf-support
(c) https://ai.google.dev/gemini-api/docs/tokens, /media-resolution, /video-understanding

The 2.46 tokens per patch of OpenAI's nano models and levels of detail set by the caller are ignored deliberately. Sizes
and durations are read from headers, or else estimated from the number of bytes. Because headers cannot be trusted,
nothing here raises, loops for long or returns more than a provider would accept.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import ceil, sqrt
from typing import Literal

UNREAD_IMAGE = 1_600
"""Tokens of an image of unknown size, which is taken to have about 1.2 megapixels."""
GOOGLE_IMAGE = 1_120
"""Maximum tokens of an image at Google."""

SOUND_A_SECOND, FILM_A_SECOND, PAGE = 32, 300, 3_000
UNREAD_SECONDS = 60.0
MAX_SECONDS = 9.5 * 3600
"""Seconds of the longest recording that any of the three providers accepts."""
UNREAD_PAGES, MAX_PAGES = 1, 1_000

BYTES_A_PAGE = 30_000
SOUND_BYTES_A_SECOND = 8_000.0
"""64 kbit/s, less than music has, so that a duration estimated from bytes is too long rather than too short."""
FILM_BYTES_A_SECOND = 100_000.0

MAX_SEGMENTS = 1_000
"""Maximum segments of a JPEG that are searched for its size."""

_PAGE_OBJECT = re.compile(rb"/Type\s{0,8}/Page(?![A-Za-z])")
_LINEARIZED = re.compile(rb"/Linearized\b[^>]*/N\s{1,8}(\d{1,6})\b")


def image_tokens(data: bytes | None) -> int:
    """Tokens of an image (PNG, JPEG, GIF or WebP); `data` is None if there is only a URL or an uploaded file."""
    width, height = image_size(data or b"")
    if width < 1 or height < 1:
        return UNREAD_IMAGE
    return max(_tiles(width, height), _patches(width, height), _fine_patches(width, height), GOOGLE_IMAGE)


def audio_tokens(data: bytes | None) -> int:
    """Tokens of an audio recording; those of one minute if there is no data."""
    return ceil(_seconds(data, SOUND_BYTES_A_SECOND) * SOUND_A_SECOND)


def video_tokens(data: bytes | None) -> int:
    """Tokens of a video including its sound; those of one minute if there is no data."""
    return ceil(_seconds(data, FILM_BYTES_A_SECOND) * FILM_A_SECOND)


def document_tokens(data: bytes | None) -> int:
    """Tokens of a PDF or other document that is not plain text; those of one page if there is no data."""
    return PAGE * (_pages(data) if data else UNREAD_PAGES)


def image_size(data: bytes) -> tuple[int, int]:
    """Width and height in pixels from the file's header; (0, 0) if it cannot be read."""
    return next((read(data) for magic, read in _SIZES.items() if data.startswith(magic)), (0, 0))


def _webp(data: bytes) -> tuple[int, int]:
    match data[8:16]:
        case b"WEBPVP8 ":
            return _number(data[26:28]) & 0x3FFF, _number(data[28:30]) & 0x3FFF
        case b"WEBPVP8L":
            bits = _number(data[21:25])
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"WEBPVP8X":
            return _number(data[24:27]) + 1, _number(data[27:30]) + 1
        case _:
            return 0, 0


def _jpeg(data: bytes) -> tuple[int, int]:
    offset = 2
    for _ in range(MAX_SEGMENTS):
        marker = data[offset + 1 : offset + 2]
        if data[offset : offset + 1] != b"\xff" or not marker:
            break
        if marker == b"\xff":  # padding
            offset += 1
            continue
        if 0xC0 <= marker[0] <= 0xCF and marker[0] not in (0xC4, 0xC8, 0xCC):  # a frame header, not a table
            return _number(data[offset + 7 : offset + 9], "big"), _number(data[offset + 5 : offset + 7], "big")
        offset += 2 + _number(data[offset + 2 : offset + 4], "big")
    return 0, 0


_SIZES: dict[bytes, Callable[[bytes], tuple[int, int]]] = {
    b"\x89PNG\r\n\x1a\n": lambda data: (_number(data[16:20], "big"), _number(data[20:24], "big")),
    b"\xff\xd8": _jpeg,
    b"GIF8": lambda data: (_number(data[6:8]), _number(data[8:10])),
    b"RIFF": _webp,
}


def _tiles(width: int, height: int) -> int:
    fit = min(1.0, 2048 / max(width, height), 768 / min(width, height))
    return 85 + 170 * ceil(width * fit / 512) * ceil(height * fit / 512)


def _patches(width: int, height: int) -> int:
    return ceil(1.62 * min(1_536, ceil(width / 32) * ceil(height / 32)))


def _fine_patches(width: int, height: int) -> int:
    fit = min(1.0, 2576 / max(width, height), sqrt(4_784 * 28 * 28 / (width * height)))
    return min(4_784, ceil(width * fit / 28) * ceil(height * fit / 28))


def _seconds(data: bytes | None, bytes_a_second: float) -> float:
    if not data:
        return UNREAD_SECONDS
    seconds = _wav_seconds(data) or _mp4_seconds(data) or len(data) / bytes_a_second
    return min(max(seconds, 1.0), MAX_SECONDS)


def _wav_seconds(data: bytes) -> float:
    rate = _number(data[28:32]) if data.startswith(b"RIFF") and data[8:16] == b"WAVEfmt " else 0
    return len(data) / rate if rate else 0.0


def _mp4_seconds(data: bytes) -> float:
    offset = data.find(b"mvhd") + 4
    if offset < 4 or data[4:8] != b"ftyp":
        return 0.0
    wide = data[offset : offset + 1] == b"\x01"
    scale = data[offset + 20 : offset + 24] if wide else data[offset + 12 : offset + 16]
    length = data[offset + 24 : offset + 32] if wide else data[offset + 16 : offset + 20]
    return _number(length, "big") / (_number(scale, "big") or 1)


def _pages(data: bytes) -> int:
    pages = 0
    if data.startswith(b"%PDF"):  # page objects may be hidden in compressed streams, so the header counts too
        header = _LINEARIZED.search(data, 0, 1_024)
        pages = max(sum(1 for _ in _PAGE_OBJECT.finditer(data)), int(header[1]) if header else 0)
    return min(MAX_PAGES, pages or ceil(len(data) / BYTES_A_PAGE))


def _number(data: bytes, order: Literal["little", "big"] = "little") -> int:
    return int.from_bytes(data, order)
