"""Replay under a policy that scales T, compared with scores scaled by hand, and with decoding."""

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
from support.messages import usage_error
from support.models.tiny_pair import ragged_prompts, tiny_decoder
from support.traces.at_the_limit import is_drafted_as_replayed
from support.traces.memory_traces import MemoryManifest, MemoryTraces, trace_texts

NEW = 24
Row = dict[str, Any]


class Alternating(ScalePolicy):
    """The scales are 0, 1/2 and 4 in turn."""

    columns = ("position",)
    least = 0.5
    places = (0.5, 4.0, 0.0)

    def scales(self, state: RoundState) -> Tensor:
        return state.base.new_tensor(self.places)[state.places % 3]

    def traced(self, columns: Mapping[str, Any]) -> Any:
        return np.array(self.places)[columns["position"] % 3]


class Unsure(ScalePolicy):
    """A scale that grows with the target's entropy."""

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
    """Scales the scores by hand."""
    scales = [Alternating.places[i % 3] for i in range(len(completion))]
    rows = zip(completion, scales, strict=True)
    return [row | {"js": row["js"] / scale if scale else math.inf} for row, scale in rows]


@given(texts, st.sampled_from([-1.0, 0.0, 0.2, 0.6, math.inf]), st.integers(1, 5))
def test_scaled_replay_equals_replay_of_scaled_scores(completions: list[Any], t: float, length: int) -> None:
    scaled = ScaledTraces(MemoryTraces(completions), Alternating())
    by_hand = MemoryTraces([divided(completion) for completion in completions])
    assert replay(scaled, "fsd-coupled", "js", t, length) == replay(by_hand, "fsd-coupled", "js", t, length)
    assert replay(scaled, "coupled", draft_length=length) == replay(
        MemoryTraces(completions), "coupled", draft_length=length
    )
    assert quantiles(scaled, "js", [0.5, 1.0]).tolist() == quantiles(by_hand, "js", [0.5, 1.0]).tolist()


@given(texts)
def test_other_columns_and_selected_rows_stay_unchanged(completions: list[Any]) -> None:
    own = MemoryTraces(completions, manifest=MemoryManifest(scores=("js",)))
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
        "the policy Short returned scales of shape (2,); it must return one for each row: (3,)"
    )


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    return tiny_decoder()


@pytest.mark.thinned(every=4)
@pytest.mark.parametrize("policy", [Alternating(), Unsure()], ids=["alternating", "unsure"])
@pytest.mark.parametrize("rule", ["fsd", "fsd-coupled"])
def test_decoding_equals_replay_until_a_substitution(
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
        result = replay(one, rule, "js", threshold, 4)
        if result.substitutions == 0:
            same += 1
            assert (real.tokens, real.rounds) == (own.tokens, result.rounds)
            assert is_drafted_as_replayed(real, result.drafted, 4, NEW)
    assert 5 < same < len(prompts)
