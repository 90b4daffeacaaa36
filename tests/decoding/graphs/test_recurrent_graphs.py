"""Graphs of models with recurrent layers: the number of states that a row keeps is part of them."""

from __future__ import annotations

import pytest

from fsd_calib import SpeculativeDecoder
from support.models.recurrent_models import RECURRENT
from support.models.tiny_models import llama, random_model, word_tokenizer

PROMPTS = [[2, 3], [4, 5, 6], [7, 8, 9, 10, 11], [12, 13]]


@pytest.mark.slow
def test_graphs_of_one_draft_length_are_not_those_of_another() -> None:
    target, draft = random_model(RECURRENT["mamba2"], seed=1), llama(seed=1, layers=2)
    decoder = SpeculativeDecoder(target, draft, word_tokenizer(), compile="capture")
    own = [result.tokens for result in decoder.generate(PROMPTS, 20, rule="target")]
    lengths: list[int | list[int]] = [3, 5, [5, 3, 3, 3], [3, 5, 3, 3]]
    for length in lengths:
        results = decoder.generate(PROMPTS, 20, rule="coupled", draft_length=length)
        assert [result.tokens for result in results] == own
