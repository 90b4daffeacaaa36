"""Features, statistics of q and the share scale: the same numbers from one row or many, decoding or traces."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from fsd_collectors.collection.measures import Measures, Positions
from fsd_collectors.replay.blocks import blocks
from fsd_collectors.replay.cases import cases, quantiles
from fsd_collectors.replay.rounds import RoundPolicy, lanes_of, simulate_rounds
from fsd_common.errors import UsageError
from fsd_decoding.policies.stopping import DraftState, StopPolicy, Verified
from fsd_decoding.sampling import Sampling
from fsd_predictors.features import (
    COLUMNS,
    FEATURES,
    KINDS,
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
from fsd_predictors.share_scale import MOST, NEVER, ShareScale
from fsd_predictors.training.rows import ExampleMaker
from support.models.tiny_models import EOS, VOCABULARY, word_tokenizer
from support.models.tiny_pair import ragged_prompts, tiny_decoder
from support.traces.memory_traces import MemoryManifest, MemoryTraces, trace_texts
from support.traces.reference_columns import shape_of

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
    assert [by_name[name] for name in ("share", "score", "position", "step", "spared", "refused")] == [
        place.share, place.score, place.position, len(steps), place.largest_accepted, place.smallest_rejected,
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

NEW, LONGEST = 32, 5
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
    for laid in simulate_rounds(case, block, lanes_of(block, case.thresholds, np.array([LONGEST])), policy):
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
    settings: dict[str, Any] = {"rule": rule, "threshold": threshold, "draft_length": LONGEST, "stop_policy": recorder}
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


def traces_of(**columns: list[float]) -> MemoryTraces:
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return MemoryTraces([rows], manifest=MemoryManifest(scores=tuple(columns)))


RNG = np.random.default_rng(0)
SCALE = ShareScale.of_traces(
    traces_of(js=RNG.lognormal(-3, 2, 4000).tolist(), tv=(RNG.random(4000) ** 3).tolist()), ["js", "tv"]
)
values = st.lists(st.floats(0.0, 2.0**40, width=32) | st.sampled_from([0.0, 1.0]) | st.just(math.inf), min_size=1)
anything = st.floats(allow_nan=False)


def share(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))


@given(values, anything, anything)
def test_a_higher_threshold_has_no_smaller_share(scores: list[float], one: float, other: float) -> None:
    if min(scores) == math.inf:
        scores = [*scores, 1.0] * 2
    if scores.count(math.inf) > 0.9 * len(scores):
        return
    scale = ShareScale.of_traces(traces_of(js=scores), ["js"])
    low, high = (scale.of("js", threshold) for threshold in sorted((one, other)))
    assert NEVER <= low <= high <= MOST


def test_the_share_is_that_of_rows_with_no_larger_score() -> None:
    rng = np.random.default_rng(1)
    d = np.where(rng.random(20_000) < 0.3, 0.0, rng.lognormal(-3, 2, 20_000))  # a third of them nothing at all
    scale = ShareScale.of_traces(traces_of(js=d.tolist()), ["js"])
    for threshold in (0.0, 0.003, 0.05, 0.4, 3.0):
        assert share(scale.of("js", threshold)) == pytest.approx((d <= threshold).mean(), abs=0.01)
    assert scale.of("js", -1e-9) == NEVER


def test_the_scale_is_clipped() -> None:
    assert SCALE.of("js", -1.0) == SCALE.of("js", -math.inf) == NEVER
    assert SCALE.of("js", math.inf) == SCALE.of("js", 1e9) == MOST
    assert (share(NEVER), share(MOST)) == pytest.approx((0.01, 0.9999))


def test_thresholds_of_several_scores_are_those_of_their_own_rows() -> None:
    assert SCALE.scores == ("js", "tv")
    assert [SCALE.index(name) for name in SCALE.scores] == [0, 1]
    assert share(SCALE.of("tv", 0.5**3)) == pytest.approx(0.5, abs=0.03)  # six standard errors: false alarms 1e-4
    assert SCALE.of("js", 0.125) != SCALE.of("tv", 0.125)


def test_arrays_and_single_thresholds_get_the_same_shares() -> None:
    thresholds = np.array([-1.0, 0.01, 0.3, 5.0, math.inf])
    assert SCALE.of_all("js", thresholds).tolist() == [SCALE.of("js", each) for each in thresholds.tolist()]


@given(st.floats(NEVER, MOST))
def test_a_share_has_a_threshold_of_that_share(logit: float) -> None:
    (threshold,) = SCALE.thresholds_of("js", np.array([logit]))
    assert SCALE.of("js", threshold) == pytest.approx(logit, abs=1e-6)


def test_only_the_selected_rows_are_counted() -> None:
    rows = [[{"js": value, "problem": i}] * 10 for i, value in enumerate((0.1, 0.5, 5.0))]
    for chosen, expected in ((None, 1 / 3), (pc.field("problem") < 2, 1 / 2)):
        scale = ShareScale.of_traces(MemoryTraces(rows), ["js"], chosen)
        assert share(scale.of("js", 0.1001)) == pytest.approx(expected, abs=0.04)  # knots are .14 apart in logit(u)


def test_a_scale_is_restored_from_json() -> None:
    again = ShareScale.from_json(json.loads(json.dumps(SCALE.to_json())))
    assert again.to_json() == SCALE.to_json()
    assert again.of("tv", 0.2) == SCALE.of("tv", 0.2)


@pytest.mark.parametrize(
    ("plain", "complaint"),
    [
        ({"js": {"thresholds": [0.2, 0.1], "logits": [0.0, 1.0]}}, "must rise"),
        ({"js": {"thresholds": [0.1, 0.2], "logits": [1.0, 0.0]}}, "must rise"),
        ({"js": {"thresholds": [0.1], "logits": [0.0, 1.0]}}, "as many thresholds as logits"),
        ({"js": {"thresholds": [], "logits": []}}, "as many thresholds as logits"),
        ({"js": {"thresholds": [math.nan], "logits": [0.0]}}, "all finite"),
        ({"js": {"thresholds": ["low"], "logits": [0.0]}}, "is no share scale"),
        ({"js": {"logits": [0.0]}}, "is no share scale"),
        ([1.0], "is no share scale"),
    ],
)
def test_invalid_scales_are_refused_in_one_line(plain: Any, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as refused:
        ShareScale.from_json(plain)
    assert "\n" not in str(refused.value)


def test_unknown_scores_and_nan_are_refused() -> None:
    with pytest.raises(UsageError, match=r"has the scores js, tv, not 'ag'; train with it"):
        SCALE.of("ag", 0.1)
    with pytest.raises(UsageError, match="the threshold is NaN"):
        SCALE.of("js", math.nan)
    with pytest.raises(UsageError, match="no score 'ag'"):
        ShareScale.of_traces(traces_of(js=[0.1]), ["ag"])
    with pytest.raises(UsageError, match="'js' is infinite in nearly all rows"):
        ShareScale.of_traces(traces_of(js=[math.inf] * 3), ["js"])


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(2, 60), st.floats(0.1, 30.0))
def test_statistics_of_q_equal_their_definitions(seed: int, rows: int, vocabulary: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    logits = (scale * rng.normal(size=(rows, vocabulary))).astype(np.float32)
    logits[rng.random(logits.shape) < 0.2] = -np.inf
    logits[:, rng.integers(vocabulary)] = 1.0  # something is possible
    drawn = rng.integers(vocabulary, size=rows)
    found = measure(torch.from_numpy(logits), torch.from_numpy(drawn)).numpy()
    expected = shape_of(logits.astype(np.float64), drawn)
    assert found.dtype == np.float32
    assert (found >= 0.0).all()
    for i, name in enumerate(MEASURED):
        absolute = 1e-4 if name == "varentropy" else 1e-6  # a difference of numbers that may both be in the hundreds
        assert found[:, i] == pytest.approx(expected[name], rel=1e-5, abs=absolute), name


def some_logits(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = (torch.logspace(-1, 1.2, 200)[:, None] * torch.randn(200, VOCABULARY, generator=generator)).to(dtype)
    logits[::7, 3:9] = -torch.inf
    return logits, torch.randint(VOCABULARY, (200,), generator=generator)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_statistics_of_q_equal_those_in_traces(dtype: torch.dtype) -> None:
    logits, drawn = some_logits(dtype)
    zeros = torch.zeros(200, 2, dtype=torch.int64)
    measures = Measures([], "raw", Sampling())
    traced = measures(Positions(logits, logits, drawn, drawn, zeros[:, 0], zeros)).numpy()
    found = measure(logits, drawn).numpy()
    for i, name in enumerate(MEASURED):
        column = traced[measures.columns.index(f"draft_{name}")]
        assert found[:, i] == pytest.approx(column, rel=1e-5, abs=1e-5), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_measured_in_fp32(dtype: torch.dtype) -> None:
    logits, drawn = some_logits(dtype)
    assert torch.equal(measure(logits, drawn), measure(logits.float(), drawn))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_logits_are_visible(bad: float) -> None:
    logits = torch.randn(3, 8)
    logits[1, 5] = bad
    assert measure(logits, torch.tensor([0, 1, 2])).isnan().any(1).tolist() == [False, True, False]


# What a token is.


def test_token_kinds_follow_from_the_text() -> None:
    written = {
        0: ["ing", "A", "<eos>", "é"],
        1: ["7", "Ġ12", "▁3"],
        2: ["Ġthe", "▁The"],
        3: ["!", ".", "Ġ(", "$$"],
        4: ["Ċ", ".Ċ", "ĊĊ", "<0x0A>"],
        5: ["Ġ", "▁▁", "ĉ"],
    }
    words = [word for group in written.values() for word in group]
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="A")))
    kinds = TokenKinds.of(tokenizer, [vocabulary["<eos>"]])
    assert len(written) == len(KINDS)
    for number, group in written.items():
        assert [kinds.kind[vocabulary[word]] for word in group] == [number] * len(group), KINDS[number]
    assert np.flatnonzero(kinds.ends).tolist() == [vocabulary["<eos>"]]


def test_ids_beyond_the_tokenizer_have_a_kind() -> None:
    kinds = TokenKinds.of(word_tokenizer(), EOS)
    assert len(kinds.kind) == len(kinds.ends) >= VOCABULARY + 20
    assert np.flatnonzero(kinds.ends).tolist() == list(EOS)
    far = TokenKinds.of(word_tokenizer(), [500])
    assert far.ends[500] == 1.0 and len(far.kind) == len(far.ends)  # noqa: PT018
