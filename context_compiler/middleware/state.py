"""What a live agent's requests share, what one run remembers, a request once it is read, and what came of it.

`Live` belongs to one compiler and is shared by its runs; `Run` belongs to one run.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pydantic_ai.messages import ModelMessage

from context_compiler.compiler.cycle import Frozen
from context_compiler.compiler.limits import Asked, Limits, limits
from context_compiler.compiler.plan import Options, Sight
from context_compiler.compiler.rows import Where
from context_compiler.compiler.view import View
from context_compiler.layers.context import LayerBlock
from context_compiler.messages.history import History, Reader, reader_of
from context_compiler.messages.turns import Pairing, pair
from context_compiler.middleware.config import Wishes
from context_compiler.middleware.cycles import Cycles
from context_compiler.middleware.request import Request
from context_compiler.record.values import Compile
from context_compiler.settings import Settings
from context_compiler.template.library import TemplateLibrary
from context_compiler.tokens import TokenCounter
from context_compiler.tokens.calibration import Ratios

TIGHT = 0.7
"""What is left of the budget once a provider has refused a request as too long."""


@dataclass(slots=True)
class Run:
    """What one run remembers from request to request."""

    raw: History | None = None
    view: History | None = None
    frozen: Frozen | None = None
    """The cycle that the run is in, or would be in once raw history does not fit any more."""
    kept: Frozen | None = None
    """The cycle as it is on the record."""
    prefix: tuple[Frozen, list[ModelMessage]] | None = None
    """What that cycle froze, built."""
    begun: bool = False
    """Whether it was looked up what the run starts from."""
    ratios: Ratios = field(default_factory=Ratios)
    """What was learnt before this run and in it, not what other runs learn meanwhile: a resumed run decides alike."""
    requests: int = 0
    turn: int = 0
    asked_turn: int = -1
    """The user turn in which a model was asked last, with or without success."""
    opened_turn: int = -1
    """The user turn whose first request `every_turn` has seen."""
    sent: int = 0
    """Exact tokens of the last request as sent; 0 when it was none of ours."""
    budget: int = 0
    """The budget of the last request, in exact tokens."""
    tight: float = 1.0
    """What is left of the budget after a provider refused it, as a share."""
    refused: bool = False
    """The provider has refused a request of this run as too long."""
    failed: Compile | None = None
    """The compile that failed in this request."""
    told: LayerBlock | None = None
    """What the run is told of the layers, once that is settled."""

    def reword(self, frozen: Frozen) -> None:
        """Go on with the same cycle in other words: its beginning stays as it was built."""
        if self.prefix is not None and self.prefix[0] is self.frozen:
            self.prefix = (frozen, self.prefix[1])
        self.frozen = frozen

    def tighten(self) -> None:
        """Go on with less, and without a model for this turn: the provider says the request was too long."""
        self.tight *= TIGHT * (min(1.0, self.sent / self.budget) if self.sent and self.budget else 1.0)
        self.refused = True
        self.asked_turn = self.turn


@dataclass(slots=True, kw_only=True)
class Live:
    """What the requests of one compiler share."""

    wishes: Wishes
    asked: Asked
    templates: TemplateLibrary
    counter: TokenCounter
    vault_name: str
    model: str | None
    """What the compiler's model is called; None is the run's own."""
    settings: Settings = field(default_factory=Settings)
    cycles: Cycles = field(default_factory=Cycles)
    paired: Pairing | None = None
    """The pairing of the last history without open calls: the next one often continues it."""
    reader: Reader = field(init=False)

    def __post_init__(self) -> None:
        self.reader = reader_of(self.counter)

    def options(self, request: Request, *, plain: bool = False) -> Options:
        """How views of this request are written; `plain` is a template of this package that needs no model.

        Raises:
            TemplateError: the template is missing or wrong.
        """
        wishes = replace(self.wishes, template="extractive") if plain else self.wishes
        return wishes.options(
            TemplateLibrary(system=None) if plain else self.templates,
            self.settings,
            model=self.model if self.model is not None else request.model,
            family=request.family,
            window=request.window,
            scope=f"{self.vault_name}/{request.scope}",
            refs=request.refs,
        )


@dataclass(frozen=True, kw_only=True)
class Case(Sight):
    """One request of one run, read: what every step towards its view works with."""

    live: Live
    run: Run
    request: Request

    def marks(self, frozen: Frozen | None = None) -> Limits:
        """What this request may cost, by the ratio that a cycle froze; without one, by what was learnt until now."""
        request = self.request
        return limits(
            self.live.asked,
            fixed=request.fixed + self.carried,
            window=request.window,
            max_tokens=request.max_tokens,
            threshold=self.options.template.token_threshold,
            fidelity=self.options.fidelity,
            ratio=frozen.ratio if frozen is not None else self.run.ratios.of(request.family),
            tight=self.run.tight,
        )

    @property
    def where(self) -> Where:
        """Which request of which conversation this is."""
        return Where(
            session_id=self.request.session_id,
            vault_name=self.live.vault_name,
            run_id=self.request.run_id,
            turn_index=self.turn,
            request_index=self.run.requests,
        )


def read(live: Live, run: Run, request: Request, *, plain: bool = False) -> Case:
    """Read the messages of a request, for views as they were asked for or for `plain` ones.

    Raises:
        TemplateError: the template is missing or wrong.
    """
    options = live.options(request, plain=plain)
    history = live.reader.read(request.messages, last=run.raw)
    run.raw = history
    pairing = pair(history, live.paired)
    live.paired = live.paired if pairing.waiting else pairing
    case = Case(
        live=live, run=run, request=request, history=history, pairing=pairing, options=options, reader=live.reader
    )
    run.turn = case.turn
    return case


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A view, and what of it goes on the record."""

    view: View
    raw: History
    sent: History
    frozen: Frozen | None
    turn: int
    cost: int
    """Exact tokens of the whole request as the host renders it."""
    limit: int
    """The budget in exact tokens; 0 where `cost` could not be made sure of."""
    row: Compile | None = None
    began: bool = False
    """A new cycle began with this request."""
    ratio: float = 1.0
