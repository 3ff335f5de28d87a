"""Compare the two copies of a conversation, the transcript and the record, and find what each of them lacks.

Pure functions: they take messages and transcript turns, and the caller writes what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolReturnPart, UserPromptPart

from context_compiler.chat.transcript import TranscriptTurn
from context_compiler.messages.history import reader_of
from context_compiler.messages.items import is_media, placeholder
from context_compiler.messages.turns import NEAR, prompt_positions
from context_compiler.paths import unify_lines
from context_compiler.tokens import as_counter

TEXT_BREAK = "\n\n"
"""Separator between two texts of one answer in a transcript."""

FINAL = "Final result processed."
"""Text of the tool return that the host adds after structured output."""

_READER = reader_of(as_counter(None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """The complete history, and the parts of it that the transcript lacks."""

    messages: list[ModelMessage]
    missing: tuple[TranscriptTurn, ...] = ()
    """Turns that the transcript lacks."""
    prompt_rest: str = ""
    """End of the transcript's last prompt, if the file has only its beginning."""
    answer_rest: str = ""
    """End of the transcript's last answer, if the file has only its beginning or none of it."""
    answer_begun: bool = False
    """True if the transcript contains the beginning of that answer."""
    conflict: int = 0
    """Number of the first turn that differs, counted from 1; 0 if none differs."""


def visible_turns(messages: Sequence[ModelMessage]) -> list[TranscriptTurn]:
    """Return the turns of a history as its user saw them: prompts and answer texts only."""
    turns: list[TranscriptTurn] = []
    for index, message in enumerate(messages):
        if isinstance(message, ModelRequest):
            prompts = _prompts(messages, index)
            turns += [TranscriptTurn(user=_prompt_text(part), when=part.timestamp) for part in prompts]
            continue
        texts = [unify_lines(part.content) for part in message.parts if isinstance(part, TextPart) and part.content]
        if turns and texts:
            before = turns[-1].assistant
            answer = TEXT_BREAK.join([*([before] if before else []), *texts])
            turns[-1] = replace(turns[-1], assistant=answer)
    return turns


def last_turn(messages: Sequence[ModelMessage]) -> Sequence[ModelMessage]:
    """Return the messages from the last prompt to the end; empty if there is no prompt."""
    for index in range(len(messages) - 1, -1, -1):
        if _prompts(messages, index):
            return messages[index:]
    return ()


def _prompts(messages: Sequence[ModelMessage], index: int) -> list[UserPromptPart]:
    """Return the prompts in a message. What a tool returned beside its result is none: its user did not write it."""
    parts = messages[index].parts
    prompts = [part for part in parts if isinstance(part, UserPromptPart)]
    if not prompts or not any(isinstance(part, ToolReturnPart) for part in parts):
        return prompts  # most messages need not be read, which takes long
    start = max(0, index - NEAR)
    return prompts if index - start in prompt_positions(messages[start : index + 1], _READER) else []


def _prompt_text(part: UserPromptPart) -> str:
    if isinstance(part.content, str):
        return unify_lines(part.content)
    return unify_lines("\n".join(_content_text(content) for content in part.content))


def _content_text(content: object) -> str:
    if isinstance(content, str):
        return content
    text = getattr(content, "content", "")
    return placeholder(content) if is_media(content) else text if isinstance(text, str) else ""


def reconcile(
    messages: Sequence[ModelMessage], recorded: Sequence[TranscriptTurn], written: Sequence[TranscriptTurn]
) -> Reconciled:
    """Merge the record and the transcript into one history, and find what the transcript lacks.

    Args:
        messages: The recorded history.
        recorded: Visible turns of the recorded history.
        written: Turns of the transcript.
    """
    shared = min(len(recorded), len(written))
    prompt_rest = _prompt_rest(recorded, written)
    prompts = [*(turn.user for turn in written[:-1]), *(turn.user + prompt_rest for turn in written[-1:])]
    edited = [index for index in range(shared) if recorded[index].user != prompts[index]]
    conflict = edited[0] + 1 if edited else 0
    if shared - 1 in edited:
        return Reconciled(messages=list(messages), conflict=conflict)
    if len(written) > len(recorded):
        answer = _interrupted_answer(messages, recorded, written[: len(recorded)])
        more = [message for turn in written[len(recorded) :] for message in _as_messages(turn)]
        return Reconciled(messages=[*messages, *answer, *more], conflict=conflict)
    answer_rest = _answer_rest(recorded, written)
    answer_begun = bool(written) and written[-1].assistant is not None
    if answer_rest and answer_begun and written[-1].is_ended:  # it was not cut off: someone has removed the rest
        return Reconciled(messages=list(messages), conflict=conflict or len(written))
    if len(recorded) > len(written):
        merged = Reconciled(messages=list(messages), missing=tuple(recorded[len(written) :]))
    else:
        merged = Reconciled(messages=[*messages, *_interrupted_answer(messages, recorded, written)])
    return replace(
        merged, prompt_rest=prompt_rest, answer_rest=answer_rest, answer_begun=answer_begun, conflict=conflict
    )


def _prompt_rest(recorded: Sequence[TranscriptTurn], written: Sequence[TranscriptTurn]) -> str:
    """End of the transcript's last prompt; a full disk may have kept only the beginning."""
    if not written or len(written) > len(recorded) or written[-1].assistant is not None:
        return ""
    prompt = recorded[len(written) - 1].user
    return prompt.removeprefix(written[-1].user) if prompt.startswith(written[-1].user) else ""


def _as_messages(turn: TranscriptTurn) -> list[ModelMessage]:
    """Convert a turn that only the transcript has to text messages."""
    prompt = UserPromptPart(turn.user) if turn.when is None else UserPromptPart(turn.user, timestamp=turn.when)
    request = ModelRequest(parts=[prompt])
    return [request, *([_interrupted_response(turn.assistant)] if turn.assistant else [])]


def _interrupted_response(text: str) -> ModelResponse:
    return ModelResponse(parts=[TextPart(text)], state="interrupted")


def _interrupted_answer(
    messages: Sequence[ModelMessage], recorded: Sequence[TranscriptTurn], written: Sequence[TranscriptTurn]
) -> list[ModelMessage]:
    """Answer text that was shown before the process was killed but is not in the record, as a message."""
    if not recorded or not isinstance(messages[-1], ModelRequest):
        return []
    if any(isinstance(part, ToolReturnPart) and part.content == FINAL for part in messages[-1].parts):
        return []
    answer, shown = recorded[-1].assistant or "", written[-1].assistant or ""
    rest = shown.removeprefix(answer).removeprefix(TEXT_BREAK if answer else "")
    return [_interrupted_response(rest)] if shown.startswith(answer) and rest else []


def _answer_rest(recorded: Sequence[TranscriptTurn], written: Sequence[TranscriptTurn]) -> str:
    """End of the answer in the transcript's last turn, if the file lacks it."""
    if not written:
        return ""
    answer, shown = recorded[len(written) - 1].assistant or "", written[-1].assistant or ""
    return answer[len(shown) :] if answer.startswith(shown) else ""
