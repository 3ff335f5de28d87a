"""Reports of a failure: a self-contained HTML file with the request, and properties for JUnit."""

from __future__ import annotations

from pathlib import Path

from context_compiler.messages.display import SHORTENED, SUMMARY, VERBATIM, ShownMessage, role, show_parts, time_of
from context_compiler.messages.html import document
from context_compiler.testing.conversation import ContextFailure
from context_compiler.testing.request import READER, form_of


def write_html(failure: ContextFailure, path: Path) -> Path:
    """Write a failure and the request at which it occurs to an HTML file; a text that may not be sent is left out."""
    title, *lines = str(failure).splitlines()
    facts = [(name.strip(), text.strip()) for name, _, text in (line.partition(":") for line in lines)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(document(title, facts, _shown(failure), ()), encoding="utf-8")
    return path


def _shown(failure: ContextFailure) -> list[ShownMessage]:
    request, conversation = failure.request, failure.conversation
    raw = {READER.one(message).name: position for position, message in enumerate(conversation.raw[: request.said])}
    hidden = str(failure.arguments[0]) if failure.check == "not_in_context" else ""
    shown: list[ShownMessage] = []
    for index, (message, reading) in enumerate(zip(request.messages, request.readings, strict=True)):
        form = VERBATIM if reading.name in raw else SUMMARY if role(reading) == "notes" else SHORTENED
        hides = bool(hidden and form_of(reading, hidden))
        shown.append(
            ShownMessage(
                index=index,
                role=role(reading),
                tokens=reading.tokens,
                form=form,
                why="contains a text that no request may contain" if hides else "",
                parts=() if hides else show_parts(reading, form),
                raw=raw.get(reading.name),
                time=time_of(message),
            )
        )
    return shown


def junit_properties(failure: ContextFailure) -> list[tuple[str, str]]:
    """Properties of a failure for a JUnit file."""
    request = failure.request
    numbers = {"request": request.number, "turn": request.turn, "tokens": request.tokens}
    facts = {"check": failure.check, **numbers, "explanation": str(failure)}
    return [(f"context_{name}", str(value)) for name, value in facts.items()]
