"""Pictures of the pages for the README and the docs: `python -m tests.web.screenshots docs`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import Any

from context_compiler.web.app import create_app
from tests.web.browser import browser, chat_app, serving

PAGES = {
    "inspector-fact": ("/sessions/1/fact?q=7+days", 770),
    "inspector-session": ("/sessions/1", 770),
    "inspector-settings": ("/sessions/1/settings?budget=3000", 620),
    "inspector-request": ("/requests/44", 760),
    "inspector-why": ("/requests/45/why", 700),
    "inspector-diff": ("/requests/45/replay?budget=1000", 700),
}
"""Address and height of each picture of the record that the demo leaves."""

PROMPTS = ("Never deploy on Fridays. What should I check first?", "And how do I roll back?")


def record(folder: Path) -> None:
    """Make the record that the demo leaves."""
    subprocess.run([sys.executable, "-m", "context_compiler", "demo"], cwd=folder, check=True, capture_output=True)


def shoot(page: Any, file: Path) -> None:
    page.wait_for_load_state("load")
    page.evaluate("document.querySelector('.db').textContent = 'system/context.db'")
    page.screenshot(path=str(file))
    print(file)


def run(target: Path) -> None:
    folder = Path(tempfile.mkdtemp())
    record(folder)
    target = target.absolute()
    with browser() as chromium, chdir(folder):
        with serving(create_app("system/context.db", system="system")) as address:
            for name, (path, height) in PAGES.items():
                page = chromium.new_context(viewport={"width": 1180, "height": height}).new_page()
                page.goto(address + path)
                shoot(page, target / f"{name}.png")
            phone = chromium.new_context(viewport={"width": 390, "height": 780}, color_scheme="dark").new_page()
            phone.goto(f"{address}/requests/44")
            shoot(phone, target / "inspector-phone.png")
        with serving(chat_app(Path("system"))) as address:
            page = chromium.new_context(viewport={"width": 1000, "height": 720}).new_page()
            page.goto(f"{address}/chat")
            for number, prompt in enumerate(PROMPTS, 1):
                page.get_by_label("Message").fill(prompt)
                page.keyboard.press("Enter")
                page.locator(".below").nth(number - 1).wait_for()
            shoot(page, target / "chat-page.png")


if __name__ == "__main__":
    run(Path(sys.argv[1]))
