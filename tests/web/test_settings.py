"""A session replayed with other settings: figures, chart and the line to paste."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.web.conftest import RULE, number_of, pages_of, renovation, requests_of


def settings(client: TestClient, session: str = "long", **query: object) -> dict[str, object]:
    answer = client.get(f"/api/sessions/{number_of(client, session)}/settings", params={**query})  # pyright: ignore
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_session_is_replayed_within_each_budget(client: TestClient) -> None:
    small, large = (settings(client, budget=budget, recall="0.15") for budget in (1_000, 4_000))
    for answer, budget in ((small, 1_000), (large, 4_000)):
        replayed: dict[str, object] = answer["replayed"]  # pyright: ignore
        assert max(replayed["sent"]) <= budget and answer["line"] == f"ContextCompiler(budget={budget}, recall=0.15)"  # pyright: ignore
        assert len(replayed["sent"]) == len(replayed["raw"]) == answer["requests"]  # pyright: ignore
    assert sum(small["replayed"]["sent"]) < sum(large["replayed"]["sent"])  # pyright: ignore
    assert small["replayed"]["cost_of_everything"] == large["replayed"]["cost_of_everything"]  # pyright: ignore


def test_the_page_shows_the_requests_as_they_were_and_replays_on_demand(client: TestClient) -> None:
    number = number_of(client, "long")
    page = client.get(f"/sessions/{number}/settings").text
    assert 'class="was-line"' in page and "Use these settings" not in page and 'hx-trigger="load' in page
    sent = [request["tokens_sent"] for request in requests_of(client, "long")]
    assert settings(client)["was"] == sent and settings(client)["requests"] == len(sent)
    page = client.get(f"/sessions/{number}/settings?budget=1500&recall=0.3").text
    assert (
        "ContextCompiler(budget=1500, recall=0.3)" in page
        and page.count('class="fresh"') == settings(client)["requests"]
    )


@pytest.mark.slow
def test_the_cheapest_settings_are_found_by_trying_them(tmp_path: Path) -> None:
    with pages_of(tmp_path / "context.db", renovation(RULE), budget=400) as client:
        answer = settings(client, "talk", cheapest="yes")
        said = re.fullmatch(r"use budget ([\d,]+), recall (\S+): .*", str(answer["said"]))
        assert said
        again = settings(client, "talk", budget=int(said[1].replace(",", "")), recall=said[2])
        assert again["replayed"]["cost"] == pytest.approx(answer["verdict"]["cost"])  # pyright: ignore
        assert str(answer["said"]) in client.get("/sessions/1/settings?cheapest=yes").text


def test_figures_of_a_model_without_a_price_are_prices_and_not_tokens(client: TestClient) -> None:
    answer, number = settings(client, budget=1_500), number_of(client, "long")
    page = client.get(f"/sessions/{number}/settings?budget=1500").text
    cost = f"{answer['replayed']['cost']:,.0f}"  # pyright: ignore
    assert f"costs like {cost} uncached input tokens" in re.sub(r"<[^>]+>", "", page)
    assert f'name="budget" min="{answer["smallest"]}"' in page and 'step="1" value="1500"' in page


def test_the_axis_of_a_chart_ends_at_its_largest_value(client: TestClient) -> None:
    number = number_of(client, "long")
    tall = max(request["tokens_sent"] for request in requests_of(client, "long"))
    for path in ("", "/settings"):
        page = client.get(f"/sessions/{number}{path}").text
        assert f'<p class="ys"><span>{max(tall, 2_000):,}</span><span>0</span></p>' in page


def test_a_session_without_content_cannot_be_replayed(client: TestClient) -> None:
    number = number_of(client, "bare")
    assert client.get(f"/sessions/{number}/settings").status_code == 404
    tabs = re.findall(r'href="/sessions/\d+/(\w+)"', client.get(f"/sessions/{number}").text)
    assert "settings" not in tabs and "steering" not in tabs and "layers" not in tabs
