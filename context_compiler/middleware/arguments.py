"""Arguments of `ContextCompiler` and `compile_view`: their checks, and the policy they give for a request."""

from __future__ import annotations

import pickle
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import KW_ONLY, Field, dataclass, fields
from decimal import Decimal
from difflib import get_close_matches
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path
from reprlib import Repr
from typing import Any, Literal, Self, cast, get_args

from pydantic_ai import RunContext
from pydantic_ai.models import KnownModelName, Model, infer_model, parse_model_id
from pydantic_ai.providers import infer_provider_class

from context_compiler.compiler.policy import DEFAULT_BUDGET, Policy, trigger_of, whole_budget
from context_compiler.compiler.summary import model_alias
from context_compiler.compiler.view import View
from context_compiler.errors import SettingsError
from context_compiler.fidelity import Fidelity
from context_compiler.layers.context import NEEDS, Need
from context_compiler.layers.session import Layers, LayerSource
from context_compiler.lazy import missing_provider
from context_compiler.messages.failures import ReflectionPolicy
from context_compiler.paths import OWNER
from context_compiler.record.redaction import Redact
from context_compiler.record.store import Store, Tenants
from context_compiler.record.values import check_owner
from context_compiler.resilience import attempt
from context_compiler.settings import MAX_TOKENS, Amount, Config, Count, Settings, check_amount
from context_compiler.template import Template, TemplateLibrary
from context_compiler.tokens import Count as CountText
from context_compiler.tokens import TokenCounter
from context_compiler.tokens.prices import Budget, Money, check_budget, highest_price

DeclaredRule = str | Callable[[RunContext[Any]], str | Awaitable[str | None] | None]
"""A rule, or a function of the run, plain or async, that returns one or None."""

Owner = str | Callable[[RunContext[Any]], str] | None

RECALL = 1.0
"""Default maximum size of a recall block, as a fraction of the room."""

REFLECTIONS = ReflectionPolicy()

CHOICES = {
    "tool_history": ("paired", "drop", "render"),
    "inject": ("user", "system", "compaction"),
    "record": ("full", "metadata", "off"),
}
"""Allowed words of an argument."""

SHORT = Repr()
SHORT.maxstring = SHORT.maxother = 60
"""Formatter that shortens the values of arguments to fit on a line."""

SHIPPED = TemplateLibrary(system=None)
"""The templates that come with the package."""


def _none_or_type(*kinds: type[object]) -> Callable[[object], bool]:
    return lambda value: value is None or isinstance(value, kinds)


def _is_rule(value: object) -> bool:
    return callable(value) or (isinstance(value, str) and bool(value.strip()))


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


_FLAG: tuple[Callable[[object], bool], str] = (lambda value: isinstance(value, bool), "True or False")

ALLOWED: dict[str, tuple[Callable[[object], bool], str]] = {
    "template": (lambda value: isinstance(value, str | Template), "a name or a Template"),
    "model": (_none_or_type(str, Model), "a model or its name"),
    "store": (_none_or_type(str, Path, Store), "a path, a PostgreSQL address or a Store"),
    "vault": (_none_or_type(str, Path), "a folder"),
    "system": (_none_or_type(str, Path), "a folder"),
    "vault_name": (lambda value: isinstance(value, str), "a name"),
    **dict.fromkeys(("every_turn", "compile_tool", "background", "dry_run", "probe"), _FLAG),
    "reflections": (_none_or_type(ReflectionPolicy), "a ReflectionPolicy"),
    "timeout": (_is_seconds, "seconds above 0"),
    "record_timeout": (lambda value: value is None or _is_seconds(value), "seconds above 0, or None"),
    "on_view": (lambda value: value is None or callable(value), "a function"),
    "on_error": (lambda value: value is None or callable(value), "a function"),
    "layers": (lambda value: value is None or isinstance(value, Layers) or callable(value), "a Layers or a function"),
    "role": (
        lambda value: value is None or isinstance(value, Need) or (isinstance(value, str) and value in NEEDS),
        f"one of {', '.join(NEEDS)}, or a Need",
    ),
    "redact": (lambda value: value is None or callable(value), "a function"),
    "rules": (
        lambda value: not isinstance(value, str) and all(map(_is_rule, cast("Iterable[object]", value))),
        "a list of texts, or functions from a run to a text or None",
    ),
    **dict.fromkeys(("say_absent", "detect_rules"), _FLAG),
    "owner": (lambda value: value is None or isinstance(value, str) or callable(value), "a name or a function"),
}
"""Checks of arguments that nothing else checks, with the text of the error: a YAML spec passes any value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Facts that determine the budget of a request: its model, and what limits a request to it."""

    model: str = "none"
    """Name of the run's model, which writes summaries unless the caller named another."""
    provider: str | None = None
    """Provider of the model, by the host's name for it."""
    family: str = ""
    """Tokenizer family of the model."""
    window: int | None = None
    """Context window of the model in tokens; None if unknown."""
    learnt: int | None = None
    """Context window that its server has stated. A cycle is continued whatever it is."""
    max_tokens: int | None = None
    """Maximum tokens of an answer, by the request's settings."""
    limit: int | None = None
    """Maximum input tokens of a request, by the run's usage limits."""
    cache: str = ""
    """Cache time, "5m" or "1h", if the request is written to a prompt cache, because such writes may cost more."""


