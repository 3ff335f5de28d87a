"""The pages as they look: on a telephone, in the light and in the dark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from context_compiler.web.app import create_app
from tests.web.browser import PATIENCE, browser, serving
from tests.web.conftest import FACT

pytestmark = pytest.mark.slow  # a browser takes seconds to start

WIDE = {"width": 1280, "height": 720}

PHONE = {"width": 390, "height": 780}

FOUND = f"/sessions/1/fact?q={FACT}"


@pytest.fixture(scope="module")
def pages(recorded: Path) -> Iterator[tuple[Any, str]]:
    """A tab of a browser, and the address of the pages."""
    with browser() as chromium, serving(create_app(recorded, system=None)) as address:
        page = chromium.new_page()
        page.set_default_timeout(PATIENCE)
        yield page, address


def look(pages: tuple[Any, str], path: str, *, dark: bool = False, viewport: dict[str, int] = WIDE) -> Any:
    """Open a page in the tab: to start the process of another takes longer than most tests."""
    page, address = pages
    page.emulate_media(color_scheme="dark" if dark else "light")
    page.set_viewport_size(viewport)
    if "#" in path:
        page.goto("about:blank")  # from the same page, only the place in it would change
    page.goto(address + path)
    return page


def contrast(one: str, other: str) -> float:
    """Contrast of two colours, as WCAG defines it."""
    low, high = sorted(map(_luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    shares = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return sum(weight * share for weight, share in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def style(page: Any, selector: str, name: str, pseudo: str = "") -> str:
    return page.locator(selector).first.evaluate(f"one => getComputedStyle(one, {pseudo!r}).{name}")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_request_that_lacks_a_fact_differs_from_one_that_recalls_it(pages: tuple[Any, str], dark: bool) -> None:
    page = look(pages, FOUND, dark=dark)
    page.locator(".strip").evaluate(
        "strip => { for (const name of ['gone', 'cc-fill cc-recalled']) strip.insertAdjacentHTML('beforeend',"
        " `<rect class='${name}'/>`); }"
    )
    gone, recalled = (style(page, f".strip .{name}", "fill") for name in ("gone", "cc-recalled"))
    assert contrast(gone, recalled) >= 3


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_an_example_in_an_empty_field_can_be_read(pages: tuple[Any, str], dark: bool) -> None:
    page = look(pages, "/sessions/1/fact", dark=dark)
    assert contrast(style(page, "#q", "color", "::placeholder"), style(page, "#q", "backgroundColor")) >= 4.5


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_of_every_strength_can_be_read_on_every_ground(pages: tuple[Any, str], dark: bool) -> None:
    page = look(pages, "/sessions", dark=dark)
    page.locator(".cc").first.evaluate("cc => cc.insertAdjacentHTML('beforeend', '<p id=sample>sample</p>')")

    def colour(name: str) -> str:
        page.locator("#sample").evaluate("(sample, name) => { sample.style.color = `var(--${name})` }", name)
        return style(page, "#sample", "color")

    for text in map(colour, ("ink", "soft", "faint")):
        assert min(contrast(text, colour(ground)) for ground in ("ground", "surface", "raised")) >= 4.5


@pytest.mark.parametrize("path", [FOUND, "/requests/20", "/requests/20/replay?budget=900", "/sessions/1/steering"])
def test_a_page_fits_a_telephone(pages: tuple[Any, str], path: str) -> None:
    page = look(pages, path, viewport=PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    for part in page.locator(".tabs a, .scroll").all():
        assert part.bounding_box()["x"] + part.bounding_box()["width"] <= PHONE["width"]
        assert part.evaluate("one => one.scrollWidth <= one.clientWidth"), part.inner_text()


@pytest.mark.parametrize("viewport", [WIDE, PHONE], ids=["wide", "telephone"])
def test_a_link_to_a_message_shows_what_became_of_it(pages: tuple[Any, str], viewport: dict[str, int]) -> None:
    page = look(pages, "/requests/20/why#raw9", viewport=viewport)
    verdict, bar = page.locator("#raw9 .verdict"), page.locator("header.top")
    assert verdict.bounding_box()["y"] >= bar.bounding_box()["height"]
    assert verdict.bounding_box()["y"] < 200


def test_one_message_is_not_shown_as_all_of_them(pages: tuple[Any, str]) -> None:
    for path, marked in (("/requests/14/why", 1), ("/requests/14/why?message=m9", 0)):
        assert look(pages, path).locator(".chips [aria-current]").count() == marked


def test_every_page_of_a_session_belongs_to_the_sessions(pages: tuple[Any, str]) -> None:
    for path in ("", "/fact", "/settings", "/steering"):
        current = look(pages, f"/sessions/1{path}").locator(".top [aria-current=page]")
        assert current.inner_text() == "Sessions"


def test_the_prompts_of_a_session_use_the_width_of_a_telephone(pages: tuple[Any, str]) -> None:
    page = look(pages, "/sessions/1/steering", viewport=PHONE)
    assert page.locator("td[dir]").first.bounding_box()["width"] > 340
    for button in page.locator("main button:visible").all():
        assert button.bounding_box()["height"] >= 32, button.inner_text()


def test_a_form_has_two_columns_on_a_telephone(pages: tuple[Any, str]) -> None:
    page = look(pages, "/requests/20/replay", viewport=PHONE)
    lines = {label.bounding_box()["y"] for label in page.locator(".filters label").all()}
    assert len(lines) == 3


@pytest.mark.parametrize("path", ["/requests/20", FOUND])
def test_a_pinned_message_moves_nothing(db: Path, pages: tuple[Any, str], path: str) -> None:
    with serving(create_app(db, system=None)) as address:
        page = look((pages[0], address), path)
        box = page.locator("[data-pin]").first.bounding_box()
        page.locator("[data-pin]").first.click()
        page.get_by_text("stays in every view").wait_for()
        assert page.locator("[data-unpin]").first.bounding_box() == box


def test_a_slash_searches_on_every_page_and_escape_leaves_the_field(pages: tuple[Any, str]) -> None:
    for path, target in (
        ("/sessions/1/settings?budget=1500", "/sessions/1/fact"),
        ("/requests/20/export", "/sessions/1/fact"),
        ("/templates", "/sessions#q"),
    ):
        page = look(pages, path)
        page.keyboard.press("/")
        page.wait_for_url(f"**{target}")
        page.locator("[data-search]:focus").wait_for()
    page.keyboard.press("Escape")
    assert not page.locator("[data-search]:focus").count()
    page.keyboard.press("?")
    assert page.get_by_role("dialog").is_visible()
