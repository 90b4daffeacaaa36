"""Memory of beams: what is planned is allocated, and texts share the slots of their common beginning."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fsd_decoding.beams import decode
from fsd_decoding.beams.settings import BeamSettings
from fsd_decoding.memory import ModelSize, Workload, need
from fsd_decoding.models.runner import ModelRunner
from support.models.tiny_pair import tiny_decoder

PROMPT, NEW, DEPTH = [5, 6, 7, 8], 20, 3


def test_the_plan_is_what_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    runners: list[ModelRunner] = []

    class Kept(ModelRunner):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            runners.append(self)

    monkeypatch.setattr(decode, "ModelRunner", Kept)
    decoder, settings = tiny_decoder(), BeamSettings(3, 6)
    decoder.generate_beams([PROMPT, PROMPT], 3, NEW, 1.0, depth=DEPTH, batch_size=2)
    sizes = [ModelSize.of(model, None) for model in (decoder.target, decoder.draft)]
    work = Workload.of_beams(settings, len(PROMPT), NEW, DEPTH, greedy=False)
    planned = need(sizes[0], sizes[1:], work, 2, "cpu")
    assert planned["KV caches"] == sum(runner.cache.nbytes for runner in runners)


@pytest.mark.parametrize("beams", [2, 6])
def test_beams_share_the_slots_of_their_beginning(beams: int) -> None:
    """A prompt is stored once, and of the texts each token that they have in common."""
    decoder, settings = tiny_decoder(), BeamSettings(beams, 2 * beams)
    (result,) = decoder.generate_beams([PROMPT], beams, NEW, depth=DEPTH, rule="coupled")
    tokens = {tuple(beam.tokens[:n]) for beam in result.beams for n in range(1, len(beam.tokens) + 1)}
    assert len(tokens) < sum(len(beam.tokens) for beam in result.beams)
    assert result.slots <= settings.nodes(NEW, DEPTH)
    assert result.slots < beams * NEW


@torch.inference_mode()
def test_more_beams_take_more() -> None:
    size = ModelSize.of(tiny_decoder().target, None)
    needs = [
        sum(need(size, [size], Workload.of_beams(BeamSettings(w, 2 * w), 9, 30, 4, greedy=True), 1, "cpu").values())
        for w in (1, 2, 4, 8)
    ]
    assert needs == sorted(set(needs))
