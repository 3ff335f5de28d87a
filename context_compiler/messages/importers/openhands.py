"""OpenHands trajectories: events of an agent, its user and its environment, in the older and the newer format.

Older events have an `action` or an `observation`, newer ones a `kind` that ends with `Event`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from pydantic_ai.messages import ModelResponsePart, TextPart, ThinkingPart

from context_compiler.messages.importers.content import answer, call, result_content, system
from context_compiler.messages.importers.draft import Draft, Json, mapping, sequence, text, time_of
from context_compiler.messages.importers.openai_chat import ROLES, read_role, user

_SOURCES = ("user", "agent", "environment")

_INTERNAL = ("change_agent_state", "agent_state_changed", "null", "recall")
"""Events that are not part of the conversation."""

_OWN_ARGUMENTS = tuple("thought hidden confirmation_state security_risk blocking is_static wait_for_response".split())
"""Arguments of an action that OpenHands added; the model did not write them."""


def matches(entry: Json) -> bool:
    """True for an event of a trajectory."""
    if entry.get("source") not in _SOURCES:
        return False
    return "action" in entry or "observation" in entry or str(entry.get("kind")).endswith("Event")


def read(draft: Draft, entries: Sequence[object], head: Json) -> None:
    """Read events, oldest first."""
    reply: object = None
    for event in draft.objects(entries, "an event", "an action, an observation or a kind"):
        joins = reply is not None and reply == _reply_id(event)
        if "kind" in event:
            _NEWER.get(str(event["kind"]), _skip)(draft, event, joins)
        elif "action" in event:
            _action(draft, event, joins)
        elif "observation" in event:
            _observation(draft, event)
        else:
            _skip(draft, event, joins)
        reply = _reply_id(event) or reply


def _reply_id(event: Json) -> object:
    """Id of the model's response from which an action comes."""
    metadata = mapping(event.get("tool_call_metadata")) or {}
    return event.get("llm_response_id") or (mapping(metadata.get("model_response")) or {}).get("id")


def _skip(draft: Draft, event: Json, joins: bool) -> None:
    draft.note(f"skipped event of kind {str(event.get('kind') or event.get('action') or '?')[:40]!r}")


def _action(draft: Draft, event: Json, joins: bool) -> None:
    """Add an older action: a message, or a tool call with the thought before it."""
    name, args = text(event.get("action")) or "", mapping(event.get("args")) or {}
    content = text(args.get("content")) or text(event.get("message")) or ""
    if name in _INTERNAL:
        return
    if name == "system":
        system(draft, {"content": content, "timestamp": event.get("timestamp")})
    elif event.get("source") == "user":
        if name != "message":
            draft.note("action of the user kept as a prompt")
            content = f"Ran {name}: {text(args.get('command')) or content}"
        user(draft, {**event, "content": content})
    elif name in ("message", "finish"):
        final = text(args.get("final_thought")) or content
        draft.respond([TextPart(content=final)] if final else [], time=time_of(event), joins=joins)
    else:
        thought = text(args.get("thought"))
        parts: list[ModelResponsePart] = [TextPart(content=thought)] if thought else []
        parts.append(_older_call(draft, event, name, args))
        draft.respond(parts, time=time_of(event), joins=joins)


def _older_call(draft: Draft, event: Json, name: str, action: Json) -> ModelResponsePart:
    """Build the tool call as the model wrote it; if that is not recorded, from the action and its arguments."""
    metadata = mapping(event.get("tool_call_metadata")) or {}
    call_id = metadata.get("tool_call_id")
    response = mapping(metadata.get("model_response")) or {}
    for choice in sequence(response.get("choices")) or []:
        message = mapping((mapping(choice) or {}).get("message")) or {}
        for value in sequence(message.get("tool_calls")) or []:
            fields = mapping(value) or {}
            function = mapping(fields.get("function")) or {}
            if fields.get("id") == call_id and call_id is not None:
                return call(draft, function.get("name"), function.get("arguments"), call_id=call_id, position=0)
    arguments = {key: value for key, value in action.items() if key not in _OWN_ARGUMENTS}
    id = call_id or f"event-{event.get('id', draft.at)}"
    return call(draft, metadata.get("function_name") or name, arguments, call_id=id, position=0)


def _observation(draft: Draft, event: Json) -> None:
    """Add an older observation, which is the result of an action."""
    if event.get("observation") in _INTERNAL:
        return
    metadata = mapping(event.get("tool_call_metadata")) or {}
    event = {**event, "content": text(event.get("content")) or ""}
    call_id = text(metadata.get("tool_call_id"))
    if call_id is None and event.get("cause") is not None:
        call_id = f"event-{event['cause']}"
    if event.get("source") == "user" or call_id is None:
        draft.note("observation without an action kept as a prompt")
        user(draft, event)
    else:
        answer(draft, event, call_id, None, failed=event.get("observation") == "error")


def _system_prompt(draft: Draft, event: Json, joins: bool) -> None:
    content = mapping(event.get("system_prompt")) or {}
    system(draft, {"content": text(content.get("text")) or "", "timestamp": event.get("timestamp")})


def _message(draft: Draft, event: Json, joins: bool) -> None:
    read_role(draft, {**(mapping(event.get("llm_message")) or {}), "timestamp": event.get("timestamp")}, ROLES)


def _newer_action(draft: Draft, event: Json, joins: bool) -> None:
    reasoning = text(event.get("reasoning_content"))
    parts: list[ModelResponsePart] = [ThinkingPart(content=reasoning)] if reasoning else []
    thoughts = (text((mapping(block) or {}).get("text")) for block in sequence(event.get("thought")) or [])
    parts += [TextPart(content=thought) for thought in thoughts if thought]
    tool_call = mapping(event.get("tool_call")) or {}
    function = mapping(tool_call.get("function")) or tool_call
    arguments = function.get("arguments", mapping(event.get("action")))
    name = text(event.get("tool_name")) or function.get("name")
    parts.append(call(draft, name, arguments, call_id=event.get("tool_call_id") or tool_call.get("id"), position=0))
    draft.respond(parts, time=time_of(event), joins=joins)


def _newer_result(draft: Draft, event: Json, joins: bool) -> None:
    """Add the result of a call, or the reason why it has none."""
    observation = mapping(event.get("observation"))
    content: object = event.get("error") or event.get("rejection_reason")
    failed = observation is None or observation.get("is_error") is True
    if observation is not None:
        blocks = observation.get("content", observation.get("output"))
        if isinstance(blocks, str) or sequence(blocks) is not None:
            content = result_content(draft, blocks)
        else:
            content = json.dumps(observation, ensure_ascii=False)
    part = draft.result(
        content if content is not None else "",
        call_id=text(event.get("tool_call_id")),
        name=text(event.get("tool_name")),
        failed=failed,
        time=time_of(event),
    )
    draft.request([part], time=time_of(event))


_NEWER: dict[str, Callable[[Draft, Json, bool], None]] = {
    "SystemPromptEvent": _system_prompt,
    "MessageEvent": _message,
    "ActionEvent": _newer_action,
    "ObservationEvent": _newer_result,
    "UserRejectObservation": _newer_result,
    "AgentErrorEvent": _newer_result,
}
