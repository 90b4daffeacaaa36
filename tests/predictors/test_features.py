"""Features: the same numbers from one row or many, while decoding or from traces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_collectors.replay.blocks import blocks
from fsd_collectors.replay.cases import cases, quantiles
from fsd_collectors.replay.rounds import RoundPolicy, lanes_of, simulate_rounds
from fsd_decoding.policies.stopping import DraftState, StopPolicy, Verified
from fsd_decoding.sampling import Sampling
from fsd_predictors.features import (
    COLUMNS,
    FEATURES,
    MEASURED,
    NO_HISTORY,
    SHARE,
    Drafted,
    RoundContext,
    TokenKinds,
    Value,
    feature_values,
    history_after,
    matrix,
    measure,
    updated_history,
)
from fsd_predictors.share_scale import ShareScale
from fsd_predictors.training.rows import ExampleMaker
from support.models.tiny_models import EOS, VOCABULARY
from support.models.tiny_pair import ragged_prompts, tiny_decoder
from support.traces.memory_traces import MemoryTraces, trace_texts

number = st.floats(-50, 50)
a_token = st.builds(Drafted, *[number] * 7)
a_place = st.builds(RoundContext, number, number, number, st.tuples(number, number, number), number, number)
a_round = st.tuples(a_place, st.lists(a_token, min_size=1, max_size=6))


def columns(values: Sequence[Any]) -> Any:
    """Stacks numbers of n rows, or tuples of them, into arrays (n,)."""
    if isinstance(values[0], tuple):
        return tuple(columns(part) for part in zip(*values, strict=True))
    return np.array(values)


def stacked(parts: Sequence[Any]) -> Any:
    """Stacks n tokens, or contexts, into one of arrays (n,)."""
    return type(parts[0])(*columns([tuple(vars(part).values()) for part in parts]))


@given(st.integers(1, 6).flatmap(lambda n: st.lists(st.tuples(a_place, st.lists(a_token, min_size=n, max_size=n)))))
def test_single_rows_and_arrays_give_equal_features(rounds: list[tuple[RoundContext, list[Drafted]]]) -> None:
    if not rounds:
        return
    place = stacked([place for place, _ in rounds])
    steps = [stacked(tokens) for tokens in zip(*(steps for _, steps in rounds), strict=True)]
    alone = np.array([feature_values(steps_of_one, place_of_one) for place_of_one, steps_of_one in rounds])
    together = matrix(feature_values(steps, place))
    assert together.shape == (len(rounds), len(FEATURES))
    assert np.array_equal(alone, together)


@given(a_round)
def test_features_are_what_their_names_mean(drafting: tuple[RoundContext, list[Drafted]]) -> None:
    place, steps = drafting
    by_name = dict(zip(FEATURES, feature_values(steps, place), strict=True))
    assert FEATURES[SHARE] == "share"
    assert [by_name[name] for name in ("share", "divergence", "position", "step", "spared", "refused")] == [
        place.share, place.divergence, place.position, len(steps), place.largest_accepted, place.smallest_rejected,
    ]  # fmt: skip
    assert tuple(by_name[f"accepted_{back}_back"] for back in (1, 2, 3)) == place.accepted_back
    assert [by_name[name] for name in (*MEASURED, "kind", "ends")] == list(vars(steps[-1]).values())
    assert by_name["margin"] == by_name["top1"] - by_name["top2"]
    sure = {"entropy": 0.0, "top1": 1.0, "probability": 1.0, "kind": -1.0}  # before a round all is settled
    for back, whose, names in ((2, "previous", sure), (3, "earlier", ("entropy", "top1"))):
        for name in names:
            drafted = len(steps) >= back
            assert by_name[f"{whose}_{name}"] == (getattr(steps[-back], name) if drafted else sure[name])
    assert by_name["product"] == pytest.approx(math.prod(float(step.probability) for step in steps[:-1]))
    assert by_name["entropies"] == pytest.approx(sum(float(step.entropy) for step in steps[:-1]), abs=1e-9)


def test_floats_are_repeated_for_all_rows() -> None:
    assert matrix([np.array([1.0, 2.0]), 3.0]).tolist() == [[1.0, 3.0], [2.0, 3.0]]


def test_the_history_holds_the_last_rounds() -> None:
    history: tuple[Value, ...] = NO_HISTORY
    assert RoundContext.after(history, 0.0, 0.0, 0.0).accepted_back == (-1.0, -1.0, -1.0)
    for accepted in (5.0, 4.0, 3.0, 2.0):
        history = history_after(history, accepted, accepted / 10, accepted / 20)
    place = RoundContext.after(history, 7.0, 1.5, 2.0)
    assert place == RoundContext(7.0, 1.5, 2.0, (2.0, 3.0, 4.0), 0.2, 0.1)


# The engine and traces of one text.

NEW, MOST = 32, 5
BY_PLACE = TokenKinds(np.arange(VOCABULARY) % 6.0, np.isin(np.arange(VOCABULARY), EOS).astype(np.float64))
Known = dict[tuple[int, int, int], list[float]]  # by problem, where its round began, and step: `FEATURES`


def wanted(starts: Any) -> Any:
    """Returns the draft length, 1 to 4, of a round at this position."""
    return 1 + 3 * starts % 4


@dataclass
class Recorder(StopPolicy):
    """Records the features while decoding, from what a stop policy receives."""

    scale: ShareScale
    known: Known = field(default_factory=dict)
    steps: list[list[Drafted]] = field(default_factory=list)

    def goes_on(self, state: DraftState) -> list[bool]:
        if not state.logits:
            self.steps = [[] for _ in state.rows]
        return [row is not None and len(state.logits) < wanted(len(row.tokens)) for row in state.rows]

    def withholds(self, state: DraftState) -> None:
        step = len(state.logits)
        drawn = state.batch.tokens.gather(1, (state.batch.lengths + step - 1)[:, None])[:, 0]
        shapes = measure(state.logits[-1][:, 0], drawn).tolist()
        tokens = zip(*(each[drawn.numpy()].tolist() for each in (BY_PLACE.kind, BY_PLACE.ends)), strict=True)
        for row, steps, shape, token in zip(state.rows, self.steps, shapes, tokens, strict=True):
            if row is not None:
                steps.append(Drafted(*shape, *token))
                share = self.scale.of("js", row.request.threshold)
                place = RoundContext.after(row.memory or NO_HISTORY, float(len(row.tokens)), share, 0.0)
                values = feature_values(steps, place)
                self.known[row.request.key, len(row.tokens), step] = [float(value) for value in values]

    def remember(self, memory: Any, verified: Verified) -> Any:
        largest, smallest = verified.largest_accepted or 0.0, verified.smallest_rejected or 0.0
        return history_after(memory or NO_HISTORY, float(verified.accepted), largest, smallest)


def known_of(traces: MemoryTraces, rule: str, threshold: float, scale: ShareScale) -> Known:
    """Returns the features of all examples over the traces, by problem, position and step."""
    (case,) = cases(traces, [rule], ["js"], [threshold], None)
    (block,) = blocks(traces, [*COLUMNS, *case.columns, "problem"])
    policy = RoundPolicy((), lambda of: wanted(of.columns["position"][of.rows]), NO_HISTORY, updated_history)
    examining = ExampleMaker(case, block, scale, BY_PLACE)
    found: Known = {}
    for laid in simulate_rounds(case, block, lanes_of(block, case.thresholds, np.array([MOST])), policy):
        for examples in examining(laid, np.arange(len(laid.lanes))):
            problems = block.columns["problem"][examples.at].tolist()
            for problem, values in zip(problems, examples.values.tolist(), strict=True):
                place = (problem, int(values[FEATURES.index("position")]), int(values[FEATURES.index("step")]))
                assert found.setdefault(place, values) == values  # of a and of b alike
    return found


@pytest.mark.thinned(every=6)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8)], ids=["greedy", "sampled"])
@pytest.mark.parametrize(("rule", "share"), [("fsd-coupled", 0.7), ("fsd", 0.7), ("fsd-coupled", None)])
def test_decoding_and_traces_give_the_same_features(rule: str, share: float | None, sampling: Sampling) -> None:
    """Compared as long as the text is the target's own: after a substitution the trace is of another text."""
    decoder, prompts = tiny_decoder(), ragged_prompts(30)
    shared: dict[str, Any] = {"temperature": sampling.temperature, "ids": range(30), "batch_size": 7}
    alone = decoder.generate(prompts, NEW, rule="target", **shared)
    traces = trace_texts(decoder, prompts, alone, sampling)
    scale = ShareScale.of_traces(traces, ["js"])
    (threshold,) = [-1.0] if share is None else quantiles(traces, "js", [share]).tolist()
    recorder = Recorder(scale)
    settings: dict[str, Any] = {"rule": rule, "threshold": threshold, "draft_length": MOST, "stop_policy": recorder}
    real = decoder.generate(prompts, NEW, **settings, **shared)
    untouched = {i for i, (a, b) in enumerate(zip(alone, real, strict=True)) if a.tokens == b.tokens}
    assert len(untouched) == 30 if share is None else len(untouched) > 4
    traced_known = {place: v for place, v in known_of(traces, rule, threshold, scale).items() if place[0] in untouched}
    for place, values in traced_known.items():
        assert recorder.known[place] == pytest.approx(values, rel=1e-5, abs=1e-5), place
    by_name = {name: max(values[i] for values in traced_known.values()) for i, name in enumerate(FEATURES)}
    assert by_name["step"] >= 3
    assert by_name["accepted_3_back"] >= 1
    assert by_name["refused"] > 0
    assert (by_name["spared"] > 0) == (rule == "fsd")  # elsewhere what D alone kept is a substitution
