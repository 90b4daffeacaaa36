"""Every block of code in the README and the documentation runs as it stands, or says what it needs and is checked."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsd_common.user_folders import CACHE_VARIABLE, STATE_VARIABLE
from support.calibration.fixed_speeds import fix_speeds
from support.paths import DOCS, PAGES, ROOT, page_name, public_names
from support.snippets import DATA, NEEDS, SHOWN, Snippet, commands, run_page, snippets

RUNNABLE = [page for page in PAGES if any(s.language not in SHOWN for s in snippets(page))]
FIRST = [ROOT / "README.md", DOCS / "quickstart.md", DOCS / "traces.md"]  # what others go on from
ALL = [snippet for page in PAGES for snippet in snippets(page)]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where a reader stands who followed the README, the quickstart and the page on traces, whose results are there.

    The cache is of all pages, so they decode few problems twice.
    """
    folder = tmp_path_factory.mktemp("reader")
    with pytest.MonkeyPatch.context() as patch:
        _settle(patch, folder)
        for page in FIRST:
            run_page(page)
        found = folder / "fsd-profile" / "arithmetic"
        shutil.copy(found / "profile.json", folder)
        for other in "abc":
            shutil.copytree(found, folder / "runs" / other)
        yield folder


def _settle(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setenv(CACHE_VARIABLE, str(folder / "cache"))
    patch.setenv(STATE_VARIABLE, str(folder / "state"))
    patch.chdir(folder)
    patch.syspath_prepend(folder)  # as Python in that folder has it
    fix_speeds(patch, 1.7)  # what is certified does not depend on the clock


@pytest.mark.slow
@pytest.mark.parametrize("page", RUNNABLE, ids=page_name)
def test_every_block_of_a_page_runs_after_the_one_before(
    page: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if page not in FIRST:
        _settle(monkeypatch, workplace)
        run_page(page)


@pytest.mark.parametrize("snippet", ALL, ids=str)
def test_a_block_is_run_or_says_what_it_needs(snippet: Snippet) -> None:
    assert snippet.language in ("python", "sh", *DATA, *SHOWN)
    assert snippet.needs in (None, *NEEDS)


def test_pages_have_no_code_that_is_not_fenced() -> None:
    """Indented blocks would be run by nobody."""
    fenced = re.compile(r"^```.*?^```$", flags=re.DOTALL | re.MULTILINE)
    indented = re.compile(r"\n\n    (?:python |fsd-|from |import |decoder|\$ )")
    assert [page.name for page in PAGES if indented.search(fenced.sub("", page.read_text(encoding="utf-8")))] == []


def test_words_of_commands() -> None:
    assert list(commands("A=1 fsd-x --y 'z w' && b \\\n  c  # d\n\ne")) == [["fsd-x", "--y", "z w"], ["b", "c"], ["e"]]


def test_pages_import_what_is_public() -> None:
    imported = set()
    for snippet in ALL:
        for module, names in re.findall(r"^from (fsd_[\w.]+) import (.+)$", snippet.text, flags=re.MULTILINE):
            imported |= {f"{module}.{name.strip()}" for name in names.split(",")}
    assert imported
    assert imported - {*public_names(), "fsd_calib.adaptive"} == set()
