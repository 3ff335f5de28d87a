"""Refs in place of database ids, and text formatting that keeps ids and forged lines out of prompts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Mapping
from functools import lru_cache
from typing import Any, TypeVar, cast
from unicodedata import normalize
from uuid import UUID as UUIDType

from pydantic_core import to_json, to_jsonable_python

from context_compiler.errors import LayersError
from context_compiler.messages.fences import neutralize

T = TypeVar("T")

OWN_ID_FIELDS = ("id", "_id", "uuid")
"""Fields that contain the id of the row itself."""
UUID_DIGITS = 32
"""Characters of a UUID without its hyphens."""
MAX_DEPTH = 32
"""Maximum nesting depth at which lists and mappings are inspected."""
MAX_CACHED_LABEL = 200
"""Maximum characters of a label that is cached: a session shows the same labels to every node in every turn."""
ELLIPSIS = "…"
ID_PLACEHOLDER = "[id]"
"""Replacement for a database id."""
UUID_PATTERN = re.compile(r"(?<![0-9A-Fa-f])[0-9A-Fa-f]{8}-?(?:[0-9A-Fa-f]{4}-?){3}[0-9A-Fa-f]{12}(?![0-9A-Fa-f])")
PENDING_ID = re.compile(r"__pending__\w*")
Ancestors = tuple[int, ...]
"""Ids (`id()`) of the lists and mappings that enclose a value."""
_NON_WORD = re.compile(r"[\W_]+")
_BIDI_CONTROLS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def ref_prefix(type: str) -> str:
    """Return the ref prefix of a type: its singular, such as `recipe` for `recipes`.

    Raises:
        LayersError: No character of the type can be part of a ref.
    """
    prefix = _prefix(type)
    if not prefix:
        raise LayersError(f"{type!r} is not a valid entity type; use a name such as 'recipes'")
    return prefix


def _prefix(type: object) -> str:
    """Return `ref_prefix`, or an empty string if the type has no usable character."""
    return _singular(type) if isinstance(type, str) else ""


@lru_cache(maxsize=1024)
def _singular(type: str) -> str:
    word = _NON_WORD.sub("_", normalize("NFKC", type).lower()).strip("_")
    if word.endswith("ies") and len(word) > 4:
        return f"{word[:-3]}y"
    if word.endswith(("sses", "xes", "ches", "shes")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) and len(word) > 2 else word


def id_text(id: object) -> str:
    """Return the database id of an entity as text.

    Raises:
        LayersError: The id is empty, or not a string, a number or a UUID.
    """
    text = str(id).strip() if isinstance(id, str | int | UUIDType) and not isinstance(id, bool) else ""
    if not text:
        raise LayersError(f"{id!r} is not an id; give the id of the entity in the database")
    return text


def encode_json(data: object) -> str:
    """Serialize data to JSON; values that JSON cannot represent become text.

    Raises:
        ValueError: The data contains itself.
    """
    try:
        return to_json(data, fallback=_as_json, inf_nan_mode="strings").decode()
    except ValueError:  # a lone surrogate, which `json` escapes, or bytes that are not UTF-8, which become base64
        return json.dumps(to_jsonable_python(data, fallback=_as_json, inf_nan_mode="strings", bytes_mode="base64"))


def _as_json(value: object) -> object:
    """Convert a value that JSON cannot represent: a mapping to a dict, anything else to text."""
    return dict(cast("Mapping[object, object]", value)) if isinstance(value, Mapping) else str(value)


def to_plain_data(data: object, what: str) -> object:
    """Return data after a JSON round trip; values that JSON cannot represent become text.

    Raises:
        LayersError: The data contains itself.
    """
    try:
        return json.loads(encode_json(data))
    except (ValueError, RecursionError) as error:
        raise LayersError(f"{what} cannot be stored as JSON: {error}") from None


Answer = tuple[Callable[..., object], tuple[object, ...], object]
"""A lookup in `Refs`: the method, its arguments, and the result."""


class Refs:
    """Two-way mapping between refs and database ids (strings); the same id under two types means two entities."""

    def __init__(self, ids: Mapping[str, str] | None = None, types: Mapping[str, str] | None = None) -> None:
        """Start with database ids by ref, and the type of each ref."""
        self.ids = dict(ids or {})
        type_of = types or {}
        prefixes = {type: ref_prefix(type) for type in set(type_of.values())}
        self._refs = {(prefixes[type_of[ref]], _lookup_key(id)): ref for ref, id in self.ids.items()}
        self._uuids = {_hex_digits(id): ref for ref, id in self.ids.items() if _is_uuid(id)}

    def copy(self) -> Refs:
        """Return an independent mapping of the same ids."""
        other = Refs()
        other.ids, other._refs, other._uuids = self.ids.copy(), self._refs.copy(), self._uuids.copy()
        return other

    def __contains__(self, ref: object) -> bool:
        return ref in self.ids

    def knows(self, ref: str, field: str) -> bool:
        """True if this is the ref of an entity. `field` is the name of the referring field, without `_id`."""
        return ref in self

    def of(self, type: str, id: object) -> str | None:
        """Return the ref of an entity by type and id; None if it is unknown or the type has no usable character."""
        return self._refs.get((_prefix(type), _lookup_key(str(id))))

    def by_uuid(self, text: str) -> str | None:
        """Return the ref of the entity with this UUID, in any spelling; None if there is none."""
        return self._uuids.get(_hex_digits(text)) if self._uuids else None

    def add(self, type: str, id: str, ref: str) -> None:
        """Assign a ref to an id."""
        self.ids[ref] = id
        self._refs[ref_prefix(type), _lookup_key(id)] = ref
        if _is_uuid(id):
            self._uuids[_hex_digits(id)] = ref

    def drop(self, type: str, ref: str) -> None:
        """Remove the ref of an entity of a type."""
        id = self.ids.pop(ref, None)
        if id is None:
            return
        if self._refs.get(key := (ref_prefix(type), _lookup_key(id))) == ref:
            del self._refs[key]
        if self._uuids.get(digits := _hex_digits(id)) == ref:
            del self._uuids[digits]

    def replace_uuids(self, text: str) -> str:
        """Return the text with every known UUID replaced by its ref."""
        return UUID_PATTERN.sub(lambda match: self.by_uuid(match[0]) or match[0], text) if self._uuids else text


class RecordingRefs(Refs):
    """Lookups in a mapping, each recorded with its result."""

    def __init__(self, refs: Refs) -> None:
        self.ids, self._refs, self._uuids = refs.ids, refs._refs, refs._uuids
        self.answers: list[Answer] = []

    def knows(self, ref: str, field: str) -> bool:
        """True if this is the ref of an entity."""
        return self._record(Refs.knows, ref, field)

    def of(self, type: str, id: object) -> str | None:
        """Return the ref of an entity by type and id."""
        return self._record(Refs.of, type, id)

    def by_uuid(self, text: str) -> str | None:
        """Return the ref of the entity with this UUID."""
        return self._record(Refs.by_uuid, text)

    def replace_uuids(self, text: str) -> str:
        """Return the text with every known UUID replaced by its ref."""
        return UUID_PATTERN.sub(lambda match: self.by_uuid(match[0]) or match[0], text)

    def _record(self, lookup: Callable[..., T], *arguments: object) -> T:
        result = lookup(self, *arguments)
        self.answers.append((lookup, arguments, result))
        return result


def _hex_digits(uuid: str) -> str:
    return uuid.lower().replace("-", "")


def _lookup_key(id: str) -> str:
    """Return the lookup key of an id; all spellings of a UUID have the same key."""
    return _hex_digits(id) if _is_uuid(id) else id


def _is_uuid(id: str) -> bool:
    """True for a UUID, which identifies an entity without its type; a number may occur in every table."""
    return len(id) >= UUID_DIGITS and UUID_PATTERN.fullmatch(id) is not None


class RefsByForm(Refs):
    """Refs recognized by their form, without a registry: `recipe_5` in a field `recipe_id` or `base_recipe_id`."""

    def knows(self, ref: str, field: str) -> bool:
        """True if this has the form of a ref to the type that the field names."""
        prefix, _, number = ref.removeprefix("gen_").rpartition("_")
        return number.isdecimal() and bool(prefix) and f"_{field}".endswith(f"_{prefix}")


def mask_data(data: object, refs: Refs, type: str = "") -> object:
    """Return data without database ids: known ids become refs, unknown UUIDs become `[id]`.

    Args:
        data: Any value.
        refs: Mapping between refs and ids.
        type: Type of rows that do not name their own; without it, a row is identified only by a UUID.
    """
    return _mask(data, refs, type, ())


def is_recursive(data: object, ancestors: Ancestors) -> bool:
    """True if a value contains itself, or is nested too deeply to inspect."""
    return len(ancestors) >= MAX_DEPTH or id(data) in ancestors


def as_json_types(data: object) -> object:
    """Return data as JSON knows it: models, dataclasses and named tuples as mappings, sets as lists, the rest as text.

    What cannot be converted, for example because it contains itself, becomes an ellipsis.
    """
    if isinstance(data, tuple) and callable(as_mapping := getattr(cast(object, data), "_asdict", None)):
        return as_mapping()
    if data is None or isinstance(data, str | int | float | Mapping | list | tuple):
        return cast(object, data)
    if isinstance(data, Generator):  # reading it would leave nothing of it for the application
        return ELLIPSIS
    try:
        return to_jsonable_python(data, by_alias=False, bytes_mode="base64", fallback=_as_json)
    except (ValueError, RecursionError):
        return ELLIPSIS


def _mask(data: object, refs: Refs, type: str, ancestors: Ancestors) -> object:
    data = as_json_types(data)
    if isinstance(data, str):
        return _mask_text(refs.replace_uuids(data))
    if isinstance(data, Mapping | list | tuple) and is_recursive(cast(object, data), ancestors):
        return ELLIPSIS
    if isinstance(data, Mapping):
        return _mask_row(cast("Mapping[object, Any]", data), refs, type, ancestors)
    if isinstance(data, list | tuple):
        items = cast("list[Any]", data)
        # A call is a tuple of tool, table and rows.
        kind = str(items[1]) if isinstance(data, tuple) and len(items) == 3 and isinstance(items[1], str) else type
        return [_mask(item, refs, kind, (*ancestors, id(items))) for item in items]
    return data


def _mask_text(text: str) -> str:
    return PENDING_ID.sub(ID_PLACEHOLDER, UUID_PATTERN.sub(ID_PLACEHOLDER, text))


def _mask_row(row: Mapping[object, Any], refs: Refs, type: str, ancestors: Ancestors) -> dict[str, object]:
    """Return a row with its ref in place of its own id."""
    masked: dict[str, object] = {}
    inside = (*ancestors, id(row))
    for key, value in row.items():
        name = str(key).lower()
        if name not in OWN_ID_FIELDS:
            masked[_mask_text(str(key))] = _mask_field(name, value, refs, inside)
        elif ref := refs.of(type, value) if type.strip("_ ") else refs.by_uuid(str(value)):
            masked["ref"] = ref
    return masked


def _mask_field(name: str, value: object, refs: Refs, ancestors: Ancestors) -> object:
    """Return the masked value of a field; the id of another entity becomes its ref."""
    value = as_json_types(value)
    if name.endswith("_id") and isinstance(value, str | int | float) and not isinstance(value, bool):
        if ref := refs.of(name[:-3], value) or refs.by_uuid(str(value)):
            return ref
        return value if isinstance(value, str) and refs.knows(value, name[:-3]) else ID_PLACEHOLDER
    if name.endswith("_ids") and isinstance(value, list | tuple):
        if is_recursive(cast(object, value), ancestors):
            return ELLIPSIS
        items = cast("list[Any]", value)
        return [_mask_field(name[:-1], item, refs, (*ancestors, id(items))) for item in items]
    return _mask(value, refs, "", ancestors)


def as_text(value: object) -> str:
    """Return any value as text; None becomes empty."""
    return "" if value is None else str(value)


def single_line(text: object, most: int = 0) -> str:
    """Return text on one line, without control and bidirectional characters.

    If `most` is not 0, longer text is cut to that length and ends with an ellipsis.
    """
    line = " ".join(neutralize(_BIDI_CONTROLS.sub("", " ".join(str(text).split()))).split())
    return f"{line[: most - 1].rstrip()}{ELLIPSIS}" if most and len(line) > most else line


def mask_ids(text: str) -> str:
    """Return the text with every database id replaced by `[id]`."""
    return _mask_text(text) if "-" in text or "__" in text or len(text) >= UUID_DIGITS else text


def label(text: object, most: int = 200) -> str:
    """Return a label that can be shown next to a ref: one line, without ids, parts of ids, or backticks."""
    return _short_label(text, most) if isinstance(text, str) and len(text) <= MAX_CACHED_LABEL else _label(text, most)


def _label(text: object, most: int) -> str:
    return single_line(mask_ids(single_line(text)), most).replace("`", "'")


_short_label = lru_cache(maxsize=8192)(_label)


def indent_lines(text: str) -> str:
    """Indent all lines after the first, so that none of them can pass for a heading of the prompt."""
    return "\n    ".join(line.rstrip() for line in neutralize(_BIDI_CONTROLS.sub("", text.strip())).split("\n"))


def ref_sort_key(ref: str) -> tuple[str, int, str]:
    """Return a sort key that puts `recipe_2` before `recipe_10`."""
    name = ref.rstrip("0123456789")
    return (name, int(ref[len(name) :][:18] or 0), ref)
