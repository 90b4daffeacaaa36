"""Headless Chromium, where the system has one and playwright is installed, for tests that look at pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PHONE, DESK = {"width": 390, "height": 844}, {"width": 1100, "height": 900}
_DRAWN = "document.querySelectorAll('.chart svg').length === document.querySelectorAll('.chart').length"


@contextmanager
def chromium() -> Iterator[Browser]:
    """Yields a browser; skips the test where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium is installed (on Debian: apt-get install chromium)")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


class Looked:
    """A page in a browser, with what it said and asked for.

    Attributes:
        said: Lines of the console, and errors.
        asked: URLs of requests other than that of the file itself.
    """

    def __init__(self, browser: Browser, file: Path, scheme: str = "light", size: dict[str, int] | None = None) -> None:
        # Offline, so that a request would fail and be told rather than leave the machine.
        self._context = browser.new_context(viewport=size or DESK, color_scheme=scheme, offline=True)  # type: ignore
        self.page: Page = self._context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda line: self.said.append(line.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self._note(request.url, file.as_uri()))
        self.page.goto(file.as_uri())
        self.page.wait_for_function(_DRAWN)

    def _note(self, url: str, own: str) -> None:
        if url != own:
            self.asked.append(url)

    def style(self, selector: str, name: str) -> Any:
        """Returns a computed style."""
        return self.page.eval_on_selector(selector, f"element => getComputedStyle(element)['{name}']")

    def column(self, table: str, number: int) -> list[str]:
        """Returns the texts of a table's column."""
        cells = f"{table} tbody tr > :nth-child({number})"
        return [text.strip() for text in self.page.locator(cells).all_text_contents()]

    def close(self) -> None:
        self._context.close()
