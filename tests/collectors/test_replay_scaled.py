"""Replay under a policy that scales T: what dividing by hand gives, and what decoding does where it does the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fsd_collectors.replay import ScaledTraces, quantiles, replay, sweep
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.policies.threshold import RoundState, ScalePolicy
from fsd_decoding.sampling import Sampling
from support.memory_traces import MemoryManifest, MemoryTraces, trace_texts
from support.messages import usage_error
from support.tiny_pair import ragged_prompts, tiny_decoder

NEW = 24
Row = dict[str, Any]


class Alternating(ScalePolicy):
    """Every third place has nothing, and those between have T over 2 and T times 4."""

    columns = ("position",)
    least = 0.5
    places = (0.5, 4.0, 0.0)

    def scales(self, state: RoundState) -> Tensor:
        return state.base.new_tensor(self.places)[state.places % 3]

    def traced(self, columns: Mapping[str, Any]) -> Any:
        return np.array(self.places)[columns["position"] % 3]


class Unsure(ScalePolicy):
    """The less sure the target is, the more is let through."""

    columns = ("target_entropy",)

    def scales(self, state: RoundState) -> Tensor:
        return 1 + state.target_entropy

    def traced(self, columns: Mapping[str, Any]) -> Any:
        return 1.0 + columns["target_entropy"]


class Short(Alternating):
    def traced(self, columns: Mapping[str, Any]) -> Any:
        return super().traced(columns)[:-1]


a_row = st.fixed_dictionaries(
    {"same_token": st.booleans(), "js": st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.9, math.inf]), "mark": st.booleans()}
)
texts = st.lists(st.lists(a_row, min_size=1, max_size=12), min_size=1, max_size=5)


def divided(completion: list[Row]) -> list[Row]:
    """By hand."""
    scales = [Alternating.places[i % 3] for i in range(len(completion))]
    rows = zip(completion, scales, strict=True)
    return [row | {"js": row["js"] / scale if scale else math.inf} for row, scale in rows]


@given(texts, st.sampled_from([-1.0, 0.0, 0.2, 0.6, math.inf]), st.integers(1, 5))
def test_it_is_a_replay_of_divergences_over_their_scales(completions: list[Any], t: float, length: int) -> None:
    scaled = ScaledTraces(MemoryTraces(completions), Alternating())
    by_hand = MemoryTraces([divided(completion) for completion in completions])
    assert replay(scaled, "fsd-coupled", "js", t, length) == replay(by_hand, "fsd-coupled", "js", t, length)
    assert replay(scaled, "coupled", draft_length=length) == replay(
        MemoryTraces(completions), "coupled", draft_length=length
    )
    assert quantiles(scaled, "js", [0.5, 1.0]).tolist() == quantiles(by_hand, "js", [0.5, 1.0]).tolist()


@given(texts)
def test_what_is_no_divergence_and_what_is_chosen_stay_as_they_are(completions: list[Any]) -> None:
    own = MemoryTraces(completions, manifest=MemoryManifest(divergences=("js",)))
    scaled = ScaledTraces(own, Alternating())
    where = pc.field("mark")
    for one, other in zip(
        scaled.batches(["mark", "js"], where), own.batches(["mark", "js", "position"], where), strict=True
    ):
        assert one.column_names == ["mark", "js"]
        assert one["mark"].to_pylist() == other["mark"].to_pylist()
        assert one.num_rows == other.num_rows
    assert [t.column_names for t in scaled.batches(["same_token"])] == [["same_token"] for _ in own.batches(["js"])]


def test_scales_that_are_not_one_a_row_are_refused() -> None:
    scaled = ScaledTraces(MemoryTraces([[{"same_token": True, "js": 0.1}] * 3]), Short())
    assert usage_error(lambda: sweep(scaled)) == (
        "the policy Short traced scales of shape (2,); it must give one a row: (3,)"
    )


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    return tiny_decoder()


@pytest.mark.parametrize("policy", [Alternating(), Unsure()], ids=["alternating", "unsure"])
@pytest.mark.parametrize("rule", ["fsd", "fsd-coupled"])
def test_decoding_does_what_replay_says_until_it_substitutes(
    decoder: SpeculativeDecoder, policy: ScalePolicy, rule: str
) -> None:
    prompts = ragged_prompts(40)
    alone = decoder.generate(prompts, NEW, rule="target")
    whole = trace_texts(decoder, prompts, alone, Sampling())
    threshold = float(quantiles(ScaledTraces(whole, policy), "js", [0.5])[0])
    decoded = decoder.generate(prompts, NEW, rule=rule, threshold=policy.at(threshold), draft_length=4)
    same = 0
    for own, real, completion in zip(alone, decoded, whole.completions, strict=True):
        one = ScaledTraces(replace(whole, completions=[completion]), policy)
        found = replay(one, rule, "js", threshold, 4)
        if found.substitutions == 0:
            same += 1
            assert (real.tokens, real.rounds, real.drafted) == (own.tokens, found.rounds, found.drafted)
    assert 5 < same < len(prompts)
