"""Refs in place of database ids, and the text formatting that keeps ids and forged lines out of prompts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, cast
from unicodedata import normalize
from uuid import UUID as UUIDType

from pydantic_core import to_json, to_jsonable_python

from context_compiler.errors import LayersError
from context_compiler.layers.overlay import Overlay
from context_compiler.messages.fences import neutralize

OWN_ID_FIELDS = ("id", "_id", "uuid")
"""Fields that hold the id of the row itself."""
UUID_DIGITS = 32
"""Characters of a UUID without its hyphens."""
MAX_DEPTH = 32
"""Nesting depth to which lists and mappings are inspected."""
SHORT = 200
"""Characters of a label that is worth keeping: a session shows the same ones to every node and in every turn."""
Ancestors = tuple[int, ...]
"""Ids (`id()`) of the lists and mappings that enclose a value."""
_UNFIT = re.compile(r"[\W_]+")


def ref_prefix(type: str) -> str:
    """Prefix of refs of a type: its singular, such as `recipe` for `recipes`.

    Raises:
        LayersError: The type has no character that a ref can contain.
    """
    prefix = _prefix(type)
    if not prefix:
        raise LayersError(f"{type!r} is not a type of entity; give a word such as recipes")
    return prefix


def _prefix(type: object) -> str:
    """Same as `ref_prefix`; empty where the type has no usable character."""
    return _singular(type) if isinstance(type, str) else ""


@lru_cache(maxsize=1024)
def _singular(type: str) -> str:
    word = _UNFIT.sub("_", normalize("NFKC", type).lower()).strip("_")
    if word.endswith("ies") and len(word) > 4:
        return f"{word[:-3]}y"
    if word.endswith(("sses", "xes", "ches", "shes")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) and len(word) > 2 else word


def id_text(id: object) -> str:
    """Database id of an entity, as text.

    Raises:
        LayersError: It is not a text, a number or a UUID.
    """
    text = str(id).strip() if isinstance(id, str | int | UUIDType) and not isinstance(id, bool) else ""
    if not text:
        raise LayersError(f"{id!r} is not an id; give what the database knows the entity by")
    return text


def encode_json(data: object) -> str:
    """Data as JSON text; raises ValueError if it contains itself."""
    try:
        return to_json(data, fallback=_as_json, inf_nan_mode="strings").decode()
    except ValueError:  # half a character can be escaped, and bytes that are no UTF-8 have a text in base64
        return json.dumps(to_jsonable_python(data, fallback=_as_json, inf_nan_mode="strings", bytes_mode="base64"))


def _as_json(value: object) -> object:
    """A value unknown to JSON: a mapping that is not a dict as a dict, any other as its text."""
    return dict(cast("Mapping[object, object]", value)) if isinstance(value, Mapping) else str(value)


def to_plain_data(data: object, what: str) -> object:
    """Data as JSON holds it; values unknown to JSON become their text.

    Raises:
        LayersError: The data contains itself.
    """
    try:
        return json.loads(encode_json(data))
    except (ValueError, RecursionError) as error:
        raise LayersError(f"{what} cannot be kept as JSON: {error}") from None


Answer = tuple[str, str, object, str | bool | None]
"""Question to a mapping of refs, by its method, the type and the id or ref, and its answer."""


class Refs:
    """Mapping between refs and database ids; ids are texts, and the same id in two types is two entities."""

    def __init__(self, ids: Mapping[str, str] | None = None, types: Mapping[str, str] | None = None) -> None:
        """Start from ids by ref, with the type of each ref."""
        self.ids = Overlay[str, str](ids or {})
        given = types or {}
        prefixes = {type: ref_prefix(type) for type in set(given.values())}
        self._refs = Overlay(((prefixes[given[ref]], _lookup_key(id)), ref) for ref, id in self.ids.items())
        self._uuids = Overlay((_hex_digits(id), ref) for ref, id in self.ids.items() if _is_uuid(id))

    def copy(self) -> Refs:
        """Another mapping of the same ids."""
        other = Refs()
        other.ids, other._refs, other._uuids = self.ids.copy(), self._refs.copy(), self._uuids.copy()
        return other

    def __contains__(self, ref: object) -> bool:
        return ref in self.ids

    def knows(self, ref: str, field: str) -> bool:
        """True if this is the ref of an entity; `field` is the name of the one that refers to it, without `_id`."""
        return ref in self

    def of(self, type: str, id: object) -> str | None:
        """Ref of an entity by type and id; None for an unknown one and for a type without a usable character."""
        return self._refs.get((_prefix(type), _lookup_key(str(id))))

    def named(self, text: str) -> str | None:
        """Ref of the entity with this UUID, in any spelling."""
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

    def translated(self, text: str) -> str:
        """Text with every known UUID replaced by its ref."""
        return UUID_PATTERN.sub(lambda found: self.named(found[0]) or found[0], text) if self._uuids else text


class RecordingRefs(Refs):
    """Another mapping's answers, each with its question."""

    def __init__(self, refs: Refs) -> None:
        super().__init__()
        self._asked = refs
        self.answers: list[Answer] = []

    def __contains__(self, ref: object) -> bool:
        found = ref in self._asked
        self.answers.append(("has", "", ref, found))
        return found

    def of(self, type: str, id: object) -> str | None:
        """Ref of an entity by type and id."""
        found = self._asked.of(type, id)
        self.answers.append(("of", type, id, found))
        return found

    def named(self, text: str) -> str | None:
        """Ref of the entity with this UUID."""
        found = self._asked.named(text)
        self.answers.append(("named", "", text, found))
        return found

    def translated(self, text: str) -> str:
        """Text with every known UUID replaced by its ref."""
        return UUID_PATTERN.sub(lambda found: self.named(found[0]) or found[0], text)


