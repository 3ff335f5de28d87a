"""Cline histories: Anthropic messages in which tool calls are tags in a text, and tool results are texts of the user.

A file that is attached to a prompt (`<file_content path="…">`) becomes the result of a `read_file` call, so that a
later version of the file supersedes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from pydantic_ai.messages import ModelRequestPart, ModelResponsePart, TextPart, ToolCallPart

from context_compiler.messages.importers import anthropic_messages
from context_compiler.messages.importers.content import blocks, call, prompt, response_parts, system
from context_compiler.messages.importers.draft import Draft, Json, mapping, sequence, text, time_of
from context_compiler.messages.importers.openai_chat import read_role

_TOOLS = (
    "execute_command read_file write_to_file replace_in_file apply_diff insert_content search_and_replace search_files "
    "list_files list_code_definition_names browser_action use_mcp_tool access_mcp_resource ask_followup_question "
    "attempt_completion new_task plan_mode_respond load_mcp_documentation fetch_instructions switch_mode"
).split()

_TAG = re.compile(rf"<({'|'.join(_TOOLS)})>")
_PARAMETER = re.compile(r"<([a-z_]{1,40})>")
_RESULT = re.compile(r"\[([a-z_]{1,40})(?: for [^\n]{0,2000}?)?\] Result:[ \n]?")
_FILE = re.compile(r"<file_content path=\"([^\"\n]{1,1000})\">")
_FILE_END = "</file_content>"
_DETAILS = "<environment_details>"


def matches(entry: Json) -> bool:
    """True for a user message that contains Cline's environment details, its task tag, or a tool result as text."""
    if entry.get("role") != "user":
        return False
    texts = (text((mapping(block) or {}).get("text")) for block in sequence(entry.get("content")) or [])
    return any(prose.startswith((_DETAILS, "<task>")) or _RESULT.match(prose) for prose in texts if prose)


def read(draft: Draft, entries: Sequence[object], head: Json) -> None:
    """Read messages, oldest first."""
    for entry in draft.each(entries):
        read_role(draft, entry, _ROLES)


def _assistant(draft: Draft, entry: Json) -> None:
    """Add a response; tags of a tool in its text become a tool call."""
    parts: list[ModelResponsePart] = []
    for part in response_parts(draft, entry.get("content"), provider="anthropic"):
        if isinstance(part, TextPart):
            parts += _calls(draft, part.content, len(parts))
        else:
            parts.append(part)
    draft.respond(parts, time=time_of(entry))


def _calls(draft: Draft, prose: str, position: int) -> list[ModelResponsePart]:
    """Split a text at its first tool tag, if that is closed, into the text before, the call, and the text after."""
    tag = _TAG.search(prose)
    end = prose.find(f"</{tag[1]}>", tag.end()) if tag else -1
    if tag is None or end < 0:
        return [TextPart(content=prose)]
    before, after = prose[: tag.start()].strip(), prose[end + len(tag[1]) + 3 :].strip()
    parts: list[ModelResponsePart] = [TextPart(content=before)] if before else []
    parts.append(
        call(draft, tag[1], dict(_parameters(prose[tag.end() : end])), call_id=None, position=position + len(parts))
    )
    return [*parts, TextPart(content=after)] if after else parts


def _parameters(inner: str) -> Iterator[tuple[str, object]]:
    position = 0
    while (tag := _PARAMETER.search(inner, position)) is not None:
        end = inner.find(f"</{tag[1]}>", tag.end())
        if end < 0:
            return
        yield tag[1], inner[tag.end() : end].strip("\n")
        position = end + len(tag[1]) + 3


def _user(draft: Draft, entry: Json) -> None:
    """Add a user message: its tool results and then the user's own text, or a prompt with attached files."""
    when = time_of(entry)
    content = blocks(draft, entry.get("content"))
    texts = [prose if isinstance(prose, str) else text((mapping(prose) or {}).get("text")) for prose in content]
    if not any(prose is not None and _RESULT.match(prose) for prose in texts):
        _prompt(draft, entry, content, texts)
        return
    results: list[tuple[str, list[str]]] = []
    rest: list[object] = []
    for block, prose in zip(content, texts, strict=True):
        match = _RESULT.match(prose) if prose is not None else None
        if prose is not None and match is not None:
            results.append((match[1], [prose[match.end() :]]))
        elif prose is not None and results and not prose.startswith(_DETAILS):
            results[-1][1].append(prose)
        else:
            rest.append(block)
    parts: list[ModelRequestPart] = [
        draft.result("\n".join(filter(None, prose)), call_id=None, name=name, time=when) for name, prose in results
    ]
    draft.request([*parts, prompt(draft, rest, entry)] if rest else parts, time=when)


def _prompt(draft: Draft, entry: Json, content: Sequence[object], texts: Sequence[str | None]) -> None:
    """Add a prompt without the files attached to it, then a `read_file` exchange for each file."""
    files: list[tuple[str, str]] = []
    kept: list[object] = []
    for block, prose in zip(content, texts, strict=True):
        if prose is None:
            kept.append(block)
            continue
        left, attached = _extract_files(prose)
        files += attached
        if left:
            kept.append(left)
    anthropic_messages.user(draft, {**entry, "content": kept})
    when = time_of(entry)
    for position, (path, body) in enumerate(files):
        draft.note("file in a prompt taken as the result of a read_file call")
        id = f"file-{draft.at}-{position}"
        draft.respond([ToolCallPart(tool_name="read_file", args={"path": path}, tool_call_id=id)], time=when)
        draft.request([draft.result(body, call_id=id, name="read_file", time=when)], time=when)


def _extract_files(prose: str) -> tuple[str, list[tuple[str, str]]]:
    """Replace the file blocks in a text by labels; return the text, and the path and body of each file."""
    files: list[tuple[str, str]] = []
    left: list[str] = []
    position = 0
    while (tag := _FILE.search(prose, position)) is not None:
        end = prose.find(_FILE_END, tag.end())
        if end < 0:
            break
        left.append(f"{prose[position : tag.start()]}[file: {tag[1]}]")
        files.append((tag[1], prose[tag.end() : end].strip("\n")))
        position = end + len(_FILE_END)
    return "".join([*left, prose[position:]]), files


_ROLES: dict[str, Callable[[Draft, Json], None]] = {"user": _user, "assistant": _assistant, "system": system}
