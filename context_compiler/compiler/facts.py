"""Search for a fact in a session: which requests contained it, in which form, and when and why it was cut."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from importlib import import_module
from itertools import groupby
from typing import TYPE_CHECKING

from context_compiler.cache import CACHED, Memo
from context_compiler.compiler.echoes import LISTED
from context_compiler.compiler.reasons import PINNED, reason_of
from context_compiler.compiler.trace import HITS, Tracer, fate_of, is_covered_by_summary, request_of, session_of
from context_compiler.ids import chain_id, identity
from context_compiler.messages.display import (
    BESIDE,
    FORMS,
    IDENTIFIER,
    OUTLINE,
    QUOTED,
    RECALLED,
    RULE,
    SHORTENED,
    SUMMARY,
    VERBATIM,
    role,
    segments,
)
from context_compiler.messages.history import Reading, searchable
from context_compiler.record import browse
from context_compiler.record.browse import Node, RequestTips, Row, SessionRow
from context_compiler.record.database import Database
from context_compiler.record.sessions import actions_of
from context_compiler.record.values import mapping_of, standing_pins

if TYPE_CHECKING:
    from context_compiler.compiler.nearest import Nearest

ORDER = tuple(FORMS)
"""Forms, the fullest first. A set of forms is a bit mask in this order."""

CHOSEN = {SUMMARY: "words", QUOTED: "quotes", RULE: "rules", OUTLINE: "topics", IDENTIFIER: "identifiers"}
"""Forms that a compile writes, with the name of their content."""

EXCERPT = 160
"""Characters shown of a message, or on each side of a fact in it."""

PINS_BY_POSITION = 5_000
"""Maximum messages of a history in which pins are found by position; in a longer one, equal messages share a pin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mention:
    """A raw message that contains the fact, with its surroundings."""

    index: int
    role: str
    before: str
    fact: str
    after: str
    lost: int
    """Request that left the fact out last, since this message; 0 if all had it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Consecutive requests that contain the fact in the same forms."""

    first: int
    last: int
    requests: int
    turns: tuple[int, ...]
    """First and last turn, from 1."""
    forms: tuple[str, ...]
    """Empty if the fact is not in the requests."""
    known: bool
    """True if the raw history already contains the fact."""
    reason: str
    """Reason why the requests do not have the fact, no longer word for word, or word for word again; empty for none."""
    step: int
    """Step of the cut order that cut it; 0 for none."""
    request: int
    """Request that dropped it; 0 for none."""
    told: bool
    """True if the fact is not there but a summary covers a message with it, so that it may be paraphrased."""

    @property
    def because(self) -> str:
        """The reason, with the request and the step that dropped the fact; empty for none."""
        step = f" (step {self.step} of the cut order)" if self.step else ""
        if not self.request:
            return self.reason
        if self.forms and reason_of(self.reason) is not None:
            stays = "; the rule stays" if RULE in self.forms else ""
            return f"its message left the view at request {self.request}{step}: {self.reason}{stays}"
        return f"dropped at request {self.request}{step}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Request that dropped a fact."""

    index: int
    """Position of the request in its session."""
    form: str
    """Fullest form in which the request before it had the fact, apart from recall."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactPage:
    """Fate of one fact in one session."""

    session: SessionRow
    fact: str
    mentions: tuple[Mention, ...] = ()
    mentioned: int
    """Number of raw messages that contain it."""
    requests: int
    newest: int
    """Number of the newest request; 0 if there is none."""
    had: int
    """Number of requests that contained it in any form."""
    requests_since: int
    """Number of requests whose raw history contained it."""
    stretches: tuple[Stretch, ...] = ()
    answer: str = ""
    """When the fact left the requests and came back, in a few sentences; empty if no raw history contains it."""
    near: tuple[Mention, ...] = ()
    """If nothing contains the fact: raw messages with the most of its words, each with the sentence that has them.

    Those of the user come first.
    """
    pinned: tuple[int, ...] = ()
    """Positions of the mentions that are pinned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSessions:
    """Sessions with some words, from the newest matches of the text index."""

    numbers: tuple[int, ...]
    near: bool
    """True if no message contains the words as they stand, so that these come nearest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chains:
    """Messages of all requests of a session, parents first."""

    nodes: Mapping[str, Row]
    raw: frozenset[str]
    """Content hashes of raw messages."""
    newest: int
    """Number of the last request."""


class FactSearch:
    """Searches a record for facts, with a cache of recent sessions."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self._chains: Memo[int, Chains] = Memo(CACHED, lambda chains: len(chains.nodes))
        self._roots: dict[str, list[int]] = {}
        self._rooted = 0

    async def session(self, number: int, fact: str) -> FactPage:
        """Fate of a fact in a session."""
        return await self.tracer.read(partial(self._session, number=number, fact=fact.strip()))

    async def sessions(self, text: str) -> FoundSessions:
        """Sessions whose raw history contains a text, or else comes nearest to it."""
        return await self.tracer.read(partial(self._sessions, text=text.strip()))

    def _sessions(self, db: Database, text: str) -> FoundSessions:
        for session, tip in browse.first_tips(db, self._rooted):
            root = browse.root_of(db, tip)
            if root is not None:
                self._roots.setdefault(root, []).append(session)
            self._rooted = max(self._rooted, session)
        sessions: dict[int, None] = {}
        seen: set[str] = set()
        exact = [node for node, _ in browse.matching_nodes(db, text, HITS)]
        for node in exact or _nearest(db, text).nodes:
            root = browse.root_of(db, node)
            if root is not None and root not in seen:
                seen.add(root)
                sessions |= dict.fromkeys(self._roots.get(root, ()))
        return FoundSessions(numbers=tuple(sessions), near=bool(sessions) and not exact)

    def _session(self, db: Database, number: int, fact: str) -> FactPage:
        info = session_of(db, number)
        tips = browse.request_tips(db, number)
        if not fact or not tips:
            newest = tips[-1].id if tips else 0
            return FactPage(
                session=info, fact=fact, mentioned=0, requests=len(tips), newest=newest, had=0, requests_since=0
            )
        chains = self._read(db, number, tips)
        own = self._forms(db, chains, fact)
        masks = self._masks(db, chains, tips, own, fact)
        places = {content for content, mask in own.items() if mask & _bit(VERBATIM)}
        mentions, mentioned = self._mentions(db, info, tips, places, fact)
        positions = [mention.index for mention in mentions]
        is_recorded = any(mask or raw for mask, raw in masks)
        lengths = [_length(chains, tip) for tip in tips]
        stretches = tuple(self._stretches(db, tips, masks, positions, lengths))
        ids = [tip.id for tip in tips]
        mentions = [replace(mention, lost=_lost(stretches, ids, lengths, mention.index)) for mention in mentions]
        pinned = pinned_positions(db, number, self._raw_chain(db, info, tips), positions)
        return FactPage(
            session=info,
            fact=fact,
            mentions=tuple(mentions),
            mentioned=mentioned,
            requests=len(tips),
            newest=tips[-1].id,
            had=sum(bool(mask) for mask, _ in masks),
            requests_since=sum(bool(raw) for _, raw in masks),
            stretches=stretches,
            answer=answer_of(stretches, pinned),
            near=() if is_recorded else self._near(db, info, tips, fact),
            pinned=pinned,
        )

    def _masks(
        self, db: Database, chains: Chains, tips: Sequence[RequestTips], own: Mapping[str, int], fact: str
    ) -> list[tuple[int, int]]:
        """For each request, the bit masks of its forms of the fact: as sent, and in its raw history."""
        reached: dict[str, int] = {}
        for name, parent, content, *_ in chains.nodes.values():
            reached[name] = reached.get(parent or "", 0) | own.get(content, 0)
        beside = self._beside(db, chains, tips, fact)
        return [
            (
                reached.get(tip.view_tip or "", 0) | beside.get(_instructions(chains, tip), 0),
                reached.get(tip.raw_tip or "", 0),
            )
            for tip in tips
        ]

    def _near(self, db: Database, info: SessionRow, tips: Sequence[RequestTips], fact: str) -> tuple[Mention, ...]:
        chain = self._raw_chain(db, info, tips)
        places = {node.id: position for position, node in enumerate(chain)}
        nearest = _nearest(db, fact, places)
        positions = [places[node] for node in nearest.nodes[:LISTED]]
        readings = self.tracer.uncounted(db, [chain[position] for position in positions])
        mentions = (
            _mention(position, reading, nearest.sentence(searchable(reading)))
            for position, reading in zip(positions, readings, strict=True)
        )
        return tuple(sorted(mentions, key=lambda mention: mention.role != "user"))

    def _raw_chain(self, db: Database, info: SessionRow, tips: Sequence[RequestTips]) -> Sequence[Node]:
        """Newest raw history of a session."""
        tip = next((request.raw_tip for request in reversed(tips) if request.raw_tip is not None), None)
        return self.tracer.chain(db, tip, info.id)

    def _read(self, db: Database, number: int, tips: Sequence[RequestTips]) -> Chains:
        cached = self._chains.get(number)
        if cached is not None and cached.newest == tips[-1].id:
            return cached
        nodes = self.tracer.links(db, number, tips)
        raw: set[str] = set()
        seen: set[str] = set()
        for tip in tips:
            node = tip.raw_tip
            while node is not None and node not in seen and node in nodes:
                seen.add(node)
                _, node, content, *_ = nodes[node]
                raw.add(content)
        chains = Chains(nodes=nodes, raw=frozenset(raw), newest=tips[-1].id)
        self._chains.keep(number, chains)
        return chains

    def _forms(self, db: Database, chains: Chains, fact: str) -> dict[str, int]:
        """Bit mask of the forms in which each message contains the fact, by content hash."""
        masks: dict[str, int] = {}
        folded = _flat(fact)
        for node, text in browse.matching_nodes(db, fact, None):
            if node in chains.nodes and folded in _flat(text):
                masks[chains.nodes[node][2]] = _bit(VERBATIM)
        contents = (content for _, _, content, *_ in chains.nodes.values())
        written = list(dict.fromkeys(content for content in contents if content not in chains.raw))
        words = [word.encode() for word in re.findall(r"[a-z0-9]{2,}", folded)]  # JSON does not escape them
        holding = [
            content
            for content, body in zip(written, browse.bodies(db, written), strict=True)
            if all(word in body.lower() for word in words)
        ]
        readings = self.tracer.uncounted(db, [Node("", content) for content in holding])
        for content, reading in zip(holding, readings, strict=True):
            if mask := sum(_bit(form) for form in set(_forms_in(reading, folded))):
                masks[content] = mask
        return masks

    def _beside(self, db: Database, chains: Chains, tips: Sequence[RequestTips], fact: str) -> dict[str | None, int]:
        """Bit mask for the instructions that contain the fact, by their hash."""
        names = sorted({name for tip in tips if (name := _instructions(chains, tip)) is not None})
        texts = zip(names, browse.bodies(db, names), strict=True)
        return {name: _bit(BESIDE) for name, body in texts if _flat(fact) in _flat(body.decode("utf-8", "replace"))}

    def _mentions(
        self, db: Database, info: SessionRow, tips: Sequence[RequestTips], contents: Set[str], fact: str
    ) -> tuple[list[Mention], int]:
        chain = self._raw_chain(db, info, tips)
        places = [position for position, node in enumerate(chain) if node.content in contents]
        readings = self.tracer.uncounted(db, [chain[position] for position in places[:LISTED]])
        mentions = [_mention(position, reading, fact) for position, reading in zip(places, readings, strict=False)]
        return mentions, len(places)

    def _stretches(
        self,
        db: Database,
        tips: Sequence[RequestTips],
        masks: Sequence[tuple[int, int]],
        mentions: Sequence[int],
        lengths: Sequence[int],
    ) -> Iterator[Stretch]:
        losses, explained = _losses(masks), dict[Loss, tuple[str, int]]()
        searched = 0
        for (mask, in_raw), group in groupby(
            range(len(tips)), key=lambda index: (masks[index][0], bool(masks[index][1]))
        ):
            places = list(group)
            first, last, loss = tips[places[0]], tips[places[-1]], losses[places[0]]
            told = False
            if in_raw and not mask and searched < LISTED:
                told = self._is_told(db, first.id, mentions)
                searched += 1
            if loss is not None and loss not in explained and len(explained) < LISTED:
                explained[loss] = self._reason(db, tips, loss, mentions)
            shown = loss if loss is not None and (not mask or loss.index == places[0]) else None
            reason, step = explained.get(shown, ("", 0)) if shown is not None else ("", 0)
            if mask & _bit(VERBATIM):
                new = range(lengths[places[0] - 1], lengths[places[0]]) if places[0] else range(0)
                again = any(position in new for position in mentions) and bool(masks[places[0] - 1][1])
                reason = self._return(db, first.id, last.id, mentions, again=again)
            yield Stretch(
                first=first.id,
                last=last.id,
                requests=len(places),
                turns=(first.turn_index + 1, last.turn_index + 1),
                forms=tuple(form for form in ORDER if mask & _bit(form)),
                known=in_raw,
                reason=reason,
                step=step,
                request=tips[shown.index].id if shown is not None else 0,
                told=told,
            )

    def _return(self, db: Database, first: int, last: int, mentions: Sequence[int], *, again: bool) -> str:
        """Reason why requests have a fact word for word: a pin, a fallback, or that it was said `again`; else empty."""
        if self._is_pinned(db, last, mentions):
            return PINNED
        row, _ = request_of(db, first)
        if row.status == "fallback":
            return f"a fallback: {(row.error or 'unknown').partition(';')[0]}"
        return f"said again in turn {row.turn_index + 1}" if again else ""

    def _is_pinned(self, db: Database, number: int, mentions: Sequence[int]) -> bool:
        """True if one of these messages was pinned when a request was made."""
        row, _ = request_of(db, number)
        chain = self.tracer.chain(db, row.raw_tip, row.session)
        there = [position for position in mentions if position < len(chain)]
        return bool(pinned_positions(db, row.session, chain, there, row.created_at))

    def _is_told(self, db: Database, number: int, mentions: Sequence[int]) -> bool:
        """True if the summary of a request covers one of these messages."""
        sent = self.tracer.trace(db, *request_of(db, number))
        return any(is_covered_by_summary(sent, position) for position in mentions if position < len(sent.raw))

    def _reason(
        self, db: Database, tips: Sequence[RequestTips], loss: Loss, mentions: Sequence[int]
    ) -> tuple[str, int]:
        """Reason why a request dropped a fact, and the step of the cut order."""
        row, record = request_of(db, tips[loss.index].id)
        if loss.form not in (VERBATIM, SHORTENED):
            before, _ = request_of(db, tips[loss.index - 1].id)
            compiled = loss.form in CHOSEN and (row.summary_id or 0) > (before.summary_id or 0)
            text = f"the compile there chose other {CHOSEN[loss.form]}" if compiled else f"no longer {FORMS[loss.form]}"
            return text, 0
        sent = self.tracer.trace(db, row, record)
        fates = (fate_of(sent, position) for position in mentions if position < len(sent.raw))
        gone = [fate for fate in fates if fate.reason]
        newest = max(gone, key=lambda fate: fate.request or 0, default=None)
        return ("", 0) if newest is None else (newest.reason, newest.step.number if newest.step else 0)


