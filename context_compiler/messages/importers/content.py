"""Read message content, which is a string, null, or a list of typed blocks in all transcript formats.

A block type means the same in every format. A block of an unknown type is kept as its JSON text, with a note.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Sequence
from typing import cast
from urllib.parse import unquote_to_bytes

from pydantic_ai.messages import (
    BinaryContent,
    DocumentUrl,
    FilePart,
    ImageUrl,
    ModelResponsePart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    UploadedFile,
    UserPromptPart,
)
from pydantic_core import to_json

from context_compiler.messages.importers.document import parse_json
from context_compiler.messages.importers.draft import UNDATED, Draft, Json, kind, mapping, sequence, text, time_of

Medium = BinaryContent | ImageUrl | DocumentUrl | UploadedFile
Piece = str | Medium

DEEP = 100
"""Maximum nesting of arguments that are parsed; deeper ones stay a string."""


def blocks(draft: Draft, content: object) -> list[object]:
    """Content as a list of blocks, which are strings or objects.

    Raises:
        TranscriptError: The content is not a string, null, or a list of strings and objects.
    """
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    listed = sequence(content)
    if listed is None:
        raise draft.error(f"content is {kind(content)}; it must be a string, null or a list of blocks")
    for position, block in enumerate(listed):
        if not isinstance(block, str | dict):
            raise draft.error(f"block {position} of the content is {kind(block)}; it must be an object or a string")
    return listed


def _text_of(block: Json) -> str | None:
    return text(block.get("text"))


def pieces(draft: Draft, content: object) -> list[Piece]:
    """Content as a list of strings and media, in order."""
    return [_piece(draft, block) for block in blocks(draft, content)]


def _piece(draft: Draft, block: object) -> Piece:
    if isinstance(block, str):
        return block
    fields = mapping(block) or {}
    name = text(fields.get("type")) or "no type"
    read = _PIECES.get(name)
    piece = read(fields) if read else None
    if piece is not None:
        return piece
    draft.note(f"block of {'unreadable' if read else 'unknown'} type {name[:40]!r} kept as text")
    return json.dumps(fields, ensure_ascii=False)


def system(draft: Draft, entry: Json) -> None:
    """Add a system message, at the beginning of the request that follows."""
    texts = [_as_text(draft, piece) for piece in pieces(draft, entry.get("content"))]
    if not texts:
        draft.note("system message without content")
    when = time_of(entry)
    draft.request([SystemPromptPart(content=text, timestamp=when or UNDATED) for text in texts or [""]], time=when)


def _as_text(draft: Draft, piece: Piece) -> str:
    if isinstance(piece, str):
        return piece
    draft.note("medium replaced by its name where only text is possible")
    return f"[{medium_name(piece)}]"


def prompt(draft: Draft, content: object, entry: Json) -> UserPromptPart:
    """Build a user prompt from content."""
    parts = pieces(draft, content)
    if not parts:
        draft.note("user message without content")
    content = parts[0] if len(parts) == 1 and isinstance(parts[0], str) else parts or ""
    return UserPromptPart(content=content, timestamp=time_of(entry) or UNDATED)


def result_content(draft: Draft, content: object) -> object:
    """Content of a tool result: one joined text, or a list of pieces if it contains media."""
    parts = pieces(draft, content)
    return "\n".join(cast("list[str]", parts)) if all(isinstance(piece, str) for piece in parts) else parts


def answer(draft: Draft, entry: Json, call_id: object, name: object, *, failed: bool = False) -> None:
    """Add a tool message as the answer to a call; consecutive ones share a request."""
    result, when = result_content(draft, entry.get("content")), time_of(entry)
    part = draft.result(result, call_id=text(call_id), name=text(name), failed=failed, time=when)
    draft.request([part], time=when)


def response_parts(draft: Draft, content: object, *, provider: str | None = None) -> list[ModelResponsePart]:
    """Parts of a response: text, files, thinking and tool calls, in order; empty strings are left out."""
    parts: list[ModelResponsePart] = []
    for block in blocks(draft, content):
        fields = mapping(block) or {}
        read = _SPOKEN.get(text(fields.get("type")) or "")
        if read:
            parts.append(read(draft, fields, len(parts), provider))
            continue
        piece = _piece(draft, block)
        if isinstance(piece, BinaryContent):
            parts.append(FilePart(content=piece))
        elif piece:
            parts.append(TextPart(content=_as_text(draft, piece)))
    return parts


def _thinking(draft: Draft, block: Json, position: int, provider: str | None) -> ModelResponsePart:
    signature = text(block.get("signature")) or text(block.get("thinkingSignature"))
    return ThinkingPart(content=text(block.get("thinking")) or "", signature=signature, provider_name=provider)


def _redacted(draft: Draft, block: Json, position: int, provider: str | None) -> ModelResponsePart:
    return ThinkingPart(
        content="", id="redacted_thinking", signature=text(block.get("data")), provider_name=provider or "anthropic"
    )


def _tool_use(draft: Draft, block: Json, position: int, provider: str | None) -> ModelResponsePart:
    args = block.get("input") if "input" in block else block.get("arguments")
    return call(draft, block.get("name"), args, call_id=block.get("id"), position=position)


_SPOKEN: dict[str, Callable[[Draft, Json, int, str | None], ModelResponsePart]] = {
    "thinking": _thinking,
    "redacted_thinking": _redacted,
    "tool_use": _tool_use,
    "toolCall": _tool_use,
}


def call(draft: Draft, name: object, args: object, *, call_id: object, position: int) -> ToolCallPart:
    """Build a tool call; without an id, it gets one that depends only on its position.

    Raises:
        TranscriptError: The call has no name.
    """
    if not isinstance(name, str) or not name:
        raise draft.error("a tool call has no name; give it the name of its tool")
    return ToolCallPart(
        tool_name=name,
        args=arguments(args),
        tool_call_id=call_id if isinstance(call_id, str) and call_id else f"call-{draft.at}-{position}",
    )


def arguments(value: object) -> Json | str | None:
    """Parse the arguments of a call into an object; return them as text if they are something else, or broken."""
    if value is None:
        return None
    if not isinstance(value, str):
        whole = mapping(value)
        return whole if whole is not None else json.dumps(value, ensure_ascii=False)
    try:
        read = mapping(parse_json(value))
        if read is None or not _is_shallow(read, DEEP):
            return value
        to_json(read)
    except (ValueError, RecursionError):
        return value
    return read


def _is_shallow(value: object, levels: int) -> bool:
    inner: Sequence[object] = list((mapping(value) or {}).values()) or sequence(value) or ()
    return not inner or (levels > 0 and all(_is_shallow(element, levels - 1) for element in inner))


_DATA_URL = re.compile(r"data:([^;,]*)((?:;[^;,]*)*),(.*)", re.DOTALL | re.IGNORECASE)

_SOUNDS = {"mp3": "audio/mpeg", "wav": "audio/wav"}


def medium_name(medium: Medium) -> str:
    """Name of a medium: its type, its URL, or its file id."""
    if isinstance(medium, BinaryContent):
        return medium.media_type
    return medium.file_id if isinstance(medium, UploadedFile) else medium.url


def binary(data: object, media_type: object) -> BinaryContent | None:
    """Decode Base64 text; None if it is not Base64, or the media type is not a string."""
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
    """Decode a `data:` URL; None if it is not one, or is broken."""
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
    """Read an OpenAI image: `{"image_url": {"url", "detail"}}`, or `image_url` as a plain URL."""
    fields = mapping(block.get("image_url")) or {"url": block.get("image_url")}
    url, detail = text(fields.get("url")), text(fields.get("detail"))
    if url is None or url[:5].lower() == "data:":
        return data_url(url or "")
    return ImageUrl(url=url, vendor_metadata={"detail": detail} if detail else None)


def input_audio(block: Json) -> Piece | None:
    """Read OpenAI audio: `{"input_audio": {"data", "format"}}`."""
    fields = mapping(block.get("input_audio")) or {}
    form = text(fields.get("format")) or "wav"
    return binary(fields.get("data"), _SOUNDS.get(form, f"audio/{form}"))


def file(block: Json) -> Piece | None:
    """Read an OpenAI file: `{"file": {"file_data" or "file_id", "filename"}}`."""
    fields = mapping(block.get("file")) or {}
    data, file_id = text(fields.get("file_data")), text(fields.get("file_id"))
    if data is not None:
        return data_url(data) if data.startswith("data:") else binary(data, "application/pdf")
    return UploadedFile(file_id=file_id, provider_name="openai") if file_id else None


def input_file(block: Json) -> Piece | None:
    """Read an OpenAI Responses file: `{"file_data", "file_id" or "file_url", "filename"}`."""
    url = text(block.get("file_url"))
    return DocumentUrl(url=url) if url else file({"file": block})


def image(block: Json) -> Piece | None:
    """Read an image: `{"source": …}` of Anthropic, or `{"data", "mimeType"}` of a pi session."""
    if "source" not in block:
        return binary(block.get("data"), block.get("mimeType"))
    return _source(block, ImageUrl)


def _source(block: Json, by_url: type[ImageUrl | DocumentUrl]) -> Piece | None:
    """Read an image or a document of Anthropic, whose source is base64, text, a URL or a file."""
    source = mapping(block.get("source")) or {}
    url = text(source.get("url"))
    if url is not None:
        return by_url(url=url)
    file_id = text(source.get("file_id"))
    if file_id is not None:
        return UploadedFile(file_id=file_id, provider_name="anthropic")
    if source.get("type") == "text":
        return text(source.get("data"))
    return binary(source.get("data"), source.get("media_type"))


_PIECES: dict[str, Callable[[Json], Piece | None]] = {
    "text": _text_of,
    "input_text": _text_of,
    "output_text": _text_of,
    "refusal": lambda block: text(block.get("refusal")),
    "image_url": image_url,
    "input_image": image_url,
    "input_audio": input_audio,
    "file": file,
    "input_file": input_file,
    "image": image,
    "document": lambda block: _source(block, DocumentUrl),
}
