"""Models with recurrent layers: the runner and its states, compared with uncached forward passes at every ragged step.

Tiny random models in float64, so that a tolerance of 1e-9 tells a wrong state from rounding.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, Zamba2Config

from fsd_common.errors import UsageError
from fsd_decoding.memory import ModelSize
from fsd_decoding.models.runner import ModelRunner
from fsd_decoding.models.state_cache import StateCache
from support.models.recurrent_models import RECURRENT
from support.models.tiny_models import VOCABULARY, llama, random_model
from support.models.wide_scans import use_wide_scans

ROWS, ROUNDS, DRAFT, CONTEXT = 3, 30, 5, 64
SLOTS = CONTEXT + DRAFT + 2


@pytest.fixture(autouse=True)
def float64_throughout(monkeypatch: pytest.MonkeyPatch) -> None:
    use_wide_scans(monkeypatch)


class Ragged:
    """A batch of rows of different lengths, all of whose logits are checked."""

    def __init__(self, model: Any, seed: int = 0) -> None:
        self.model, self.random = model, Random(seed)
        self.runner = ModelRunner(model, ROWS, SLOTS, VOCABULARY, rolled_back=DRAFT + 2)
        self.texts: list[list[int]] = [[] for _ in range(ROWS)]

    def words(self, count: int) -> list[int]:
        return [self.random.randrange(VOCABULARY) for _ in range(count)]

    def refill(self, lengths: dict[int, int]) -> None:
        """Gives some rows (row -> length) new prompts, read by lengths, and keeps the others' states."""
        for row, length in lengths.items():
            self.texts[row] = self.words(length)
        for length in set(lengths.values()):
            rows = [row for row in lengths if lengths[row] == length]
            self.runner.prefill(torch.tensor(rows), torch.tensor([self.texts[row] for row in rows]), length - 1)

    def round(self, drafted: int, again: int) -> None:
        """Feeds each row its last `again` tokens and some drafts, checks the logits, and accepts some of the drafts."""
        length = torch.tensor([len(text) for text in self.texts])
        again = min(again, int(length.min()))
        positions = length[:, None] - again + torch.arange(again + drafted)
        texts = [text + self.words(drafted) for text in self.texts]
        fed = [[text[at] for at in row] for text, row in zip(texts, positions.tolist(), strict=True)]
        actual = self.runner.logits(torch.tensor(fed), positions, int(positions.max()) + 1, again + drafted)
        for text, row, at in zip(texts, actual, positions.tolist(), strict=True):
            self.check(text, row, at)
        self.texts = [text[: len(text) - self.random.randint(0, drafted)] + self.words(1) for text in texts]

    def check(self, text: list[int], actual: Tensor, positions: list[int]) -> None:
        fresh = self.model(torch.tensor([text[:CONTEXT]]), use_cache=False).logits[0]
        for logits, at in zip(actual, positions, strict=True):
            if at < CONTEXT:
                torch.testing.assert_close(logits, fresh[at], atol=1e-9, rtol=0)

    def refill_ended(self) -> None:
        ended = [i for i, text in enumerate(self.texts) if len(text) >= CONTEXT or self.random.random() < 0.05]
        if ended:
            self.refill({i: self.random.choice((2, 3, 9, 17, CONTEXT - 5)) for i in ended})


@pytest.mark.parametrize("case", RECURRENT)
@torch.inference_mode()
def test_every_logit_of_rows_that_are_rolled_back_is_that_of_an_uncached_pass(case: str) -> None:
    ragged = Ragged(random_model(RECURRENT[case], seed=0))
    ragged.refill({0: 7, 1: 20, 2: 2})
    for _ in range(ROUNDS):
        ragged.round(ragged.random.randint(0, DRAFT), ragged.random.choice((1, 2)))
        ragged.refill_ended()


@torch.inference_mode()
def test_a_cache_of_transformers_that_is_cropped_has_the_state_of_what_was_rejected() -> None:
    """The negative control: what the tests above would say of its rollback."""
    model = random_model(RECURRENT["mamba2"], seed=0)
    text = torch.arange(2, 22)[None] % VOCABULARY
    fresh = model(text, use_cache=False).logits[0]
    cache = DynamicCache(config=model.config)
    layers: list[Any] = cache.layers
    for layer in layers:
        layer.activate_past_recording()
    model(text[:, :10], cache=cache, use_cache=True)
    model(text[:, 12:16], cache=cache, use_cache=True)  # a draft that is rejected
    for layer in layers:
        layer.crop(-4)
    after = model(text[:, 10:11], cache=cache, use_cache=True).logits[0, -1]
    assert (after - fresh[10]).abs().max() > 1e-3


@torch.inference_mode()
def test_rows_are_copied_dropped_and_renumbered_with_their_states() -> None:
    model = random_model(RECURRENT["qwen3-next"], seed=0)
    ragged = Ragged(model)
    ragged.refill({0: 9, 1: 9, 2: 9})
    ragged.runner.copy([0], [2], 8)
    ragged.texts[2] = [*ragged.texts[0]]
    ragged.round(3, 1)
    ragged.runner.keep([2, 0])
    ragged.texts = [ragged.texts[2], ragged.texts[0]]
    ragged.round(3, 1)


@torch.inference_mode()
def test_the_plan_counts_states_as_the_cache_allocates_them() -> None:
    model = random_model(RECURRENT["falcon-h1"], seed=0)
    runner = ModelRunner(model, ROWS, SLOTS, VOCABULARY, rolled_back=DRAFT + 1)
    runner.prefill(torch.arange(ROWS), torch.ones((ROWS, 9), dtype=torch.int64), 8)
    size = ModelSize.of(model, None)
    assert isinstance(runner.cache, StateCache)
    assert size.state > 0
    assert runner.cache.state_bytes == ROWS * (DRAFT + 2) * size.state
    assert runner.cache.nbytes - runner.cache.state_bytes == ROWS * SLOTS * size.slot
    assert ModelSize.of(llama(seed=0), None).state == 0


def test_a_family_that_was_not_tried_is_refused_by_its_name() -> None:
    model = llama(seed=0)
    model.config = Zamba2Config()
    refused = r"^zamba2 keeps a state that cannot be rolled back; of models with one bamba, "
    with pytest.raises(UsageError, match=refused):
        ModelRunner(model, ROWS, SLOTS, VOCABULARY)