@dataclass(repr=False)
class Arguments:
    """The arguments of a compiler; nothing is opened or read before the first request.

    The docstring of `ContextCompiler` describes each of them.
    """

    template: str | Template = "chat_compiler"
    _: KW_ONLY
    budget: Budget | None = None
    trigger: Amount | None = None
    reserve: int | None = None
    window: int | None = None
    probe: bool = True
    counter: TokenCounter | CountText | Literal["provider"] | None = None
    fidelity: Fidelity | str | None = None
    every_turn: bool = False
    compile_tool: bool = False
    background: bool = False
    model: Model | str | None = None
    compile_spend_limit: Money | str | None = None
    store: str | Path | Store | None = "system/context.db"
    vault: str | Path | None = None
    system: str | Path | None = "system"
    vault_name: str = ""
    recent_turns: Count | None = None
    recent_tool_results: Count | None = None
    tool_history: str = "paired"
    rules: Sequence[DeclaredRule] = ()
    detect_rules: bool = True
    recall: Amount = RECALL
    recall_across: Amount = 0
    say_absent: bool = False
    reflections: ReflectionPolicy | None = None
    inject: str = "user"
    record: str = "full"
    owner: Owner = None
    redact: Redact | None = None
    dry_run: bool = False
    timeout: float = 60.0
    record_timeout: float | None = 1.0
    on_view: Callable[[View], Any] | None = None
    on_error: Callable[[Exception], Any] | None = None
    layers: LayerSource | None = None
    role: str | Need | None = None

    @classmethod
    def from_config(cls, path: str | Path | None = None, **given: Any) -> Self:
        """Build a compiler from a configuration file; arguments given here take precedence.

        Args:
            path: The file; None is `context_compiler.toml`, else `[tool.context_compiler]` in `pyproject.toml`, both in
                the working directory.
            given: Further arguments.

        Raises:
            SettingsError: The file or a value in it is wrong.
        """
        arguments: dict[str, Any] = {**Config.load(path).arguments(), **given}
        return cls(**arguments)

    def __copy__(self) -> Self:
        """A shallow copy that shares the state, if there is any."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A new object with the same arguments; stores and models are shared, not copied."""
        return type(self)(**self.given())

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments without any state.

        Raises:
            PicklingError: An argument cannot be pickled; the message names it.
        """
        arguments = self.given()
        for name, value in arguments.items():
            error = attempt(partial(pickle.dumps, value)).error
            if error is not None:
                fault = f"{name}={value!r:.80} cannot be pickled ({error})"
                raise pickle.PicklingError(f"{fault}: make the compiler in the process that uses it") from error
        return _rebuild, (type(self), arguments)

    def __repr__(self) -> str:
        """The arguments that differ from their defaults, each shortened."""
        changed = [
            argument
            for argument in fields(self)
            if argument.init and argument.repr and _differs(getattr(self, argument.name), argument)
        ]
        shown = [f"{argument.name}={SHORT.repr(getattr(self, argument.name))}" for argument in changed]
        return f"{type(self).__name__}({', '.join(shown)})"

    @property
    def place(self) -> str:
        """Vault name on the record: with layers, the role, because each node has its own conversation in a session."""
        if self.vault_name or self.layers is None or self.role is None:
            return self.vault_name
        return self.role.name if isinstance(self.role, Need) else self.role

    @property
    def static_owner(self) -> str:
        """The owner if it is known without a run; "" if a function names the owner of each run."""
        if self.owner is None:
            owner: object = self.store.owner if isinstance(self.store, Tenants) else ""
            return owner if isinstance(owner, str) else ""
        return "" if callable(self.owner) else self.owner

    @property
    def has_owner_vaults(self) -> bool:
        """True if each owner has a vault of its own."""
        return self.vault is not None and OWNER in str(self.vault)

    def templates(self, owner: str | None) -> TemplateLibrary:
        """Templates for the requests of an owner; without an owner, vaults that belong to owners are left out."""
        vault = self.vault if owner or not self.has_owner_vaults else None
        return TemplateLibrary(vault=vault, system=self.system, owner=owner)

    def given(self) -> dict[str, Any]:
        """All arguments by name."""
        return {argument.name: getattr(self, argument.name) for argument in fields(self) if argument.init}

    def check(self) -> None:
        """Check all values, because a YAML spec passes them unchecked.

        Raises:
            SettingsError: A value is wrong; the message says what is allowed.
            FidelityError: The fidelity is unknown.
        """
        if (self.layers is None) != (self.role is None):
            raise SettingsError(f"layers={self.layers!r}, role={self.role!r}: give both, or neither")
        if self.background and self.every_turn:
            raise SettingsError(
                "every_turn=True compiles around each prompt, not in the background: give one of the two"
            )
        for name, (allowed, choices) in ALLOWED.items():
            if not allowed(value := getattr(self, name)):
                hint = _template_hint(value) if name == "template" else ""
                raise SettingsError(f"{name}={value!r:.80}: give {choices}{hint}")
        self._check_owner()
        check_budget(self.budget, name="budget")
        self.spend_limit()
        for name in ("reserve", "window", "trigger"):
            amount = check_amount(getattr(self, name), name=name)
            if isinstance(amount, float) and name in ("reserve", "window"):
                raise SettingsError(f"{name}={amount!r}: give tokens as an int")
        self._fidelity()
        for name in ("recent_turns", "recent_tool_results"):
            _check_count(name, getattr(self, name))
        for name in ("tool_history", "inject"):
            _check_choice(name, getattr(self, name))
        _check_recall("recall", self.recall)
        _check_recall("recall_across", self.recall_across)
        _check_choice("record", self.record)

    def check_names(self) -> None:
        """Check that the template exists, and that the model's provider does.

        Faults inside a template and missing API keys are reported at the first request, because both can still change.
        If each owner has a vault and a function names the owner, the template cannot be checked yet.

        Raises:
            TemplateError: There is no template of that name.
            SettingsError: There is no model of that name.
        """
        if isinstance(self.template, str) and not (self.has_owner_vaults and callable(self.owner)):
            self.templates(self.static_owner).check(self.template)
        if isinstance(self.model, str) and self.model != "none":
            check_model_name(self.model, "model")

    def _check_owner(self) -> None:
        check_owner(self.static_owner)
        if isinstance(self.store, Tenants) and self.store.owner is None:
            raise SettingsError(f"store={self.store!r}: give the store of one owner, scoped(owner)")
        anybody = "anybody" if callable(self.owner) else self.static_owner
        TemplateLibrary(vault=self.vault, system=self.system, owner=anybody)

    def _fidelity(self) -> Fidelity | None:
        return None if self.fidelity is None else Fidelity.parse(self.fidelity, where="fidelity")

    def whole_budget(self, terms: Terms) -> tuple[int, int | None]:
        """Budget and ceiling of a request, in the model's tokens; see `policy.whole_budget`."""
        budget = self.budget_tokens(terms.model, terms.provider, cache=terms.cache)
        return whole_budget(
            budget, reserve=self.reserve, window=self._window(terms), max_tokens=terms.max_tokens, limit=terms.limit
        )

    def _window(self, terms: Terms) -> int | None:
        return smaller(self.window or terms.window, terms.learnt)

    def budget_tokens(self, model: str, provider: str | None, *, cache: str = "") -> Amount | None:
        """The budget in tokens or as a fraction; money is converted at the price of a request without a cache hit."""
        if self.budget is None or isinstance(self.budget, int | float):
            return self.budget
        money = Money.parse(self.budget, name="budget")
        price = highest_price(model, provider)
        tokens = None if price is None else price.affordable(money.amount, cache=cache)
        return money.fallback if tokens is None else max(1, tokens)

    def spend_limit(self) -> Money | None:
        """Maximum cost of the compiles of a session; None if there is no limit.

        Raises:
            SettingsError: The value is not money, or is money with a fallback.
        """
        limit = cast(object, self.compile_spend_limit)
        if limit is None:
            return None
        if not isinstance(limit, Money | str):
            raise SettingsError(f"compile_spend_limit={limit!r}: give money such as Money(0.50) or '$0.50'")
        money = Money.parse(limit, name="compile_spend_limit")
        if money.fallback is not None:
            raise SettingsError(f"compile_spend_limit={limit!r}: a limit has no fallback")
        return money

    def budget_unpriced(self, model: str, provider: str | None) -> bool:
        """True if the budget is money but no price of the model is known."""
        money = self.budget is not None and not isinstance(self.budget, int | float)
        price = highest_price(model, provider) if money else None
        return money and (price is None or price.affordable(Decimal(1)) is None)

    def policy(
        self,
        templates: TemplateLibrary,
        settings: Settings,
        terms: Terms,
        *,
        template: str | Template | None = None,
        scope: str = "",
        refs: bool = False,
    ) -> Policy:
        """Resolve every choice for one request: from these arguments, else the template, else the settings.

        Args:
            templates: Library of templates.
            settings: Defaults from the environment.
            terms: The run's model, and what limits a request to it.
            template: Template to use instead of the configured one.
            scope: Scope within which conversations share their compiles.
            refs: True if the agent has a tool that reads messages left out of a view.

        Raises:
            TemplateError: The template is missing or wrong.
        """
        template, fidelity = templates.find(template or self.template), self._fidelity()
        turns = _first_given(self.recent_turns, template.recent_turns, settings.context_compiler_recent_turns)
        results = _first_given(
            self.recent_tool_results, template.recent_tool_results, settings.context_compiler_recent_tool_results
        )
        budget, _ = self.whole_budget(terms)
        alias = terms.model if self.model is None else model_alias(self.model)
        asked = self._window(terms) if self.model is None or alias == terms.model else window_of(self.model)
        resolved = fidelity or template.fidelity or Fidelity.SUMMARY_MEDIUM
        recall = self.recall if self.recall > 1 else float(self.recall)
        written = (template.name, template.source, str(resolved), turns, self.tool_history, self.inject)
        facts = (*written, recall, self.say_absent, alias, terms.family, scope, refs, terms.window)
        return Policy(
            template=template,
            extractive=template if template.compiler != "agent" else SHIPPED.find("extractive"),
            budget=budget,
            trigger=trigger_of(self.trigger, template.token_threshold, resolved),
            fidelity=resolved,
            fidelity_named=fidelity is not None,
            recent_turns=turns,
            recent_named=self.recent_turns is not None,
            recent_tool_results=results,
            reflections=self.reflections or REFLECTIONS,
            tool_history=self.tool_history,
            inject=self.inject,
            model=alias,
            every_turn=self.every_turn,
            recall=recall,
            says_absent=self.say_absent,
            prompt_room=room_of(asked),
            scope=scope,
            detects_rules=self.detect_rules,
            refs=refs,
            config=blake2b(repr(facts).encode(), digest_size=12).hexdigest(),
        )