def are_current(answers: Sequence[Answer], refs: Refs) -> bool:
    """True if a mapping gives the same answers."""
    return all(
        found == (refs.of(type, what) if how == "of" else refs.named(str(what)) if how == "named" else what in refs)
        for how, type, what, found in answers
    )


def _hex_digits(uuid: str) -> str:
    return uuid.lower().replace("-", "")


def _lookup_key(id: str) -> str:
    """Id as a lookup key: a UUID has one key in every spelling."""
    return _hex_digits(id) if _is_uuid(id) else id


def _is_uuid(id: str) -> bool:
    """True for a UUID, which identifies an entity by itself; a number may occur in every table."""
    return len(id) >= UUID_DIGITS and UUID_PATTERN.fullmatch(id) is not None


class RefsByForm(Refs):
    """Refs by their form alone, where no registry is at hand: `recipe_5` in `recipe_id` or `base_recipe_id`."""

    def knows(self, ref: str, field: str) -> bool:
        """True if this has the form of a ref to what the field names."""
        prefix, _, number = ref.removeprefix("gen_").rpartition("_")
        return number.isdecimal() and bool(prefix) and f"_{field}".endswith(f"_{prefix}")


def mask_data(data: object, refs: Refs, type: str = "") -> object:
    """Data without ids: known ids become refs, unknown UUIDs become `[id]`.

    Args:
        data: Anything.
        refs: Mapping between refs and ids.
        type: Type of the rows where they do not say it themselves; without it, only a UUID identifies a row.
    """
    return _mask(data, refs, type, ())


def is_recursive(data: object, ancestors: Ancestors) -> bool:
    """True if data contains itself, or is nested too deeply to inspect."""
    return len(ancestors) >= MAX_DEPTH or id(data) in ancestors


def _mask(data: object, refs: Refs, type: str, ancestors: Ancestors) -> object:
    if isinstance(data, str):
        return _mask_text(refs.translated(data))
    if isinstance(data, Mapping | list | tuple) and is_recursive(cast(object, data), ancestors):
        return ELLIPSIS
    if isinstance(data, Mapping):
        return _mask_row(cast("Mapping[object, Any]", data), refs, type, ancestors)
    if isinstance(data, list | tuple):
        given = cast("list[Any]", data)
        kind = str(given[1]) if isinstance(data, tuple) and len(given) == 3 and isinstance(given[1], str) else type
        return [_mask(one, refs, kind, (*ancestors, id(given))) for one in given]
    if data is None or isinstance(data, bool | int | float):
        return data
    return _mask_text(refs.translated(str(data)))


