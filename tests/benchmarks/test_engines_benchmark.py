"""The parts of `benchmarks/engines.py` that need no vLLM."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from lib.common.claims import reached
from lib.common.timing import speed_up
from lib.engines import pairs
from lib.engines.claims import engine_claims
from lib.engines.contest import NOT_LEAN, OURS, SD, TARGET, TRANSFORMERS, VLLM, Amount, Contestant, contest, ratio
from lib.engines.own import OwnSettings
from lib.engines.processes import Settings, serve
from lib.engines.transformers import TransformersSettings
from lib.engines.work import Decoded, Work


def _work(prompts: tuple[str, ...], batch: int = 1) -> Work:
    return Work(prompts, tuple(range(len(prompts))), 12, (), batch)


def _decoder(seconds: float) -> Callable[[Work], Decoded]:
    """An engine whose texts are the prompts, one token each."""
    return lambda work: Decoded(work.prompts, len(work.prompts), 0, len(work.prompts) * seconds, 1.0)


def test_each_engine_has_its_own_best_length_and_is_compared_at_it() -> None:
    contestants = {
        OURS: Contestant(_decoder(0.5), {3: _decoder(0.25), 5: _decoder(0.4)}),
        VLLM: Contestant(_decoder(1.0), {3: _decoder(0.75), 5: _decoder(0.5)}),
    }
    found = contest(contestants, _work(tuple("abcdef"), 2), Amount(2, 4, 2, 2, 2, 1))
    assert {name: lengths.best for name, lengths in found["sd_lengths"].items()} == {OURS: 3, VLLM: 5}
    assert {name: times.median for name, times in found["speed_ups"].items()} == {
        ratio(w, VLLM): 2 for w in (TARGET, SD)
    }
    assert found["prompts"] == 4
    assert set(found["same_texts"].values()) == {4}
    assert found["contestants"]["vLLM, sd"]["tokens_per_cpu_second"].median == 2


@pytest.mark.parametrize(("times", "wanted"), [(2.5, True), (1.5, False)])
def test_every_claim_is_judged_by_our_speed_over_a_peers(times: float, wanted: bool) -> None:
    slow = [_decoder(1.0)(_work(("a",))).on_cpu] * 3
    fast = [_decoder(1 / times)(_work(("a",))).on_cpu] * 3
    names = [ratio(way, peer) for way in (TARGET, SD) for peer in (VLLM, TRANSFORMERS)]
    batches = {batch: {"speed_ups": dict.fromkeys(names, speed_up(fast, slow))} for batch in (1, 32)}
    claims = list(engine_claims(batches))
    assert len(claims) == len({claim.name for claim in claims}) == 5
    assert reached(claims) == wanted


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [lambda folder: pairs.bundled(2, 12), partial(pairs.random, prompts=2, max_new_tokens=12)]
)
def test_ours_and_transformers_decode_the_same_texts_of_a_saved_pair(
    make: Callable[[Path], pairs.SavedPair], tmp_path: Path
) -> None:
    pair = make(tmp_path)
    settings: dict[str, Settings] = {
        OURS: OwnSettings(pair.models), NOT_LEAN: OwnSettings(pair.models, lean=False),
        TRANSFORMERS: TransformersSettings(pair.models),
    }  # fmt: skip
    with serve(settings) as served:
        found = [each.decode(_work(pair.prompts), way) for each in served.values() for way in (TARGET, f"{SD} 3")]
    assert len({decoded.texts for decoded in found}) == 1
    assert {decoded.tokens for decoded in found} == {24}
    assert all(decoded.cpu > 0 for decoded in found)
