"""Drafts whose steps take longer, which raises the cost c of a draft step and changes no text."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from fsd_decoding.drafters.base import Drafter
from fsd_decoding.drafters.model import ModelDrafter
from fsd_decoding.models.runner import ModelRunner


class Delayed:
    """A draft source: a causal LM with seconds of busy waiting added to each step, but not to prefill."""

    def __init__(self, model: Any, seconds: float) -> None:
        self._model, self._seconds = model, seconds

    def drafter(self, rows: int, slots: int, vocabulary: int) -> Drafter:
        return _Waiting(ModelDrafter(ModelRunner(self._model, rows, slots, vocabulary)), self._seconds)


class _Waiting:
    def __init__(self, drafter: Drafter, seconds: float) -> None:
        self._drafter, self._seconds = drafter, seconds
        self.prefill, self.keep = drafter.prefill, drafter.keep

    @property
    def identity(self) -> Hashable:
        return "delayed", self._seconds, self._drafter.identity

    def logits(self, tokens: Tensor, lengths: Tensor, step: int, reach: int) -> Tensor:
        logits = self._drafter.logits(tokens, lengths, step, reach)
        _wait(self._seconds)
        return logits


@contextmanager
def slowed(model: Any, seconds: float) -> Iterator[None]:
    """Adds seconds to every forward of a causal LM, prefill included, where no draft source can take its place."""
    hook = model.register_forward_hook(lambda *_: _wait(seconds))
    try:
        yield
    finally:
        hook.remove()


def _wait(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass
