"""Pictures, sound and documents: data in the file becomes bytes, an address stays an address."""

from __future__ import annotations

import base64
import binascii
import re
from urllib.parse import unquote_to_bytes

from pydantic_ai.messages import BinaryContent, DocumentUrl, ImageUrl, UploadedFile

from context_compiler.messages.importers.shape import Json, mapping, text

Medium = BinaryContent | ImageUrl | DocumentUrl | UploadedFile
Piece = str | Medium

_DATA_URL = re.compile(r"data:([^;,]*)((?:;[^;,]*)*),(.*)", re.DOTALL | re.IGNORECASE)

_SOUNDS = {"mp3": "audio/mpeg", "wav": "audio/wav"}


def name(medium: Medium) -> str:
    """What a medium can be called: its type, its address, or its id."""
    if isinstance(medium, BinaryContent):
        return medium.media_type
    return medium.file_id if isinstance(medium, UploadedFile) else medium.url


def binary(data: object, media_type: object) -> BinaryContent | None:
    """Base64 text as bytes; None when it is no base64 or its type is no text."""
    if not isinstance(data, str) or not isinstance(media_type, str):
        return None
    try:
        raw = base64.b64decode("".join(data.split()), validate=True)
    except (binascii.Error, ValueError):
        return None
    return _bytes(raw, media_type)


def _bytes(raw: bytes, media_type: str) -> BinaryContent:
    return BinaryContent.narrow_type(BinaryContent(data=raw, media_type=media_type or "application/octet-stream"))


def data_url(url: str) -> BinaryContent | None:
    """The bytes of a `data:` URL; None when it is none, or a broken one."""
    match = _DATA_URL.fullmatch(url)
    if match is None:
        return None
    media_type, options, data = match.groups()
    if ";base64" in options.lower():
        return binary(data, media_type)
    try:
        return _bytes(unquote_to_bytes(data), media_type or "text/plain")
    except UnicodeEncodeError:
        return None


def image_url(block: Json) -> Piece | None:
    """OpenAI: `{"image_url": {"url", "detail"}}`, or the URL alone."""
    given = mapping(block.get("image_url")) or {"url": block.get("image_url")}
    url, detail = text(given.get("url")), text(given.get("detail"))
    if url is None or url[:5].lower() == "data:":
        return data_url(url or "")
    return ImageUrl(url=url, vendor_metadata={"detail": detail} if detail else None)


def input_audio(block: Json) -> Piece | None:
    """OpenAI: `{"input_audio": {"data", "format"}}`."""
    given = mapping(block.get("input_audio")) or {}
    form = text(given.get("format")) or "wav"
    return binary(given.get("data"), _SOUNDS.get(form, f"audio/{form}"))


def file(block: Json) -> Piece | None:
    """OpenAI: `{"file": {"file_data" or "file_id", "filename"}}`."""
    given = mapping(block.get("file")) or {}
    data, file_id = text(given.get("file_data")), text(given.get("file_id"))
    if data is not None:
        return data_url(data) if data.startswith("data:") else binary(data, "application/pdf")
    return UploadedFile(file_id=file_id, provider_name="openai") if file_id else None


def image(block: Json) -> Piece | None:
    """Anthropic: `{"source": …}`. A coding-agent session: `{"data", "mimeType"}`."""
    if "source" not in block:
        return binary(block.get("data"), block.get("mimeType"))
    source = mapping(block["source"]) or {}
    url = text(source.get("url"))
    return ImageUrl(url=url) if url is not None else _source(source)


def document(block: Json) -> Piece | None:
    """Anthropic: a document with a base64, text, URL or file source."""
    source = mapping(block.get("source")) or {}
    url = text(source.get("url"))
    return DocumentUrl(url=url) if url is not None else _source(source)


def _source(source: Json) -> Piece | None:
    file_id = text(source.get("file_id"))
    if file_id is not None:
        return UploadedFile(file_id=file_id, provider_name="anthropic")
    if source.get("type") == "text":
        return text(source.get("data"))
    return binary(source.get("data"), source.get("media_type"))
