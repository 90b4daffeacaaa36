"""What the documentation says of columns, commands and the public API is so, and its links lead somewhere."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path

import pytest

import fsd_calib
from command_pages import FOLDER, pages
from fsd_calib import adaptive
from fsd_collectors.schema import COMPLETIONS, ROUNDS, Column, token_columns
from overview import PICTURE, drawn
from support.paths import DOCS, PAGES, ROOT, page_name, public_names


@pytest.mark.parametrize("columns", [token_columns([]), COMPLETIONS, ROUNDS], ids=["tokens", "completions", "rounds"])
def test_the_page_on_traces_says_what_a_column_holds(columns: Sequence[Column]) -> None:
    page = (DOCS / "traces.md").read_text(encoding="utf-8")
    rows = [f"| `{column.name}` | {column.type} | {column.unit} | {column.meaning} |" for column in columns]
    assert [row for row in rows if row not in page] == []


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    broken = []
    for link in _links(page):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(link)
    assert broken == []


def test_the_readme_links_wherever_it_is_shown() -> None:
    """It is the package's page too, where a path in the repository leads nowhere."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\((?!https?:|#)([^)\s]+)\)", readme) == []
    assert len(_links(ROOT / "README.md")) > 10


def _links(page: Path) -> list[str]:
    """Links into the repository, relative to the page's folder or to a heading of it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    files = re.compile(re.escape(project["urls"]["Repository"]) + r"/(?:blob|raw|tree)/main/")
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    return [files.sub("", link) for link in links if files.match(link) or not link.startswith("http")]


def _anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_the_pages_on_commands_are_those_of_their_help() -> None:
    written = {page.name: page.read_text(encoding="utf-8") for page in FOLDER.glob("*.md")}
    assert written == pages(), "run: python docs/tools/command_pages.py"


def test_the_page_on_the_public_api_has_every_public_name() -> None:
    """In its tables, and with its docstring on the page that the heading leads to."""
    index = (DOCS / "api.md").read_text(encoding="utf-8")
    public = {f"fsd_calib.{name}" for name in fsd_calib.__all__} - {"fsd_calib.adaptive"}
    listed = public_names()
    assert public | {f"fsd_calib.adaptive.{name}" for name in adaptive.__all__} <= set(listed)
    pages = [DOCS / link for link in re.findall(r"^## \[.*\]\((.*)\)$", index, flags=re.MULTILINE)]
    assert sorted(pages) == sorted((DOCS / "api").iterdir())
    shown = [re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE) for page in pages]
    assert list(chain.from_iterable(shown)) == listed
    for name in listed:
        module, _, attribute = name.rpartition(".")
        assert hasattr(import_module(module), attribute)


def test_the_picture_of_the_readme_shows_what_was_measured() -> None:
    assert PICTURE.read_text(encoding="utf-8") == drawn(), "run: python docs/tools/overview.py"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 120