def _nearest(db: Database, text: str, among: Container[str] | None = None) -> Nearest:
    return import_module("context_compiler.compiler.nearest").Nearest(db, text, among)


def pinned_positions(
    db: Database, session: int, chain: Sequence[Node], positions: Sequence[int], before: datetime | None = None
) -> tuple[int, ...]:
    """Those of some positions in a history of a session whose messages are pinned, or were pinned before a time."""
    actions = [action for action in actions_of(db, session) if before is None or action.created_at < before]
    pins = {tip: mapping_of(state).get("name") for tip, state in standing_pins(actions).items()}
    if not pins or not positions:
        return ()
    names = set(pins.values())
    bodies = browse.bodies(db, [chain[position].content for position in positions])
    named = zip(positions, map(identity, bodies), strict=True)
    alike = {position: name for position, name in named if name in names}
    if not alike or len(chain) > PINS_BY_POSITION:
        return tuple(alike)
    tips = list[str]()
    for body in browse.bodies(db, [node.content for node in chain]):
        tips.append(chain_id(tips[-1] if tips else None, identity(body)))
    moved = {name for tip, name in pins.items() if tip not in tips}
    return tuple(position for position, name in alike.items() if tips[position] in pins or name in moved)


def _length(chains: Chains, tip: RequestTips) -> int:
    """Number of messages in the raw history of a request; 0 if it is not on the record."""
    last = chains.nodes.get(tip.raw_tip or "")
    return 0 if last is None else last[3] + 1


