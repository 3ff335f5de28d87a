"""A view of one request is built, counted as the host will render it, checked, and explained."""

from __future__ import annotations

from pydantic_ai.messages import ModelMessage, ModelResponse

from context_compiler.advance.through import RAW, Advanced, sections_of, why_kept
from context_compiler.budget.frozen import Frozen
from context_compiler.errors import ContextCompilerError
from context_compiler.history import History
from context_compiler.layers.told import with_layers, with_told
from context_compiler.limits import Limits
from context_compiler.live.request import Request
from context_compiler.live.run import Live, Result, Run, Sight
from context_compiler.recall.blocks import texts
from context_compiler.record.recording import ledger
from context_compiler.turns import pair
from context_compiler.view import LEFT_OUT, View, mark_in, marked_request, opening, since, summary_of


def built(
    live: Live,
    run: Run,
    request: Request,
    sight: Sight,
    frozen: Frozen,
    marks: Limits,
    status: str,
    ratio: float,
    done: Advanced | None = None,
) -> Result:
    """A view with its ledger. Raw history is sent as the same objects in the same list order."""
    told = request.told
    untouched = frozen is RAW and not sight.base and not told.text and not _unled(request.messages)
    messages = list(request.messages) if untouched else with_told(_messages(live, run, request, sight, frozen), told)
    sent = sight.history if untouched else _whole(live.reader.read(messages, last=run.view), sight.history)
    cost = request.overhead + sent.tokens if untouched else _cost(live, request, messages)
    run.view = sent
    drops = (*told.drops, *(done.cut.bench.drops if done else ()))
    blocks = () if untouched else texts(frozen, sight.history).values()
    kept = () if untouched else why_kept(frozen, sight.turns, len(sight.history))
    sections = {
        "instructions and schemas": request.overhead,
        **with_layers(sections_of(frozen, sent, live.counter, blocks), told),
    }
    view = View(
        messages=messages,
        tokens=sent.tokens,
        budget=int(marks.budget * ratio),
        status=status,
        summary=summary_of(frozen),
        ledger=ledger(sections, drops, kept),
        drops=drops,
        kept=kept,
        quoted=(*told.sections, *(done.quoted if done else ())),
    )
    return Result(
        view=view,
        raw=sight.history,
        sent=sent,
        frozen=frozen if frozen is not RAW else None,
        turn=sight.turn,
        cost=cost,
        limit=marks.budget,
        ratio=ratio,
    )


def _messages(live: Live, run: Run, request: Request, sight: Sight, frozen: Frozen) -> list[ModelMessage]:
    """The messages of a view; what a cycle froze is built once."""
    if run.prefix is None or run.prefix[0] is not frozen or frozen.decided >= len(sight.history):
        run.prefix = (frozen, opening(sight.history, frozen, live.reader))
    later = since(sight.history, frozen.decided, sight.base, live.reader, texts(frozen, sight.history))
    messages = [*run.prefix[1], *later]
    unmarked = request.marked and not any(map(mark_in, run.prefix[1]))
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


def _cost(live: Live, request: Request, messages: list[ModelMessage]) -> int:
    """What a request takes as the host renders it, in exact tokens."""
    framed = request.framing(messages) if request.framing else messages
    one = live.reader.one
    return request.overhead + max(sum(one(m).tokens for m in framed), sum(one(m).tokens for m in messages))


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
