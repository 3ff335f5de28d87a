"""A conversation is told twice, in markdown and on the record; whichever lacks something has it from the other.

Pure: messages and told turns go in, and what each side lacks comes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolReturnPart,
    UserPromptPart,
)

from context_compiler.chat.transcript import Told
from context_compiler.messages.content import is_media, placeholder

BETWEEN = "\n\n"
"""What stands in a transcript between two texts of one answer."""

FINAL = "Final result processed."
"""What the host notes where an answer that is no text has been taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Healed:
    """Both sides brought up to date."""

    messages: list[ModelMessage]
    missing: tuple[Told, ...] = ()
    """Turns that the transcript lacks."""
    torn: str = ""
    """What the transcript lacks of its last prompt."""
    rest: str = ""
    """What the transcript lacks of its last answer."""
    begun: bool = False
    """It has the beginning of that answer."""
    conflict: int = 0
    """The first turn, from 1, of which the two say different things; 0: none."""


def said(messages: Sequence[ModelMessage]) -> list[Told]:
    """What a user saw of a history, turn by turn."""
    turns: list[Told] = []
    for message in messages:
        if isinstance(message, ModelRequest):
            prompts = [part for part in message.parts if isinstance(part, UserPromptPart)]
            turns += [Told(user=_prompt(part), when=part.timestamp) for part in prompts]
            continue
        texts = [part.content for part in message.parts if isinstance(part, TextPart) and part.content]
        if turns and texts:
            before = turns[-1].assistant
            turns[-1] = replace(turns[-1], assistant=BETWEEN.join([*([before] if before else []), *texts]))
    return turns


def last_turn(messages: Sequence[ModelMessage]) -> Sequence[ModelMessage]:
    """The messages from the last prompt on."""
    for at in range(len(messages) - 1, -1, -1):
        if any(isinstance(part, UserPromptPart) for part in messages[at].parts):
            return messages[at:]
    return ()


def _prompt(part: UserPromptPart) -> str:
    if isinstance(part.content, str):
        return part.content
    return "\n".join(_piece(piece) for piece in part.content)


def _piece(piece: object) -> str:
    if isinstance(piece, str):
        return piece
    said = getattr(piece, "content", "")
    return placeholder(piece) if is_media(piece) else said if isinstance(said, str) else ""


def healed(messages: Sequence[ModelMessage], own: Sequence[Told], told: Sequence[Told]) -> Healed:
    """Give each side what only the other one has.

    Args:
        messages: The history as the record has it.
        own: What was said in it.
        told: The turns as the transcript has them.
    """
    shared = min(len(own), len(told))
    torn = _torn(own, told)
    if shared and own[shared - 1].user != told[shared - 1].user + torn:
        at = next(at for at in range(shared) if own[at].user != told[at].user)
        return Healed(messages=list(messages), conflict=at + 1)
    if len(told) > len(own):
        more = [message for turn in told[len(own) :] for message in _as_messages(turn)]
        return Healed(messages=[*messages, *more])
    if len(own) > len(told):
        found = Healed(messages=list(messages), missing=tuple(own[len(told) :]))
    else:
        found = Healed(messages=[*messages, *_unfinished(messages, own, told)])
    begun = bool(told) and told[-1].assistant is not None
    return replace(found, torn=torn, rest=_rest(own, told), begun=begun)


def _torn(own: Sequence[Told], told: Sequence[Told]) -> str:
    """What a full disk has kept out of the last prompt."""
    if not told or len(told) > len(own) or told[-1].assistant is not None:
        return ""
    known = own[len(told) - 1].user
    return known.removeprefix(told[-1].user) if known.startswith(told[-1].user) else ""


def _as_messages(turn: Told) -> list[ModelMessage]:
    """A turn of which only the transcript knows, as text."""
    prompt = UserPromptPart(turn.user) if turn.when is None else UserPromptPart(turn.user, timestamp=turn.when)
    request = ModelRequest(parts=[prompt])
    return [request, *([_partial(turn.assistant)] if turn.assistant else [])]


def _partial(text: str) -> ModelResponse:
    return ModelResponse(parts=[TextPart(text)], state="interrupted")


def _unfinished(messages: Sequence[ModelMessage], own: Sequence[Told], told: Sequence[Told]) -> list[ModelMessage]:
    """What was on the screen of an answer that the record does not know, because the process was killed."""
    if not own or not isinstance(messages[-1], ModelRequest):
        return []
    parts = messages[-1].parts
    if any(isinstance(part, ToolReturnPart) and part.content == FINAL for part in parts):
        return []
    known, shown = own[-1].assistant or "", told[-1].assistant or ""
    rest = shown.removeprefix(known).removeprefix(BETWEEN if known else "")
    return [_partial(rest)] if shown.startswith(known) and rest else []


def _rest(own: Sequence[Told], told: Sequence[Told]) -> str:
    """What the last turn that the transcript has lacks of its answer."""
    if not told:
        return ""
    known, shown = own[len(told) - 1].assistant or "", told[-1].assistant or ""
    return known[len(shown) :] if known.startswith(shown) else ""