def _mask_text(text: str) -> str:
    return PENDING_ID.sub(ID_PLACEHOLDER, UUID_PATTERN.sub(ID_PLACEHOLDER, text))


def _mask_row(row: Mapping[object, Any], refs: Refs, type: str, ancestors: Ancestors) -> dict[str, object]:
    """Row with its ref in place of its own id."""
    found: dict[str, object] = {}
    inside = (*ancestors, id(row))
    for key, value in row.items():
        name = str(key).lower()
        if name not in OWN_ID_FIELDS:
            found[_mask_text(str(key))] = _mask_field(name, value, refs, inside)
        elif ref := _row_ref(value, refs, type):
            found["ref"] = ref
    return found


def _row_ref(id: object, refs: Refs, type: str) -> str | None:
    return refs.of(type, id) if type.strip("_ ") else refs.named(str(id))


def _mask_field(name: str, value: object, refs: Refs, ancestors: Ancestors) -> object:
    """One field; an id of another entity becomes its ref."""
    if name.endswith("_id") and isinstance(value, str | int) and not isinstance(value, bool):
        return refs.of(name[:-3], value) or (
            value if isinstance(value, str) and refs.knows(value, name[:-3]) else ID_PLACEHOLDER
        )
    if name.endswith("_ids") and isinstance(value, list | tuple):
        return (
            ELLIPSIS
            if is_recursive(cast(object, value), ancestors)
            else _mask_list(name[:-1], cast("list[Any]", value), refs, ancestors)
        )
    return _mask(value, refs, "", ancestors)


def _mask_list(name: str, given: Sequence[object], refs: Refs, ancestors: Ancestors) -> list[object]:
    """List of ids of other entities."""
    return [_mask_field(name, one, refs, (*ancestors, id(given))) for one in given]


ELLIPSIS = "…"
ID_PLACEHOLDER = "[id]"
"""Replacement for a database id."""
UUID_PATTERN = re.compile(r"(?<![0-9A-Fa-f])[0-9A-Fa-f]{8}-?(?:[0-9A-Fa-f]{4}-?){3}[0-9A-Fa-f]{12}(?![0-9A-Fa-f])")
PENDING_ID = re.compile(r"__pending__\w*")
_STEERING = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def as_text(given: object) -> str:
    """Any value as text; None is empty."""
    return "" if given is None else str(given)


def single_line(text: object, most: int = 0) -> str:
    """Text on one line, without control and bidirectional characters; `most` cuts it with an ellipsis."""
    line = " ".join(neutralize(_STEERING.sub("", " ".join(str(text).split()))).split())
    return f"{line[: most - 1].rstrip()}{ELLIPSIS}" if most and len(line) > most else line


def mask_ids(text: str) -> str:
    """Text with every database id replaced by `[id]`."""
    return (
        PENDING_ID.sub(ID_PLACEHOLDER, UUID_PATTERN.sub(ID_PLACEHOLDER, text))
        if "-" in text or "__" in text or len(text) >= 32
        else text
    )


def label(text: object, most: int = 200) -> str:
    """Label that can stand beside a ref: one line, without ids or parts of ids, and without backticks."""
    return _short_label(text, most) if isinstance(text, str) and len(text) <= SHORT else _label(text, most)


def _label(text: object, most: int) -> str:
    return single_line(mask_ids(single_line(text)), most).replace("`", "'")


_short_label = lru_cache(maxsize=8192)(_label)


def indent_lines(text: str) -> str:
    """Text below a line of ours; lines after the first are indented, so that none looks like a heading."""
    return "\n    ".join(line.rstrip() for line in neutralize(_STEERING.sub("", text.strip())).split("\n"))


def ref_sort_key(ref: str) -> tuple[str, int, str]:
    """Sort key that puts `recipe_2` before `recipe_10`."""
    name = ref.rstrip("0123456789")
    return (name, int(ref[len(name) :][:18] or 0), ref)
