"""Memory of beams: what is planned is allocated, caches grow with what texts do not share, and they share the rest."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fsd_common.errors import OutOfMemoryError
from fsd_decoding import memory, noise
from fsd_decoding.beams import decode
from fsd_decoding.beams.forest import Forest
from fsd_decoding.beams.settings import BeamSettings
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.graphs.callers import EagerCaller
from fsd_decoding.memory import ModelSize, Workload, need
from fsd_decoding.models import slot_cache
from fsd_decoding.models.runner import ModelRunner
from support.messages import usage_error
from support.models.tiny_pair import tiny_decoder

PROMPT, NEW, DEPTH = [5, 6, 7, 8], 20, 3


@pytest.fixture
def runners(monkeypatch: pytest.MonkeyPatch) -> list[ModelRunner]:
    """Those that beams are decoded with."""
    made: list[ModelRunner] = []

    class Kept(ModelRunner):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(decode, "ModelRunner", Kept)
    return made


@pytest.mark.parametrize("replacement", [True, False])
def test_the_plan_is_what_is_allocated_at_first(replacement: bool, runners: list[ModelRunner]) -> None:
    decoder, settings = tiny_decoder(), BeamSettings(3, 6)
    rule = "sd" if replacement else "coupled"
    decoder.generate_beams([PROMPT, PROMPT], 3, NEW, 1.0, depth=DEPTH, batch_size=2, replacement=replacement, rule=rule)
    sizes = [ModelSize.of(model, None) for model in (decoder.target, decoder.draft)]
    work = Workload.of_beams(settings, len(PROMPT), NEW, DEPTH, greedy=False)
    planned = need(sizes[0], sizes[1:], work, 2, "cpu")
    assert planned["KV caches"] == sum(runner.cache.nbytes for runner in runners)


def endless() -> SpeculativeDecoder:
    """Returns a decoder whose texts end at their length alone."""
    decoder = tiny_decoder()
    decoder.target.generation_config.eos_token_id = None
    return decoder


@pytest.mark.parametrize("rule", ["target", "fsd-coupled"])
def test_caches_grow_with_what_texts_do_not_share(
    rule: str, runners: list[ModelRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And texts are those in caches that hold texts that share nothing."""
    settings, new = BeamSettings(4, 8), 60

    def decoded() -> tuple[list[list[list[int]]], int]:
        found = endless().generate_beams(
            [PROMPT, PROMPT[::-1], PROMPT], 4, new, 1.0, depth=DEPTH, batch_size=2, rule=rule, threshold=0.1
        )
        return [[beam.tokens for beam in result.beams] for result in found], max(result.slots for result in found)

    texts, used = decoded()
    grown = [runner.slots for runner in runners]
    assert all(len(PROMPT) + used <= slots < len(PROMPT) + settings.nodes(new, DEPTH) for slots in grown)
    assert max(grown) > EagerCaller().size(len(PROMPT) + settings.shared(new, DEPTH))
    monkeypatch.setattr(BeamSettings, "shared", BeamSettings.nodes)
    runners.clear()
    assert decoded() == (texts, used)
    assert {runner.slots for runner in runners} == {EagerCaller().size(len(PROMPT) + settings.nodes(new, DEPTH))}


def test_caches_that_cannot_grow_end_decoding_with_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, prompts = endless(), [PROMPT, PROMPT[::-1]]
    monkeypatch.setattr(slot_cache, "available", lambda device: 1000)
    (short,) = decoder.generate_beams(prompts[:1], 4, 4, 1.0, rule="target")
    with pytest.raises(OutOfMemoryError, match="out of memory with batch_size 2; try batch_size 1") as error:
        decoder.generate_beams(prompts, 4, 60, 1.0, depth=DEPTH, batch_size=2, rule="target")
    assert (len(short.beams), error.value.finished) == (4, {})


@pytest.mark.parametrize("nodes", [1, 63, 64, 300])
def test_a_forest_takes_what_is_planned(nodes: int) -> None:
    forest = Forest(1, 0, noise.problem_keys(0, [0])[0])
    for token in range(nodes):
        forest.child(0, token)
    assert forest.nbytes == Forest.bytes_for(nodes)


@torch.inference_mode()
def test_forests_are_planned_with_the_square_of_their_nodes() -> None:
    size = ModelSize.of(tiny_decoder().target, None)
    planned = [
        need(size, [size], Workload.of_beams(BeamSettings(4, 8), 9, new, 4, greedy=True), 3, "cpu")["paths of beams"]
        for new in (600, 1200)
    ]
    assert planned == [3 * 1024**2, 3 * 2048**2]


@pytest.mark.parametrize("rule", ["target", "coupled"])
def test_what_does_not_fit_is_refused_before_it_is_allocated(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = tiny_decoder()
    monkeypatch.setattr(memory, "available", lambda device: 200_000_000)
    (result,) = decoder.generate_beams([PROMPT], 2, 4, rule=rule)
    assert len(result.beams) == 2
    message = usage_error(lambda: decoder.generate_beams([PROMPT], 400, 100, rule=rule))
    assert message.startswith("decoding the beams of 1 prompts at a time takes about ")
    assert "cpu has 200 MB free; use fewer beams" in message


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
