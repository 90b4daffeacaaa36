"""Rounds, forecasts and traces that serve as inputs in tests of stopping rules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.divergence import divergence
from fsd_decoding.engine.result import Result
from fsd_predictors.features import MEASURED, NO_HISTORY, Array, Drafted, RoundContext, TokenKinds, measure
from fsd_predictors.stopping.rule import Kept, Round
from support.models.tiny_models import EOS, word_tokenizer
from support.traces.memory_traces import MemoryTraces

KINDS = TokenKinds.of(word_tokenizer(), EOS)
UNENDING = TokenKinds.of(word_tokenizer(), [])


class Linear:
    """A forecast: the logistic function of a weighted sum of features. weights: by the feature's index."""

    def __init__(self, weights: dict[int, float], offset: float = 0.0) -> None:
        self._weights, self._offset = weights, offset

    def probability(self, values: Sequence[float]) -> float:
        assert all(isinstance(value, float) and math.isfinite(value) for value in values)
        return 1 / (1 + math.exp(-self._offset - sum(weight * values[at] for at, weight in self._weights.items())))

    def predict_proba(self, x: Array) -> Array:
        assert x.dtype == np.float64
        return np.array([[1 - p, p] for p in map(self.probability, x.tolist())])


def random_round(rng: np.random.Generator, steps: int, rows: int, kept: Kept) -> Round:
    """Draws a round of `rows` rows: floats below 1, token kinds 0 to 3, and one token in five that ends its text."""

    def drawn() -> Any:
        return rng.random(rows)

    place = RoundContext.after([drawn() for _ in NO_HISTORY], rng.integers(0, 50, rows) * 1.0, drawn(), np.zeros(rows))
    drafted = [
        Drafted(*(drawn() for _ in MEASURED), kind=rng.integers(0, 4, rows) * 1.0, ends=(drawn() < 0.2) * 1.0)  # type: ignore[misc]
        for _ in range(steps)
    ]
    return Round(place, tuple(value + 0.1 * drawn() for value in kept), drafted)


def row_of(known: Any, row: int) -> Any:
    """Returns one row of arrays, or of a structure of arrays, as floats."""
    if isinstance(known, np.ndarray):
        return float(known[row])
    if isinstance(known, (list, tuple)):
        return type(known)(row_of(one, row) for one in known)
    if isinstance(known, (Drafted, RoundContext, Round)):
        return type(known)(**{name: row_of(value, row) for name, value in vars(known).items()})
    return known


@torch.inference_mode()
def reference_traces(decoder: SpeculativeDecoder, prompt: list[int], alone: Result) -> MemoryTraces:
    """Returns traces of the target's greedy text, computed from plain forward passes instead of the engine."""
    ids = torch.tensor([prompt + alone.tokens])
    new = slice(len(prompt) - 1, len(prompt) - 1 + alone.emitted)
    p, q = (model(ids).logits[0, new] for model in (decoder.target, decoder.draft))
    drafted, d = q.argmax(-1), divergence("js", p, q)
    rows = zip(p.argmax(-1).tolist(), drafted.tolist(), d.tolist(), measure(q, drafted).tolist(), strict=True)
    return MemoryTraces(
        [
            [
                {"same_token": y == x, "sd_accepts": y == x, "js": js, "drafted": x}
                | dict(zip((f"draft_{name}" for name in MEASURED), shape, strict=True))
                for y, x, js, shape in rows
            ]
        ]
    )