@cache
def _named_window(name: str) -> int | None:
    model = attempt(lambda: infer_model(name)).value
    return None if model is None else window_of(model)


def window_of(model: Model | str) -> int | None:
    """Context window of a model in tokens; None if it is unknown."""
    if isinstance(model, str):
        return None if model == "none" else _named_window(model)
    window: object = getattr(model, "context_window", None)
    return window if isinstance(window, int) and window > 0 else None


def room_of(window: int | None) -> int:
    """Maximum tokens of a prompt for a summary."""
    return int(window * 0.6) if window else DEFAULT_BUDGET


def _template_hint(value: object) -> str:
    """Hint at the likely mistake: a budget without its name, or the class instead of an instance."""
    if isinstance(value, RunContext):
        return "; in capabilities=, give ContextCompiler(), not the class"
    return f"; a budget has its name, budget={value!r}" if isinstance(value, int | float | Money) else ""


def _rebuild(kind: type[Arguments], given: dict[str, Any]) -> Arguments:
    return kind(**given)


def _differs(value: object, argument: Field[Any]) -> bool:
    return type(value) is not type(argument.default) or value != argument.default


def _check_choice(name: str, value: object) -> None:
    if value not in CHOICES[name]:
        raise SettingsError(f"{name}={value!r}: use one of {', '.join(map(repr, CHOICES[name]))}")


