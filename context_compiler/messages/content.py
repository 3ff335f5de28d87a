"""What a prompt or a result may hold beside text: pictures, sound, documents, data, and what stands for them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, cast

from pydantic_core import to_json

from context_compiler.tokens import media_tokens


def user_content(content: object) -> Sequence[object]:
    """The pieces of a user prompt, a lone string as one piece."""
    if isinstance(content, str) or not isinstance(content, Sequence):
        return (content,)
    return cast(Sequence[object], content)


_MEDIA_KINDS = {
    "image-url": "image",
    "audio-url": "audio",
    "document-url": "application/pdf",
    "video-url": "video",
    "binary": "",
    "uploaded-file": "application/pdf",
}


def is_media(thing: object) -> bool:
    """A picture, sound, film, document or other file, given as bytes, URL or upload."""
    return getattr(thing, "kind", None) in _MEDIA_KINDS


def media_type(thing: Any) -> str:
    """The MIME type of a medium, or the best that its kind says."""
    kind = str(getattr(thing, "kind", ""))
    if kind != "binary" and not getattr(thing, "_media_type", None):
        return _MEDIA_KINDS.get(kind) or "application/octet-stream"
    return str(getattr(thing, "media_type", None) or "application/octet-stream")


def media_cost(thing: Any) -> int:
    """What a medium costs, in tokens."""
    data = getattr(thing, "data", None)
    return media_tokens(media_type(thing), data if isinstance(data, bytes) else None)


def placeholder(thing: Any) -> str:
    """What stands for a medium where only text can stand."""
    data = getattr(thing, "data", None)
    size = f" {max(1, len(data) // 1024)} kB" if isinstance(data, bytes) else ""
    return f"[{media_type(thing)}{size}]"


def media_in(content: object) -> Iterator[object]:
    """Every medium anywhere in a tool's result."""
    if is_media(content):
        yield content
    elif isinstance(content, dict):
        for value in cast(dict[object, object], content).values():
            yield from media_in(value)
    elif isinstance(content, list | tuple):
        for value in cast(Sequence[object], content):
            yield from media_in(value)


def without_media(content: object) -> object:
    """The same content with every medium replaced by its placeholder."""
    if is_media(content):
        return placeholder(content)
    if isinstance(content, dict):
        return {key: without_media(value) for key, value in cast(dict[object, object], content).items()}
    if isinstance(content, list | tuple):
        return [without_media(value) for value in cast(Sequence[object], content)]
    return content


def plain(content: object) -> str:
    """Any content as the text a model would read; what has no text form is named, never raised."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    try:
        return to_json(content, fallback=name_of, bytes_mode="base64", inf_nan_mode="constants").decode()
    except (ValueError, TypeError, RecursionError):  # half a surrogate pair, a circle, or far too deep
        return _plainer(content)


def _plainer(content: object) -> str:
    try:
        return json.dumps(content, default=name_of, ensure_ascii=False, skipkeys=True, separators=(",", ":"))
    except (ValueError, TypeError, RecursionError):
        return name_of(content)


def name_of(value: object) -> str:
    """What stands for a value that has no text form: its type."""
    return f"<{type(value).__qualname__}>"
