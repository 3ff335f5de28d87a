from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable

import pytest

from context_compiler.tokens import media_tokens
from context_compiler.tokens.media import audio_tokens, document_tokens, image_size, image_tokens, video_tokens


def png(width: int, height: int) -> bytes:
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\x00\x00\x00"


def jpeg(width: int, height: int) -> bytes:
    inside = struct.pack(">H", 2 + 300) + b"\xff\xc0" * 150
    return (
        b"\xff\xd8\xff\xe1"
        + inside
        + b"\xff\xc4"
        + inside
        + b"\xff\xff\xc2"
        + struct.pack(">HBHHB", 17, 8, height, width, 3)
        + b"\x00" * 9
    )


def webp(width: int, height: int) -> bytes:
    frame = b"\x00\x00\x00\x9d\x01\x2a" + struct.pack("<HH", width, height)
    return b"RIFF\x00\x00\x00\x00WEBPVP8 \x00\x00\x00\x00" + frame


def webp_lossless(width: int, height: int) -> bytes:
    return b"RIFF\x00\x00\x00\x00WEBPVP8L\x00\x00\x00\x00\x2f" + struct.pack("<I", width - 1 | height - 1 << 14)


def webp_extended(width: int, height: int) -> bytes:
    size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF\x00\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00\x00\x00\x00\x00" + size


SIZES = [(1_920, 1_080, 2_691), (1_024, 1_024, 1_659), (8_000, 8_000, 4_784)]
FORMATS = [png, gif, jpeg, webp, webp_lossless, webp_extended]


@pytest.mark.parametrize("image", FORMATS)
@pytest.mark.parametrize(("width", "height", "tokens"), SIZES)
def test_an_image_is_priced_by_its_size(
    image: Callable[[int, int], bytes], width: int, height: int, tokens: int
) -> None:
    assert image_tokens(image(width, height)) == tokens


@pytest.mark.parametrize("image", FORMATS)
def test_the_size_of_an_image_is_read_from_its_header(image: Callable[[int, int], bytes]) -> None:
    assert image_size(image(641, 479)) == (641, 479)


@pytest.mark.parametrize("data", [None, b"", b"no image", b"\x89PNG\r\n\x1a\n", png(0, 5), b"RIFF", b"\xff\xd8\xff"])
def test_an_image_of_unknown_size_has_a_medium_price(data: bytes | None) -> None:
    assert image_tokens(data) == 1_600


def test_a_small_image_has_the_minimum_of_the_most_expensive_provider() -> None:
    assert image_tokens(png(1, 1)) == 1_120


@pytest.mark.parametrize("image", FORMATS)
def test_a_truncated_header_never_raises(image: Callable[[int, int], bytes]) -> None:
    data = image(640, 480)
    for end in range(len(data)):
        assert 1_120 <= image_tokens(data[:end]) <= 4_784


def test_a_false_header_costs_no_more_than_the_largest_image() -> None:
    assert image_tokens(png(2**32 - 1, 2**32 - 1)) <= 4_784
    assert image_tokens(png(2**32 - 1, 1)) <= 4_784


def test_a_jpeg_of_endless_segments_is_given_up() -> None:
    assert image_size(b"\xff\xd8" + b"\xff\xe0\x00\x02" * 10 + jpeg(640, 480)[2:]) == (640, 480)
    assert image_size(b"\xff\xd8" + b"\xff\xe0\x00\x02" * 1_000 + jpeg(640, 480)[2:]) == (0, 0)
    assert image_tokens(b"\xff" * 1_000_000) == 1_600


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_have_a_cost_of_every_kind(seed: int) -> None:
    source = random.Random(seed)
    starts = [b"", b"%PDF-1.7 ", b"\xff\xd8", b"RIFF    WEBPVP8 ", b"RIFF    WAVEfmt ", b"    ftypmvhd\x01", b"GIF8"]
    for start in starts:
        data = start + source.randbytes(source.randrange(60))
        for kind in ("image/png", "audio/wav", "video/mp4", "application/pdf", "text/plain", "nonsense", ""):
            assert 0 < media_tokens(kind, data) <= 20_000_000


def wav(seconds: int) -> bytes:
    rate = 16_000
    header = b"RIFF\x00\x00\x00\x00WAVEfmt \x10\x00\x00\x00" + struct.pack("<HHIIHH", 1, 1, rate, rate * 2, 2, 16)
    return header + bytes(rate * 2 * seconds)


def mp4(seconds: int) -> bytes:
    times = struct.pack(">IIIII", 0, 0, 0, 600, 600 * seconds)
    return b"\x00\x00\x00\x18ftypisom" + b"\x00" * 12 + b"\x00\x00\x00\x6cmoov\x00\x00\x00\x64mvhd" + times


def test_audio_and_video_are_priced_by_the_second() -> None:
    assert audio_tokens(wav(10)) in range(320, 325)
    assert video_tokens(mp4(20)) == 6_000
    assert audio_tokens(mp4(20)) == 640
    assert audio_tokens(b"ID3" + bytes(80_000)) in range(320, 325)
    assert (audio_tokens(None), video_tokens(None)) == (1_920, 18_000)


def test_a_document_costs_by_the_page() -> None:
    pages = b"".join(b"%d 0 obj <</Type /Page /Parent 1 0 R>> endobj\n" % number for number in range(7))
    plain = b"%PDF-1.4\n1 0 obj <</Type/Pages/Count 7>> endobj\n" + pages
    linear = b"%PDF-1.7\n5 0 obj <</Linearized 1/L 9/N 12/T 8>> endobj <</Type/ObjStm/N 100>>" + bytes(5_000)
    assert document_tokens(plain) == 7 * 3_000
    assert document_tokens(linear) == 12 * 3_000
    assert document_tokens(b"%PDF-1.7" + bytes(90_000)) == 4 * 3_000
    assert document_tokens(b"%PDF-1.7" + bytes(89_000) + linear) == 4 * 3_000
    assert document_tokens(None) == 3_000


def test_the_mime_type_selects_the_rule() -> None:
    image, words = png(1_920, 1_080), b"Hello, world!"
    assert media_tokens("image/png", image) == 2_691
    assert media_tokens(" Image/PNG", image) == 2_691
    assert media_tokens("image") == 1_600
    assert media_tokens("audio/mpeg") == 1_920
    assert media_tokens("video") == 18_000
    assert media_tokens("text/markdown; charset=utf-8", words) == 4
    assert media_tokens("application/ld+json", words) == 4
    assert media_tokens("image/svg+xml", words) == 4
    assert media_tokens("text/plain", b"\xff\xfe\x00") > 0
    assert media_tokens("application/vnd.openxmlformats-officedocument.wordprocessingml.document", words) == 3_000
    assert media_tokens("application/octet-stream", bytes(60_000)) == 6_000
    assert media_tokens("") == 3_000
