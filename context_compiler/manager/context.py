"""What a session sends: system text, what memory says, the summary of what went before, and the newest turns.

Notes are data: they stand on the user channel, what users said is fenced, and each carries the mark by which this
package knows its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic_ai.messages import ModelMessage, ModelRequest, SystemPromptPart

from context_compiler.compiler.quotes import QUOTES
from context_compiler.compiler.view import marked_request, note_text, stamp_of
from context_compiler.manager.results import GroundedContext, Match
from context_compiler.manager.session import Session
from context_compiler.messages.fences import fence, neutral
from context_compiler.messages.history import Reader
from context_compiler.template.prompts import prose

GROUNDED = "Relevant context from memory:"
SUMMARIZED = "Summary of earlier conversation:"
MARKED = {"v": 1}
STAMP = stamp_of(marked_request("", MARKED))
"""The time of what has none, so that the same session says the same again."""

SHOWN, WIDTH = 3, 100
"""So many memories, each cut to so many characters, are the summary of a grounding."""


def opening(session: Session) -> list[ModelMessage]:
    """What stands before the turns."""
    found: list[ModelMessage] = []
    own = [SystemPromptPart(content=session.system_prompt, timestamp=STAMP)] if session.system_prompt.strip() else []
    if own or session.system:
        found.append(ModelRequest(parts=[*own, *session.system]))
    if session.grounding:
        listed = "\n".join(f"- {match.memory.text.strip()}" for match in session.grounding)
        found.append(marked_request(f"{GROUNDED}\n{fence('memory', listed)}", MARKED))
    if session.summary:
        found.append(marked_request(note_text(f"{SUMMARIZED}\n{neutral(session.summary)}", prose("preface")), MARKED))
    if session.index:
        found.append(marked_request(fence(QUOTES, session.index), MARKED))
    return found


def context_messages(session: Session, leaving_out: frozenset[int] = frozenset()) -> list[ModelMessage]:
    """Everything that is sent, without the turns of these keys."""
    turns = (turn for turn in session.verbatim if turn.key not in leaving_out)
    return [*opening(session), *(message for turn in turns for message in turn.messages)]


def tokens_of(session: Session, reader: Reader) -> int:
    """What `context_messages` costs; the turns have been counted when they were added."""
    return sum(reader.one(message).tokens for message in opening(session)) + sum(
        turn.tokens for turn in session.verbatim
    )


def grounded(matches: Sequence[Match]) -> GroundedContext:
    """Matches as they are told to a caller."""
    return GroundedContext(
        memories=tuple(match.memory for match in matches),
        summary="; ".join(match.memory.text[:WIDTH] for match in matches[:SHOWN]),
        relevance_scores=tuple(match.score for match in matches),
    )