def _check_recall(name: str, value: object) -> None:
    share = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
    if not share and (not isinstance(value, int) or not 1 < value <= MAX_TOKENS):
        raise SettingsError(f"{name}={value!r}: give a share from 0 (nothing) to 1, or tokens as an int")


def _check_count(name: str, value: object) -> None:
    if value is None or value == "all":
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SettingsError(f'{name}={value!r}: give a number from 0 up, or "all"')


def _first_given(*given: Count | None) -> int | None:
    """The first count that is given; None means all."""
    value = next((count for count in given if count is not None), "all")
    return None if isinstance(value, str) else value


def smaller(one: int | None, other: int | None) -> int | None:
    """The smaller of two numbers that may be unknown."""
    return min((number for number in (one, other) if number), default=None)


def check_model_name(model: str, what: str) -> None:
    """Check that a model name has a known provider; `what` names the argument in the error.

    Raises:
        SettingsError: There is no model of that name.
    """
    provider, _ = parse_model_id(model)
    error = attempt(partial(infer_provider_class, provider)).error if provider else None
    if isinstance(error, ImportError):
        raise SettingsError(f"{what}={model!r}: {missing_provider(error)}")
    if model != "test" and (provider is None or isinstance(error, ValueError)):
        names = {name.partition(":")[0] for name in get_args(getattr(KnownModelName, "__value__", KnownModelName))}
        near = get_close_matches(provider or "", names, n=1)
        remedy = f"did you mean {near[0]}?" if near else "give provider:name, such as openai:gpt-5, or a Model"
        raise SettingsError(f"{what}={model!r}: there is no such model; {remedy}")
