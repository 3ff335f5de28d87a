"""The pages in a real browser, as a person with a keyboard meets them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from time import sleep
from typing import Any

import pytest

from context_compiler.chat.demo_model import ScriptedModel
from context_compiler.chat.transcript import Transcript
from context_compiler.record.store import SQLiteStore
from context_compiler.web.app import create_app
from tests.web.browser import PATIENCE, browser, chat_app, serving
from tests.web.conftest import HOSTILE

pytestmark = pytest.mark.slow  # a browser takes seconds to start


@pytest.fixture(scope="module")
def chromium(recorded: Path) -> Iterator[Any]:
    """A window of a browser. The record of other tests is made before it: its loop runs beside no other."""
    with browser() as found:
        yield found.new_context()


@pytest.fixture(autouse=True)
def closed(chromium: Any) -> Iterator[None]:
    """Pages end with their test: those whose server has gone would go on asking for it."""
    yield
    for page in chromium.pages:
        page.close()


class Visit:
    """A page that keeps what its console complains about and what it asks of other machines."""

    def __init__(self, chromium: Any, address: str) -> None:
        self.address = address
        self.page = chromium.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.complaints: list[str] = []
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        self.page.on("request", self._seen)

    def _seen(self, request: Any) -> None:
        if not request.url.startswith((self.address, "data:")):
            self.complaints.append(f"asked for {request.url}")

    def go(self, path: str) -> Any:
        self.page.goto(self.address + path)
        return self.page


@pytest.fixture(scope="module")
def inspector(chromium: Any, recorded: Path) -> Iterator[str]:
    """Address of pages that are only read."""
    with serving(create_app(recorded, system=None)) as address:
        yield address


def links(page: Any) -> list[str]:
    return page.eval_on_selector_all("a[href^='/']", "all => all.map(one => one.getAttribute('href').split('#')[0])")


def test_every_linked_page_opens_without_errors(chromium: Any, inspector: str) -> None:
    visit = Visit(chromium, inspector)
    waiting, seen = ["/sessions"], set[str]()
    kinds: dict[str, int] = {}
    while waiting:
        path = waiting.pop(0)
        kind = "".join("#" if character.isdigit() else character for character in path.partition("?")[0])
        if path in seen or kinds.get(kind, 0) >= 2 or path.startswith(("/chat", "/static")) or "/export/" in path:
            continue
        kinds[kind] = kinds.get(kind, 0) + 1
        seen.add(path)
        answer = visit.page.goto(inspector + path, wait_until="load")
        assert answer.ok, (path, answer.status)
        waiting += links(visit.page)
    assert len(seen) >= 6 and not visit.complaints


def test_a_stored_script_and_a_hostile_name_stay_text(chromium: Any, inspector: str) -> None:
    visit = Visit(chromium, inspector)
    page = visit.go("/sessions?name=script")
    page.get_by_role("link", name=HOSTILE).click()
    page.locator("a.row").first.click()
    assert HOSTILE in page.inner_text("main")
    assert not visit.complaints


def test_a_request_is_reached_with_the_keyboard_alone(chromium: Any, inspector: str) -> None:
    page = Visit(chromium, inspector).go("/sessions?name=long")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/sessions/*")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/requests/*")
    before = page.url
    page.keyboard.press("[")
    page.wait_for_function(f"location.href !== {before!r}")
    page.keyboard.press("2")
    page.wait_for_url("**/why*")
    page.keyboard.press("?")
    assert page.get_by_role("dialog").is_visible()


PAGES = (
    *("/sessions", "/sessions/1", "/sessions/1/fact?q=ORCHID-7731", "/sessions/1/settings?budget=1500"),
    *("/requests/14", "/requests/14/why", "/requests/14/why?message=m9", "/requests/14/diff?with=raw"),
    *("/requests/15/replay?budget=900&q=code", "/requests/14/replay?recall=7.5", "/sessions/1/steering"),
)


@pytest.fixture(scope="module")
def everything(chromium: Any, recorded: Path) -> Iterator[str]:
    """Address of the same pages beside a chat, to which they lead."""
    with serving(chat_app(recorded.parent)) as address:
        yield address


@pytest.mark.parametrize("path", PAGES)
def test_a_page_fits_a_phone_and_has_no_serious_accessibility_fault(chromium: Any, everything: str, path: str) -> None:
    page = fitting_a_phone(chromium, everything, path)
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    for colours in ("light", "dark"):
        page.emulate_media(color_scheme=colours, reduced_motion="reduce")  # no colour between two
        assert not serious(axe.run(page)), colours


def fitting_a_phone(chromium: Any, address: str, path: str) -> Any:
    """Open a page on a phone, where it must not scroll sideways; then in a wide window."""
    visit = Visit(chromium, address)
    wide = visit.page.viewport_size
    visit.page.set_viewport_size({"width": 390, "height": 780})
    page = visit.go(path)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size(wide)
    return page


def serious(results: Any) -> list[str]:
    """Faults that keep somebody from using a page."""
    return [
        f"{violation['id']}: {[node['html'][:120] for node in violation['nodes'][:3]]}"
        for violation in results.response["violations"]
        if violation["impact"] in ("serious", "critical")
    ]


def test_a_search_within_a_request_opens_the_parts_that_match(chromium: Any, inspector: str) -> None:
    visit = Visit(chromium, inspector)
    page = visit.go("/requests/20")
    page.keyboard.press("/")
    page.keyboard.type("function_7()")
    page.keyboard.press("Enter")
    page.locator(".found", has_text="message").wait_for()
    assert page.get_by_text("def function_7()").first.is_visible()
    page.locator(".found a").first.click()
    assert "q=function_7" in page.url and "#m" in page.url
    page.locator("h1").click()
    for key in "jjo":
        page.keyboard.press(key)
    assert page.locator("details.cc-part[open], details.cc-piece[open]").count()
    assert not visit.complaints


def test_a_moved_slider_replays_the_session(chromium: Any, inspector: str) -> None:
    visit = Visit(chromium, inspector)
    page = visit.go("/sessions/1/settings")
    page.get_by_text("ContextCompiler(budget=2000, recall=1.0)").wait_for()
    page.get_by_label("Budget, slider").fill("1200")
    page.get_by_text("ContextCompiler(budget=1200, recall=1.0)").wait_for()
    assert page.get_by_label("Budget", exact=True).input_value() == "1200" and "budget=1200" in page.url
    page.get_by_label("Budget", exact=True).fill("1761")
    page.get_by_label("Recall", exact=True).fill("0.33")
    page.keyboard.press("Enter")
    page.get_by_text("ContextCompiler(budget=1761, recall=0.33)").wait_for()
    assert page.get_by_label("Budget, slider").input_value() == "1761"
    assert not visit.complaints


def test_two_tabs_chat_in_one_conversation(chromium: Any, tmp_path: Path) -> None:
    model = ScriptedModel(delay=0)
    with serving(chat_app(tmp_path, model=model)) as address:
        visits = [Visit(chromium, address) for _ in range(2)]
        tab, other = (visit.go("/chat") for visit in visits)
        tab.keyboard.type("Never deploy on Fridays.")
        tab.keyboard.press("Enter")
        tab.get_by_role("link", name="request 1").wait_for()
        other.get_by_role("link", name="request 1").wait_for()
        assert tab.locator(".answer").inner_text() == other.locator(".answer").inner_text()
        assert "of 2,000" in tab.locator("#figures").inner_text()
        other.get_by_role("switch", name="Endless").uncheck()
        model.delay = 0.5  # the answer is still being written when it is stopped, however slow the machine is
        other.get_by_label("Message").fill("Where do I look first?")
        other.get_by_role("button", name="Send").click()
        other.get_by_role("button", name="Stop").wait_for()
        tab.get_by_role("button", name="Stop").wait_for()
        other.locator(".coming").wait_for()
        tab.get_by_role("button", name="Stop").click()
        other.get_by_text("stopped: what was shown is kept").wait_for()
        assert tab.locator(".turn").count() == 2
        tab.reload()
        tab.get_by_text("Where do I look first?", exact=True).wait_for()  # the answer may quote it
        tab.get_by_role("link", name="request 1").click()
        assert "Never deploy on Fridays." in tab.inner_text("main")
        assert not [said for visit in visits for said in visit.complaints if "ERR_" not in said]


def test_an_answer_is_formatted_while_it_streams_and_the_buttons_keep_their_places(
    chromium: Any, tmp_path: Path
) -> None:
    with serving(chat_app(tmp_path, delay=0.05)) as address:
        visit = Visit(chromium, address)
        page = visit.go("/chat")
        places = [page.get_by_role("button", name=name).bounding_box() for name in ("Stop", "Send")]
        page.get_by_label("Message", exact=True).fill("Never deploy **on Fridays**. Where do I look first?")
        page.keyboard.press("Enter")
        page.locator(".answer.coming strong").first.wait_for()
        assert places == [page.get_by_role("button", name=name).bounding_box() for name in ("Stop", "Send")]
        page.get_by_label("Message", exact=True).fill("And then?")
        page.keyboard.press("Enter")
        page.get_by_text("An answer is still being written").wait_for()
        assert page.get_by_label("Message", exact=True).input_value() == "And then?"
        page.get_by_role("link", name="request 1").wait_for()
        page.locator("#figures").wait_for()
        assert places == [page.get_by_role("button", name=name).bounding_box() for name in ("Stop", "Send")]
        assert not visit.complaints


def test_models_are_offered_and_chats_are_listed(chromium: Any, tmp_path: Path) -> None:
    with serving(chat_app(tmp_path)) as address:
        visit = Visit(chromium, address)
        page = visit.go("/chat?session=plans")
        assert page.locator("#model").locator("option").all_inner_texts() == [
            *("scripted", "acme:one", "scripted:0", "another…"),
        ]
        page.locator("#model").select_option("another…")
        page.get_by_label("Name of another model").fill("nosuch:model")
        page.get_by_label("Message", exact=True).fill("Where do I look first?")
        page.keyboard.press("Enter")
        page.get_by_text("there is no such model").wait_for()
        page.locator("#model").select_option("scripted:0")
        page.get_by_label("Message", exact=True).press("Enter")
        page.get_by_role("link", name="request 1").wait_for()
        page = visit.go("/chat?session=other")
        page.get_by_text("Chats", exact=True).click()
        page.get_by_role("navigation", name="Chats").get_by_role("link", name="plans").click()
        page.get_by_role("link", name="request 1").wait_for()


def test_a_chat_is_compacted_undone_and_pinned_with_its_buttons(chromium: Any, tmp_path: Path) -> None:
    with serving(chat_app(tmp_path)) as address:
        visit = Visit(chromium, address)
        page = visit.go("/chat")
        for number in range(1, 6):
            page.get_by_label("Message", exact=True).fill(f"Question {number} about ticket 47{number} of Maria?")
            page.keyboard.press("Enter")
            page.get_by_role("link", name=f"request {number}").wait_for()
        page.locator("#turn-2").get_by_role("button", name="Keep always").click()
        page.locator("#turn-2").get_by_role("button", name="Unpin").wait_for()
        page.get_by_role("button", name="Compact…").click()
        page.get_by_label("What to keep above all").fill("the tickets")
        page.get_by_role("button", name="Preview").click()
        page.get_by_text("nothing was changed").wait_for()
        page.get_by_role("dialog").get_by_role("button", name="Compact", exact=True).click()
        page.get_by_text("word for word, scripted:").wait_for()
        page.get_by_role("button", name="Undo", exact=True).click()
        page.get_by_text("the whole history is sent again").wait_for()
        page.locator("#turn-3").get_by_role("button", name="Summarize from here").click()
        assert page.get_by_label("Only from this turn on").input_value() == "turn 3"
        page.get_by_role("button", name="Close").click()
        visit.go("/sessions/1/steering")
        page.get_by_role("button", name="Unpin").first.click()
        page.get_by_text("No message is pinned").wait_for()
        assert not visit.complaints


def test_an_answer_is_shown_to_its_end_although_a_compile_ends_meanwhile(chromium: Any, tmp_path: Path) -> None:
    class Slow(ScriptedModel):
        """Writes no summary before an answer is under way."""

        async def request(self, *given: Any) -> Any:
            while not under_way.is_set():
                await asyncio.sleep(0.01)
            return await super().request(*given)

    under_way, model = Event(), Slow(delay=0)
    with serving(chat_app(tmp_path, model=model)) as address:
        page = Visit(chromium, address).go("/chat")
        field = page.get_by_label("Message", exact=True)
        for number in range(1, 6):
            field.fill(f"Question {number} about ticket 47{number} of Maria?")
            page.keyboard.press("Enter")
            page.get_by_role("link", name=f"request {number}").wait_for()
        page.get_by_role("button", name="Compact…").click()
        page.get_by_role("dialog").get_by_role("button", name="Compact", exact=True).click()
        page.get_by_text("compiling …").wait_for()
        page.get_by_role("button", name="Close").click()
        model.delay = 0.2
        field.fill("And which of them was the last?")
        page.keyboard.press("Enter")
        coming = page.locator(".answer.coming", has_text="On “And which")
        coming.wait_for()
        under_way.set()
        page.get_by_text("word for word, scripted:").wait_for()
        shown = coming.inner_text()
        page.wait_for_function("length => document.querySelector('.coming').innerText.length > length", arg=len(shown))
        page.get_by_role("button", name="Stop").click()
        page.get_by_role("link", name="request 6").wait_for()
        assert page.locator(".turn").count() == 6 and not page.locator(".coming").count()


def test_a_prompt_that_was_stopped_before_it_was_sent_is_in_the_field_again(chromium: Any, tmp_path: Path) -> None:
    terminal = Transcript(tmp_path / "Chat_Sessions", "main")
    assert terminal.acquire()
    with serving(chat_app(tmp_path)) as address:
        page = Visit(chromium, address).go("/chat")
        replies: list[Any] = []  # held back: the end of the turn may be told before the POST is answered
        page.route(lambda url: "/api/chat?" in url, lambda route: replies.append((route, route.fetch())))
        field = page.get_by_label("Message", exact=True)
        field.fill("Where do I look first?")
        page.keyboard.press("Enter")
        page.get_by_text("waiting for it").wait_for()
        assert field.input_value() == ""
        page.get_by_role("button", name="Stop").click()
        page.get_by_text("nothing was sent").wait_for()
        while not replies:
            page.wait_for_timeout(10)
        [(route, reply)] = replies
        with page.expect_response(lambda response: "/api/chat?" in response.url):
            route.fulfill(response=reply)
        page.unroute_all()
        assert field.input_value() == "Where do I look first?" and not page.locator(".turn").count()
        terminal.close()
        field.press("Enter")
        page.get_by_role("link", name="request 1").wait_for()


def test_a_message_is_shown_raw_pinned_and_summarized_from(chromium: Any, db: Path) -> None:
    with serving(create_app(db, system=None)) as address:
        visit = Visit(chromium, address)
        page = visit.go("/requests/20")
        message = page.locator(".cc-message").nth(2)
        message.get_by_role("link", name="Raw").click()
        message.get_by_text('"part_kind"').first.wait_for()
        message.get_by_role("link", name="Raw").click()
        assert not message.get_by_text('"part_kind"').count()
        message.get_by_role("button", name="Keep always").click()
        page.get_by_text(re.compile(r"from the next run on, turn \d+ stays in every view")).wait_for()
        message.get_by_role("button", name="Unpin").click()
        page.get_by_text("is no longer pinned").wait_for()
        message.get_by_role("button", name="Summarize from here").click()
        assert page.get_by_label("Only from this turn on").input_value().startswith("m")
        page.get_by_role("button", name="Preview").click()
        page.get_by_text("nothing was changed").wait_for()
        assert not visit.complaints


def test_a_compile_under_way_appears_and_disappears_live(chromium: Any, db: Path) -> None:
    with serving(create_app(db, system=None)) as address:
        visit = Visit(chromium, address)
        page = visit.go("/sessions/1")
        announce(db, 600)
        page.get_by_text("A summary is being written by some-model").wait_for()
        announce(db, 0)
        page.get_by_text("A summary is being written by some-model").wait_for(state="detached")
        assert not visit.complaints


def test_a_page_is_live_however_late_the_extension_for_it_arrives(chromium: Any, db: Path) -> None:
    with serving(create_app(db, system=None)) as address:
        visit = Visit(chromium, address)
        visit.page.route("**/hx-sse*", lambda route: (sleep(0.5), route.continue_()))
        page = visit.go("/sessions/1")
        announce(db, 600)
        page.get_by_text("A summary is being written by some-model").wait_for()
        assert not visit.complaints


def announce(db: Path, seconds: float) -> None:
    """Let a compile of the long session be under way, as another process does."""

    async def work() -> None:
        store = SQLiteStore(db)
        assert await store.announce_compile("long", "", "some-model", seconds)
        await store.close()

    with ThreadPoolExecutor(1) as other:  # playwright's own loop runs on this thread
        other.submit(asyncio.run, work()).result()


def test_a_hostile_prompt_stays_text_in_the_chat(chromium: Any, tmp_path: Path) -> None:
    with serving(chat_app(tmp_path)) as address:
        visit = Visit(chromium, address)
        page = visit.go("/chat?session=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E")
        page.get_by_label("Message").fill(f"{HOSTILE} ![x](http://evil.example/x.png)")
        page.keyboard.press("Enter")
        page.get_by_role("link", name="request 1").wait_for()
        assert HOSTILE in page.locator(".user").inner_text()
        assert not visit.complaints


def test_the_chat_fits_a_phone_and_has_no_serious_fault_of_accessibility(chromium: Any, tmp_path: Path) -> None:
    with serving(chat_app(tmp_path)) as address:
        page = fitting_a_phone(chromium, address, "/chat")
        axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
        page.get_by_label("Message").fill("Where do I look first?")
        page.keyboard.press("Enter")
        page.get_by_role("link", name="request 1").wait_for()
        assert not serious(axe.run(page))
