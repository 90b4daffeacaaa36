"""What beams are not decoded with: one line that names it, and the way out."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from fsd_common.errors import NumericalError
from fsd_data import head_path, pair_paths
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.drafters.eagle import Eagle
from fsd_decoding.drafters.ngram import NGram
from fsd_decoding.tree_shape import TreeShape
from support.messages import usage_error
from support.models.recurrent_models import RECURRENT
from support.models.tiny_models import random_model, word_tokenizer
from support.models.tiny_pair import tiny_decoder

SAMPLED: dict[str, Any] = {"temperature": 1.0}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"beams": 0}, "beams is 0"),
    ({"width": 2}, "width is 2; it must be at least the number of beams, 3"),
    ({"depth": 0}, "draft_length is 0"),
    ({"depth": 2, "draft_length": 3}, "depth and draft_length mean the same"),
    ({"chance": 1.5}, "chance is 1.5"),
    ({"least_beams": 4}, "least_beams is 4; it must be at most the number of beams, 3"),
    ({"early_stopping": "soon"}, "early_stopping is 'soon'"),
    ({"length_penalty": float("nan")}, "length_penalty is NaN"),
    ({"batch_size": 0}, "batch_size is 0"),
    ({"rule": "fsd", **SAMPLED}, "rule 'fsd' does not judge beams drawn without replacement; use one of target, co"),
    ({"rule": "sd", **SAMPLED}, "rule 'sd' does not judge beams drawn without replacement"),
    ({"rule": "coupled", "replacement": True, **SAMPLED}, "with replacement; use one of target, sd, fsd-sd"),
    ({"rule": "sd", "replacement": True}, "at temperature 0 nothing is drawn"),
    ({"repetition_penalty": 1.1}, "a repetition penalty or logits processors"),
    ({"tree": TreeShape(2, 4)}, "give tree='chain'"),
    ({"stop_policy": lambda state: [True]}, "leave the stop policy out"),
    ({"score": "margin"}, "unknown divergence 'margin'"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED)
def test_settings(given: dict[str, Any], message: str) -> None:
    asked = {"beams": 3, **given}
    assert message in usage_error(lambda: tiny_decoder().generate_beams([[5, 6]], max_new_tokens=4, **asked))


def test_drafts_that_are_no_model() -> None:
    target, _ = pair_paths()
    for draft, name in ((NGram(), "NGram"), (Eagle(head_path()), "Eagle")):
        decoder = SpeculativeDecoder.from_pretrained(target, draft)
        assert f"{name}" in usage_error(partial(decoder.generate_beams, ["Question"], 2))
        (result,) = decoder.generate_beams(["Question"], 2, 3, rule="target")
        assert len(result.beams) == 2


def test_recurrent_models() -> None:
    model = random_model(RECURRENT["mamba"], seed=1)
    decoder = SpeculativeDecoder(model, model, word_tokenizer())
    assert "mamba has recurrent layers" in usage_error(lambda: decoder.generate_beams([[5, 6]], 2))


def test_logits_that_are_no_numbers() -> None:
    decoder = tiny_decoder()
    with torch.no_grad():
        decoder.target.get_output_embeddings().weight[3] = torch.nan
    with pytest.raises(NumericalError, match="prompt 0 got logits that are NaN"):
        decoder.generate_beams([[5, 6]], 2)
