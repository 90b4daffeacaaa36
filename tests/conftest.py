"""What every test gets: Hypothesis's settings, folders that are not a user's own, and as many threads in torch as the
test before, since sums over two threads differ in their last bits. Kernels are interpreted where there is no GPU, costs
are measured by few rounds, and commands start worker processes, which import for seconds, only where a test says so."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from fsd_common.pages.page import FOLDER as PAGES
from fsd_common.user_folders import CACHE_VARIABLE, STATE_VARIABLE
from support.browsers import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser

os.environ.setdefault("LOKY_MAX_CPU_COUNT", "1")  # the cores that workers are started for by default

# The first call into torch takes longer than Hypothesis's 200 ms, and so does any call on a busy machine. Every run
# draws other examples: half of Hypothesis's hundred are half the time.
settings.register_profile("fsd", deadline=None, max_examples=50)
settings.load_profile("fsd")


UNTIL = "FSD_SLOW_TESTS_UNTIL"
"""Names the variable with the time, in seconds of the epoch, from when on slow tests are skipped."""


def pytest_sessionstart(session: pytest.Session) -> None:
    """Imports what takes seconds, but not in the process that starts pytest-xdist's workers and waits for them."""
    if session.config.getoption("dist", "no") != "no" and not hasattr(session.config, "workerinput"):
        return
    import torch

    if not torch.cuda.is_available():  # Triton looks at it when it is first imported
        os.environ["TRITON_INTERPRET"] = "1"
    from fsd_common.progress import chosen
    from support.calibration.any_gain import go_on_for_any_gain
    from support.calibration.quick_costs import measure_few_rounds

    measure_few_rounds()
    go_on_for_any_gain()
    chosen._SOONEST = chosen._LATEST  # what a log holds does not depend on how busy the machine is
    gc.disable()  # until all tests are collected, which makes millions of objects that stay


def pytest_collection_finish() -> None:
    gc.freeze()  # the garbage collector would go through modules and tests for seconds, again and again
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # at exit, nanobind calls what was never freed leaks


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks cases of thinned tests as slow, and begins with another file each day where time may not be left for all.

    Where `every` and the numbers of values of the parameters have no common divisor, the fast cases take turns through
    all values.
    """
    seen: Counter[str] = Counter()
    for item in items:
        thinned = item.get_closest_marker("thinned")
        if thinned is not None and item.get_closest_marker("slow") is None:
            test = item.nodeid.partition("[")[0]
            if seen[test] % thinned.kwargs["every"]:
                item.add_marker(pytest.mark.slow)
            seen[test] += 1
    if UNTIL in os.environ:
        files = list(dict.fromkeys(item.path for item in items))
        first = int(os.environ[UNTIL]) // 86_400 * 11 % max(len(files), 1)
        items.sort(key=lambda item: (files.index(item.path) - first) % len(files))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("slow") and time.time() > float(os.environ.get(UNTIL, "inf")):
        pytest.skip("no time is left for slow tests")


@pytest.fixture(autouse=True, scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache and a ledger for what is made for several tests."""
    with pytest.MonkeyPatch.context() as patch:
        cache = tmp_path_factory.mktemp("cache")
        patch.setenv(CACHE_VARIABLE, str(cache))
        patch.setenv(STATE_VARIABLE, str(tmp_path_factory.mktemp("state")))
        (cache / PAGES).mkdir()
        yield cache


@pytest.fixture(autouse=True)
def cache(folders: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache and a ledger of the test's own, for processes that it starts too; with the script of pages, which takes
    seconds to make. (`mktemp` of pytest would look at the folders of all tests before.)"""
    cache, state = (Path(tempfile.mkdtemp(dir=folders)) for _ in range(2))
    (cache / PAGES).symlink_to(folders / PAGES, target_is_directory=True)
    monkeypatch.setenv(CACHE_VARIABLE, str(cache))
    monkeypatch.setenv(STATE_VARIABLE, str(state))
    return cache


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """Fails a test that changes how this process takes Ctrl-C, which the processes that later tests start inherit."""
    before = signal.getsignal(signal.SIGINT)
    yield
    after = signal.signal(signal.SIGINT, before)
    assert after is before


@pytest.fixture(scope="module")  # playwright's loop runs as long as it, where asyncio.run is an error
def browser() -> Iterator[Browser]:
    """Chromium, for those that look at pages."""
    with chromium() as opened:
        yield opened
