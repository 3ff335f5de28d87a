"""Exports of a request: as JSON, as Python code to paste, and as a case of `pydantic_evals`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic_ai.messages import ModelResponse, TextPart

from context_compiler.compiler.trace import request_of
from context_compiler.messages.bodies import message_body
from context_compiler.messages.history import current_instructions
from context_compiler.record import browse
from context_compiler.record.browse import RequestRow, SessionRow
from context_compiler.record.database import Database
from context_compiler.web.data import Inspector, RequestHeader, header_of

FORMS = {
    "json": (".json", "application/json"),
    "python": (".py", "text/x-python; charset=utf-8"),
    "eval": ("-eval.json", "application/json"),
}
"""Suffix of the file name and media type of each export format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPage(RequestHeader):
    """A request in every export format, as text."""

    json: str
    """Messages, instructions and figures as JSON; messages are serialized as the host does it."""
    python: str
    """Code that builds the list of messages, ready to be pasted."""
    eval: str
    """A `pydantic_evals` dataset with one case: the messages, and the answer that was received."""


async def load_export(inspector: Inspector, number: int) -> ExportPage:
    """Load all exports of a request."""
    return await inspector.read(partial(_load, inspector=inspector, number=number))


def _load(db: Database, inspector: Inspector, number: int) -> ExportPage:
    row, record = request_of(db, number)
    messages = inspector.host_messages(db, inspector.chain(db, row.view_tip, row.session))
    header = header_of(db, row)
    info: SessionRow = header["session"]
    answer = _answer(db, inspector, row)
    bodies = [json.loads(message_body(message)) for message in messages]
    document: dict[str, Any] = {
        "request": row.id,
        "session": info.session_id,
        "turn": row.turn_index + 1,
        "status": row.status,
        "budget": row.budget,
        "tokens": {"raw": row.tokens_raw, "sent": row.tokens_sent},
        "ledger": record.ledger,
        "instructions": current_instructions(messages) or None,
        "messages": bodies,
        "answer": answer,
    }
    return ExportPage(
        **header,
        json=_text(document),
        python=_python(row, info, bodies),
        eval=_text(_dataset(row, info, bodies, answer)),
    )


def _answer(db: Database, inspector: Inspector, row: RequestRow) -> str | None:
    """Return the text of the answer to a request; None if it is not on the record."""
    last = browse.newest_raw_tip(db, row.session)
    chain = inspector.chain(db, last, row.session)
    position = next((index for index, node in enumerate(chain) if node.id == row.raw_tip), None)
    if position is None or position + 1 >= len(chain):
        return None
    [message] = inspector.host_messages(db, chain[position + 1 : position + 2])
    if not isinstance(message, ModelResponse):
        return None
    return "\n\n".join(part.content for part in message.parts if isinstance(part, TextPart)) or None


def _dataset(row: RequestRow, info: SessionRow, messages: list[Any], answer: str | None) -> dict[str, Any]:
    case = {
        "name": f"{info.session_id} request {row.id}",
        "inputs": messages,
        "metadata": {"status": row.status, "budget": row.budget, "tokens_sent": row.tokens_sent},
    }
    if answer is not None:
        case["expected_output"] = answer
    return {"name": f"request-{row.id}", "cases": [case], "evaluators": []}


def _python(row: RequestRow, info: SessionRow, messages: list[Any]) -> str:
    lines = ",\n".join(f"    {json.dumps(message)!r}" for message in messages)
    return (
        "from pydantic_ai.messages import ModelMessagesTypeAdapter\n\n"
        f"# request {row.id} of session {ascii(info.session_id)}: {row.tokens_sent} tokens, {row.status}\n"
        f"MESSAGES = [\n{lines},\n]\n"
        'messages = ModelMessagesTypeAdapter.validate_json("[" + ",".join(MESSAGES) + "]")\n'
    )


def _text(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
