"""What every test gets. Knows Hypothesis's settings, and that no test may touch a user's own cache."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from fsd_calib.cache_folder import CACHE_VARIABLE

# The first call into torch takes longer than Hypothesis's 200 ms, and so does any call on a busy machine.
settings.register_profile("fsd", deadline=None)
settings.load_profile("fsd")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache and a ledger of the test's own, for processes that it starts too."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv(CACHE_VARIABLE, str(folder))
    return folder