def _lost(stretches: Sequence[Stretch], ids: Sequence[int], lengths: Sequence[int], position: int) -> int:
    """Request that left a fact out last, among those whose raw history has the message at a position; 0 for none."""
    since = next((number for number, length in zip(ids, lengths, strict=True) if length > position), 0)
    gone = [stretch for stretch in stretches if stretch.known and not stretch.forms and stretch.last >= since > 0]
    return max(gone[-1].request or gone[-1].first, since) if gone else 0


def _instructions(chains: Chains, tip: RequestTips) -> str | None:
    """Hash of the instructions of a request, which are stored with its last message; None if there are none."""
    last = chains.nodes.get(tip.view_tip or "")
    return last[4] if last is not None else None


def _bit(form: str) -> int:
    return 1 << ORDER.index(form)


def _losses(masks: Sequence[tuple[int, int]]) -> list[Loss | None]:
    """For each request, the one that dropped the fact; None if it is there word for word, or nobody has said it.

    A recalled text is sent for one prompt, so it does not count.
    """
    losses: list[Loss | None] = []
    had, loss = VERBATIM, None
    for index, (mask, in_raw) in enumerate(masks):
        has = _fullest(form for form in ORDER if mask & _bit(form)) if in_raw else VERBATIM
        if has == VERBATIM:
            loss = None
        elif had and (not has or ORDER.index(has) > ORDER.index(had)):
            loss = Loss(index=index, form=had)
        losses.append(loss)
        had = has
    return losses


