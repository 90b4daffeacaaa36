"""Models load without transformers' bars, whose setting stays the user's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub.utils.tqdm import are_progress_bars_disabled
from transformers.utils import logging

from fsd_decoding.loading import load_model
from support.models.tiny_models import llama


def switch(on: bool) -> None:
    call: Callable[[], None] = logging.enable_progress_bar if on else logging.disable_progress_bar
    call()


@pytest.mark.parametrize("shown", [True, False])
def test_loading_prints_nothing_and_keeps_the_users_setting(
    shown: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = logging.is_progress_bar_enabled()
    llama(seed=0).save_pretrained(tmp_path)
    try:
        switch(shown)
        downloads = are_progress_bars_disabled()
        capsys.readouterr()
        load_model(tmp_path, "cpu", None)
        assert capsys.readouterr().err == ""
        assert logging.is_progress_bar_enabled() is shown
        assert are_progress_bars_disabled() is downloads
    finally:
        switch(before)
