"""A view of one request is built, counted as the host will render it, checked, and explained."""

from __future__ import annotations

from pydantic_ai.messages import ModelMessage, ModelResponse

from context_compiler.compiler.advance_through import RAW, Advanced, sections_of, why_kept
from context_compiler.compiler.cycle import Frozen
from context_compiler.compiler.recall_block import texts
from context_compiler.compiler.rows import ledger
from context_compiler.compiler.view import LEFT_OUT, View, mark_in, marked_request, opening, since, summary_of
from context_compiler.errors import ContextCompilerError
from context_compiler.layers.context import insert_block, with_layer_tokens
from context_compiler.messages.history import History
from context_compiler.messages.turns import pair
from context_compiler.middleware.state import Case, Result


def built(case: Case, cycle: Frozen | None, status: str, done: Advanced | None = None) -> Result:
    """A view with its ledger: of a cycle, or of raw history, which is sent as the same objects in the same order.

    Raises:
        ContextCompilerError: the view may not go out as it is.
    """
    request, history, told = case.request, case.history, case.request.told
    frozen, marks = cycle or RAW, case.marks(cycle)
    untouched = cycle is None and not case.base and not told.text and not _unled(request.messages)
    messages = list(request.messages) if untouched else insert_block(_messages(case, frozen), told)
    sent = history if untouched else _whole(case.reader.read(messages, last=case.run.view), history)
    case.run.view = sent
    drops = (*told.drops, *(done.cut.bench.drops if done else ()))
    blocks = () if untouched else texts(frozen, history).values()
    kept = () if untouched else why_kept(frozen, case)
    sections = {
        "instructions and schemas": request.overhead,
        **with_layer_tokens(sections_of(frozen, sent, case.counter, blocks), told),
    }
    view = View(
        messages=messages,
        tokens=sent.tokens,
        budget=int(marks.budget * marks.ratio),
        status=status,
        summary=summary_of(frozen),
        ledger=ledger(sections, drops, kept),
        drops=drops,
        kept=kept,
        quoted=(*told.sections, *(done.quoted if done else ())),
    )
    return Result(
        view=view,
        raw=history,
        sent=sent,
        frozen=cycle,
        turn=case.turn,
        cost=request.overhead + sent.tokens if untouched else _cost(case, messages),
        limit=marks.budget,
        ratio=marks.ratio,
    )


def _messages(case: Case, frozen: Frozen) -> list[ModelMessage]:
    """The messages of a view; what a cycle froze is built once."""
    run, history = case.run, case.history
    if run.prefix is None or run.prefix[0] is not frozen or frozen.decided >= len(history):
        run.prefix = (frozen, opening(history, frozen, case.reader))
    later = since(history, frozen.decided, case.base, case.reader, texts(frozen, history))
    messages = [*run.prefix[1], *later]
    unmarked = case.request.marked and not any(map(mark_in, run.prefix[1]))
    return [marked_request(LEFT_OUT, {"v": 1}), *messages] if unmarked or _unled(messages) else messages


def _unled(messages: list[ModelMessage]) -> bool:
    """Whether an assistant would speak first, which providers refuse; some hosts render what was loaded so."""
    for message in messages:
        kinds = {part.part_kind for part in message.parts}
        if isinstance(message, ModelResponse) or "tool-availability-delta" in kinds:
            return True
        if kinds & {"user-prompt", "compaction"}:
            return False
    return False


def _cost(case: Case, messages: list[ModelMessage]) -> int:
    """What a request takes as the host renders it, in exact tokens."""
    framed = case.request.framing(messages) if case.request.framing else messages
    one = case.reader.one
    return case.request.overhead + max(sum(one(m).tokens for m in framed), sum(one(m).tokens for m in messages))


def _whole(sent: History, raw: History) -> History:
    """The view, if it may go out: pairs whole, the active request last.

    Raises:
        ContextCompilerError: it may not; raw history is better than that.
    """
    if not sent.readings or sent.readings[-1].request != raw.readings[-1].request:
        raise ContextCompilerError("the view does not end with the active request")
    last, asked = sent.readings[-1], raw.readings[-1]
    if (asked.prompts and not last.prompts) or not set(last.answers) <= set(asked.answers):
        raise ContextCompilerError("the view ends with another request than the active one")
    if pair(sent).broken:
        raise ContextCompilerError("the view has a call without its answer, or an answer without its call")
    return sent