def _fullest(forms: Iterable[str]) -> str:
    """Fullest form of a fact in a request apart from recall; empty for none."""
    return next((form for form in forms if form != RECALLED), "")


def _flat(text: str) -> str:
    """Normalize a text: on one line, without case."""
    return " ".join(text.casefold().split())


def _forms_in(reading: Reading, folded: str) -> Iterator[str]:
    for item in reading.items:
        if folded not in _flat(item.text):
            continue
        if item.mark is None:
            with_block = any(other.mark is not None for other in reading.items)  # then the part itself is unchanged
            yield VERBATIM if with_block else SHORTENED
        else:
            yield from (piece.form for piece in segments(item.text) if folded in _flat(piece.text))


def _mention(position: int, reading: Reading, fact: str) -> Mention:
    text = " ".join(searchable(reading).split())
    fact = " ".join(fact.split())
    start = max(text.casefold().find(fact.casefold()), 0)
    stop = start + len(fact)
    return Mention(
        index=position,
        role=role(reading),
        before=("…" if start > EXCERPT else "") + text[max(0, start - EXCERPT) : start],
        fact=text[start:stop],
        after=text[stop : stop + EXCERPT] + ("…" if len(text) > stop + EXCERPT else ""),
        lost=0,
    )


def answer_of(stretches: Sequence[Stretch], pinned: Sequence[int]) -> str:
    """When a fact left the requests and came back, in a few sentences; empty if no raw history contains it."""
    since = [stretch for stretch in stretches if stretch.known]
    if not since:
        return ""
    now = since[-1]
    newest = (
        f"The newest request has it, {FORMS[now.forms[0]]}." if now.forms else "The newest request does not have it."
    )
    changes = [list(group) for _, group in groupby(since, key=lambda stretch: _fullest(stretch.forms))]
    told = [_change(change) for change in changes if change[0] is not since[0] or VERBATIM not in change[0].forms]
    some = [f"{len(told) - LISTED} earlier changes", *told[-LISTED:]] if len(told) > LISTED else told
    if pinned and VERBATIM not in now.forms:
        some = [*some, f"Message {pinned[-1]} is pinned now, so that every request from the next run on has it"]
    return " ".join((newest, *(f"{sentence}." for sentence in (f"Said in turn {since[0].turns[0]}", *some))))


def _change(stretches: Sequence[Stretch]) -> str:
    """State of a fact in consecutive requests, and its reason, in one sentence."""
    first, form = stretches[0], _fullest(stretches[0].forms)
    recalled = ", ".join(span(some.first, some.last) for some in stretches if some.forms)
    if not form:
        sent = f"sent only when recalled: {recalled}" if recalled else "not sent"
    else:
        sent = f"sent {FORMS[form]}" if form == VERBATIM else f"only {FORMS[form]}"
    reason = f" ({first.reason})" if first.reason else ""
    return f"Since request {first.first}{reason} it was {sent}"


def span(first: int, last: int) -> str:
    """Numbers of requests or turns in a row."""
    return str(first) if first == last else f"{first}–{last}"
