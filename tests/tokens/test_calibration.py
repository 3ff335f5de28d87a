from __future__ import annotations

import pytest

from context_compiler.tokens import Ratios, model_family


def test_a_ratio_starts_at_the_measured_value_of_its_family() -> None:
    ratios = Ratios()
    assert (ratios.of("anthropic"), ratios.of("google"), ratios.of("openai")) == (1.25, 1.0, 1.0)


def test_a_larger_ratio_is_used_at_once_and_a_smaller_one_is_approached() -> None:
    ratios = Ratios()
    assert ratios.learn("anthropic", exact=10_000, reported=15_000) == pytest.approx(1.53)
    seen = [ratios.learn("anthropic", exact=10_000, reported=13_000) for _ in range(12)]
    assert seen == sorted(seen, reverse=True)
    assert seen[0] == pytest.approx(1.4688) and seen[-1] == pytest.approx(1.326, abs=0.01)
    assert ratios.of("google") == 1.0


def test_a_short_request_does_not_set_a_ratio_by_itself() -> None:
    assert Ratios().learn("anthropic", exact=999, reported=1_500) == pytest.approx(1.334, abs=0.001)


def test_a_ratio_never_falls_below_one() -> None:
    ratios = Ratios()
    for _ in range(20):
        ratios.learn("anthropic", exact=1_000, reported=600)
    assert ratios.of("anthropic") == 1.0


NONSENSE = [(199, 250), (0, 10), (1_000, 0), (1_000, -5), (1_000, 499), (1_000, 3_001)]


@pytest.mark.parametrize(("exact", "reported"), NONSENSE)
def test_invalid_reports_teach_nothing(exact: int, reported: int) -> None:
    ratios = Ratios()
    assert ratios.learn("anthropic", exact=exact, reported=reported) == 1.25
    assert ratios.state() == {}


@pytest.mark.parametrize("family", ["openai", "exact"])
def test_a_family_with_our_tokenizer_is_never_calibrated(family: str) -> None:
    ratios = Ratios()
    assert ratios.learn(family, exact=1_000, reported=2_000) == 1.0
    assert ratios.of(family) == 1.0 and not ratios.measured(family)


@pytest.mark.parametrize("family", ["openai", "anthropic", "unknown"])
def test_a_count_by_the_provider_is_taken_as_it_is(family: str) -> None:
    ratios, later = Ratios(), Ratios()
    ratios.measure(family, exact=999, counted=1_400)
    ratios.measure(family, exact=10_000, counted=40_000)
    assert not ratios.measured(family)
    ratios.measure(family, exact=10_000, counted=14_000)
    later.restore(ratios.state())
    assert later.of(family) == ratios.of(family) == 1.4
    ratios.measure(family, exact=10_000, counted=9_000)
    assert ratios.of(family) == 1.0


def test_learned_ratios_can_be_restored() -> None:
    ratios, later = Ratios(), Ratios()
    ratios.learn("google", exact=1_000, reported=1_500)
    later.restore(ratios.state())
    assert later.of("google") == ratios.of("google") == pytest.approx(1.53)


def test_a_damaged_state_keeps_the_initial_ratio() -> None:
    ratios = Ratios()
    ratios.restore({"anthropic": "1.3", "google": 0.4, "mistral": float("nan"), "xai": 9, "meta": None, "qwen": 1.1})
    assert ratios.state() == {"qwen": 1.1}


@pytest.mark.parametrize(
    ("system", "name", "family"),
    [
        ("openai", "gpt-5", "openai"),
        ("openai", "gpt-4o-mini", "openai"),
        ("openai", "gpt-4.1", "openai"),
        ("openai", "o3-mini", "openai"),
        ("openai", "ft:gpt-4o-2024-08-06:org", "openai"),
        ("openai", None, "openai"),
        ("openrouter", "openai/o4-mini", "openai"),
        ("groq", "openai/gpt-oss-120b", "openai"),
        ("openai", "gpt-4", "openai-legacy"),
        ("azure", "gpt-35-turbo", "openai-legacy"),
        ("openai", "my-own-model", "openai-compatible"),
        ("anthropic", "claude-sonnet-4-5", "anthropic"),
        ("bedrock", "us.anthropic.claude-sonnet-4-20250514-v1:0", "anthropic"),
        ("openrouter", "anthropic/claude-opus-4.5", "anthropic"),
        ("fallback:openai,anthropic", "fallback:gpt-5,claude-opus-4-5", "anthropic"),
        ("google-gla", "gemini-3-pro", "google"),
        ("google-vertex", "tuned-7", "google"),
        ("mistral", "codestral-latest", "mistral"),
        ("openai", "Qwen/Qwen3-32B", "qwen"),
        ("groq", "deepseek-r1-distill-llama-70b", "meta"),
        ("bedrock", "us.amazon.nova-pro-v1:0", "amazon"),
        ("bedrock", "something.new", "bedrock"),
        ("function", "function:answer:", "exact"),
        ("test", "test", "exact"),
        (None, "claude-haiku-4-5", "anthropic"),
        (None, None, "unknown"),
        ("", "", "unknown"),
    ],
)
def test_a_model_name_gives_its_family(system: str | None, name: str | None, family: str) -> None:
    assert model_family(system, name) == family
