"""Models load without transformers' bars, whose setting stays the user's own; what is read is told to our progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from huggingface_hub.utils.tqdm import are_progress_bars_disabled
from transformers.utils import logging

from fsd_common.progress import base
from fsd_decoding.loading import load_model
from fsd_decoding.models.weights_digest import known_weights_digest
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


class Megabytes:
    """A progress that adds up what it is told of each step."""

    def __init__(self) -> None:
        self.steps: dict[str, tuple[int, int]] = {}

    @contextmanager
    def step(self, title: str, total: int) -> Iterator[Callable[[int], None]]:
        self.steps[title] = (0, total)

        def advance(more: int) -> None:
            self.steps[title] = (self.steps[title][0] + more, total)

        yield advance

    def note(self, line: str) -> None:
        raise AssertionError(line)


def test_what_is_read_of_a_checkpoint_is_told_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llama(seed=1).save_pretrained(tmp_path / "model")
    size = (tmp_path / "model" / "model.safetensors").stat().st_size
    monkeypatch.setattr(base, "megabytes", lambda size: size)  # as many as bytes: these are tiny
    model = load_model(tmp_path / "model", "cpu", None, progress=(told := Megabytes()))
    copied = sum(weight.nbytes for weight in (*model.parameters(), *model.buffers()))
    assert told.steps == {
        "reading the weights of model, MB": (size, size),
        "copying the weights of model into memory, MB": (copied, copied),
    }
    assert logging.set_tqdm_hook(None) is None  # transformers' bars are as they were


def test_what_is_read_for_a_fingerprint_is_told_and_nothing_where_it_is_known() -> None:
    read: list[int] = []
    known_weights_digest(model := llama(seed=1), read.append)
    assert sum(read) == sum(tensor.nbytes for tensor in model.state_dict().values())
    read.clear()
    known_weights_digest(model, read.append)
    assert not read
