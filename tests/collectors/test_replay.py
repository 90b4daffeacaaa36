"""Replay, compared with a plain loop over rounds, and with decoding where both take the same rounds."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fsd_collectors.replay.blocks import blocks
from fsd_collectors.replay.cases import even_shares, quantiles
from fsd_collectors.replay.cost import CostModel
from fsd_collectors.replay.counting import LengthPolicy, StopPolicy
from fsd_collectors.replay.simulation import replay, sweep
from fsd_common.errors import UsageError
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.divergence import divergence
from fsd_decoding.engine.result import Result
from fsd_decoding.policies.stopping import DraftState
from fsd_decoding.rules import RULES, rule_named
from fsd_decoding.scores import Seen, score_named
from support.models.tiny_pair import ragged_prompts, tiny_decoder
from support.traces.at_the_limit import is_drafted_as_replayed
from support.traces.memory_traces import MemoryManifest, MemoryTraces

Row = dict[str, Any]
EXACT = {"sd": "sd_accepts", "fsd-sd": "sd_accepts", "coupled": "same_token", "fsd-coupled": "same_token", "fsd": None}
FUZZY = ("fsd", "fsd-sd", "fsd-coupled")
WINDOWS = {"js": 0, "fly@2": 2, "fly@1": 1}
SCALE = (-1.0, 0.0, 0.25, 0.5, math.inf)
LENGTHS = (1, 2, 3, 7)
MARKED = StopPolicy(("marked",), lambda of: of["marked"])
NEVER = StopPolicy((), lambda of: np.zeros(len(of["position"]), bool))


def rounds_by_hand(
    completion: Sequence[Row], rule: str, threshold: float, length: int, stopping: bool, name: str = "js"
) -> tuple[int, int, int]:
    """Returns the rounds, drafted tokens and substitutions of one text, counted token by token."""
    window, exact = WINDOWS[name], EXACT[rule]
    at = rounds = drafted = substitutions = 0
    while at < len(completion):
        rounds += 1
        ends = [i for i, row in enumerate(completion[at : at + length]) if stopping and row["marked"]]
        drafts = ends[0] + 1 if ends else length
        drafted += drafts
        for place, row in enumerate(completion[at : at + drafts]):
            at += 1
            if exact is not None and row[exact]:
                continue
            after = completion[at : at + window]
            followed = len(after) == window and place + window < drafts
            followed &= all(other[exact or "same_token"] for other in after)
            if rule not in FUZZY or not (math.isfinite(row[name]) and row[name] <= threshold and followed):
                break  # the fallback stands here
            substitutions += not row["same_token"]
        else:
            at += 1  # the bonus
    return rounds, drafted, substitutions


a_row = st.fixed_dictionaries(
    {
        "same_token": st.booleans(),
        "sd_accepts": st.booleans(),
        **dict.fromkeys(WINDOWS, st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.5, 0.9, math.inf, math.nan])),
        "marked": st.booleans(),
    }
)
texts = st.lists(st.lists(a_row, min_size=1, max_size=20), min_size=1, max_size=6)


@given(
    texts, st.sampled_from(sorted(EXACT)), st.sampled_from(sorted(WINDOWS)), st.sampled_from(SCALE),
    st.sampled_from(LENGTHS), st.booleans(),
)  # fmt: skip
def test_replay_equals_a_plain_loop_over_rounds(
    completions: list[list[Row]], rule: str, name: str, threshold: float, length: int, stopping: bool
) -> None:
    result = replay(MemoryTraces(completions), rule, name, threshold, length, MARKED if stopping else None)
    each = [rounds_by_hand(completion, rule, threshold, length, stopping, name) for completion in completions]
    assert (result.rounds, result.drafted, result.substitutions) == tuple(map(sum, zip(*each, strict=True)))
    assert (result.completions, result.tokens) == (len(completions), sum(map(len, completions)))


@pytest.mark.slow
@given(texts, st.sampled_from([None, MARKED, NEVER]))
def test_a_sweep_equals_single_replays(completions: list[list[Row]], stops: StopPolicy | None) -> None:
    traces = MemoryTraces(completions)
    frame = sweep(traces, list(EXACT), ["js", "fly@2"], SCALE, LENGTHS, stops)
    assert len(frame) == (3 * 2 * len(SCALE) + 2) * len(LENGTHS)
    for cell in frame.to_dict("records"):
        threshold = 0.0 if math.isnan(cell["threshold"]) else cell["threshold"]
        one = replay(traces, cell["rule"], cell["score"] or "js", threshold, cell["draft_length"], stops)
        counted = ("completions", "tokens", "rounds", "drafted", "substitutions")
        assert [cell[name] for name in counted] == [getattr(one, name) for name in counted]
        assert cell["tokens_per_round"] == one.tokens_per_round
        assert cell["substitutions_per_completion"] == one.substitutions_per_completion


def random_texts(count: int, longest: int, seed: int = 0) -> list[list[Row]]:
    rng = np.random.default_rng(seed)
    return [
        [
            {"same_token": bool(same), "sd_accepts": bool(same), "js": float(d), "marked": bool(mark)}
            for same, d, mark in zip(rng.random(n) < 0.6, rng.lognormal(-2, 2, n), rng.random(n) < 0.2, strict=True)
        ]
        for n in rng.integers(1, longest + 1, count)
    ]


@pytest.mark.parametrize("stops", [None, MARKED])
def test_long_drafts_and_many_thresholds_are_counted_correctly(stops: StopPolicy | None) -> None:
    """More lengths, thresholds and tokens than a byte can count."""
    completions = random_texts(3, 900)
    scale, lengths = np.geomspace(1e-4, 10, 400), (300, 1)
    frame = sweep(MemoryTraces(completions), ["fsd-coupled"], ["js"], scale, lengths, stops)
    for k, (i, length) in product((0, 200, 399), enumerate(lengths)):
        each = [rounds_by_hand(c, "fsd-coupled", scale[k], length, stops is not None) for c in completions]
        cell = frame.iloc[len(lengths) * k + i]
        assert (cell["threshold"], cell["draft_length"]) == (scale[k], length)
        assert (cell["rounds"], cell["drafted"], cell["substitutions"]) == tuple(map(sum, zip(*each, strict=True)))


@given(texts, st.integers(1, 4), st.integers(1, 30))
def test_blocks_are_whole_completions_in_order(completions: list[list[Row]], per_table: int, rows: int) -> None:
    result = list(blocks(MemoryTraces(completions, per_table), ["same_token"], rows=rows))
    sizes = [n for block in result for n in (block.ends - block.starts).tolist()]
    assert sizes == [len(completion) for completion in completions]
    tokens = [bit for block in result for bit in block.columns["same_token"].tolist()]
    assert tokens == [row["same_token"] for completion in completions for row in completion]
    longest = max(map(len, completions))
    assert all(block.rows < rows + longest for block in result)


@dataclass(frozen=True)
class Endless:
    """Tables made on demand and not kept."""

    tables: int
    manifest: MemoryManifest = field(default_factory=MemoryManifest)

    def batches(self, columns: Sequence[str], where: Any = None) -> Iterator[Any]:
        n = 100_000
        for seed in range(self.tables):
            rng = np.random.default_rng(seed)
            rows = {"position": np.arange(n) % 50, "same_token": rng.random(n) < 0.7, "js": rng.random(n, np.float32)}
            yield pa.table({name: rows[name] for name in columns})


def test_counting_thresholds_in_parts_gives_the_same_counts() -> None:
    """2,000 completions x 70 thresholds x 8 lengths."""
    assert sweep(Endless(1), thresholds=70, stops=NEVER).equals(sweep(Endless(1), thresholds=70))


def peak_of_sweeping(tables: int) -> int:
    tracemalloc.start()
    sweep(Endless(tables), thresholds=10)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_memory_does_not_grow_with_the_trace() -> None:
    peak_of_sweeping(1)  # what is imported on the way
    assert peak_of_sweeping(16) < 1.2 * peak_of_sweeping(4)


# Real decoding: tiny models in float64, greedy.

NEW = 24


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    return tiny_decoder()


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return ragged_prompts(40)


@pytest.fixture(scope="module")
def alone(decoder: SpeculativeDecoder, prompts: list[list[int]]) -> list[Result]:
    return decoder.generate(prompts, NEW, rule="target")


@pytest.fixture(scope="module")
def traced(decoder: SpeculativeDecoder, prompts: list[list[int]], alone: list[Result]) -> list[MemoryTraces]:
    """Returns each prompt's text with the draft's proposal at every position, computed without the engine."""
    return [MemoryTraces([rows_along(decoder, *one)]) for one in zip(prompts, alone, strict=True)]


@torch.inference_mode()
def rows_along(decoder: SpeculativeDecoder, prompt: list[int], result: Result) -> list[Row]:
    ids = torch.tensor([prompt + result.tokens])
    new = slice(len(prompt) - 1, len(prompt) - 1 + result.emitted)
    p, q = (model(ids).logits[0, new] for model in (decoder.target, decoder.draft))
    same, d, top = p.argmax(-1) == q.argmax(-1), divergence("js", p, q), q.softmax(-1).amax(-1)
    fly = score_named("fly@1").of(Seen(p, q, q.argmax(-1)))
    columns = zip(same.tolist(), d.tolist(), top.tolist(), fly.tolist(), strict=True)
    return [{"same_token": s, "sd_accepts": s, "js": d, "draft_top1": t, "fly@1": f} for s, d, t, f in columns]


@pytest.mark.thinned(every=8)
@pytest.mark.parametrize("length", [1, 3, 6])
@pytest.mark.parametrize("rule", sorted(EXACT))
def test_decoding_equals_replay_until_a_substitution(
    decoder: SpeculativeDecoder,
    prompts: list[list[int]],
    alone: list[Result],
    traced: list[MemoryTraces],
    rule: str,
    length: int,
) -> None:
    everything = MemoryTraces([trace.completions[0] for trace in traced])
    threshold = float(quantiles(everything, "js", [0.6])[0])
    decoded = decoder.generate(prompts, NEW, rule=rule, threshold=threshold, draft_length=length)
    untouched = 0
    for own, real, trace in zip(alone, decoded, traced, strict=True):
        result = replay(trace, rule, "js", threshold, length)
        assert (real.tokens == own.tokens) == (result.substitutions == 0)
        if result.substitutions == 0:
            untouched += 1
            assert (real.rounds, real.emitted) == (result.rounds, result.tokens)
            assert is_drafted_as_replayed(real, result.drafted, length, NEW)
    assert untouched == len(prompts) if rule not in FUZZY else 5 < untouched < len(prompts)


def test_decoding_under_a_stop_policy_takes_the_replayed_rounds(
    decoder: SpeculativeDecoder, prompts: list[list[int]], traced: list[MemoryTraces]
) -> None:
    def sure(state: DraftState) -> torch.Tensor:
        return state.logits[-1][:, 0].softmax(-1).amax(-1) >= 0.6 if state.logits else torch.ones_like(state.drafting)

    unsure = StopPolicy(("draft_top1",), lambda of: of["draft_top1"] < 0.6)
    decoded = decoder.generate(prompts, NEW, rule="coupled", draft_length=5, stop_policy=sure)
    result = [replay(trace, "coupled", draft_length=5, stops=unsure) for trace in traced]
    assert [real.rounds for real in decoded] == [one.rounds for one in result]
    free = [replay(trace, "coupled", draft_length=5) for trace in traced]
    assert [one.rounds for one in free] != [one.rounds for one in result]


def test_decoding_under_a_length_policy_takes_the_replayed_rounds(
    decoder: SpeculativeDecoder, prompts: list[list[int]], traced: list[MemoryTraces]
) -> None:
    """Drafts nothing at odd positions, and elsewhere until the product of the probabilities is below one half."""

    def even_and_sure(state: DraftState) -> torch.Tensor:
        tops = [logits[:, 0].softmax(-1).amax(-1) for logits in state.logits]
        begun = state.batch.lengths % 2 == 0
        return begun & (torch.stack(tops).prod(0) >= 0.5) if tops else begun

    for prompt, trace in zip(prompts, traced, strict=True):

        def lengths(of: Mapping[str, Any], most: int, begin: int = len(prompt)) -> Any:
            products = [np.cumprod(of["draft_top1"][at : at + most]) for at in range(len(of["position"]))]
            reached = [min(most, 1 + int((so_far >= 0.5).sum())) for so_far in products]
            return np.where((of["position"] + begin) % 2 == 0, reached, 0)

        (real,) = decoder.generate([prompt], NEW, rule="coupled", draft_length=5, stop_policy=even_and_sure)
        result = replay(trace, "coupled", draft_length=5, stops=LengthPolicy(("draft_top1",), lengths))
        assert real.rounds == result.rounds


# What the counts are turned into.


def test_the_error_is_that_of_a_ratio_estimator() -> None:
    completions = random_texts(30, 12)
    result = replay(MemoryTraces(completions), threshold=0.2, draft_length=3)
    rounds = np.array([rounds_by_hand(c, "fsd-coupled", 0.2, 3, False)[0] for c in completions])
    residual = np.array([len(c) for c in completions]) - result.tokens_per_round * rounds
    assert result.tokens_per_round_error == pytest.approx(residual.std(ddof=1) * math.sqrt(30) / rounds.sum())
    assert math.isnan(replay(MemoryTraces(completions[:1])).tokens_per_round_error)


def test_costs_are_charged_by_step_verification_and_position() -> None:
    costs = CostModel(draft_step=0.5, verify=2.0, position=0.25)
    assert costs.seconds(rounds=4, drafted=12) == 12 * 0.5 + 4 * 2.0 + 16 * 0.25
    assert costs.tokens_per_second(36, 4, 12) == 2.0
    frame = sweep(MemoryTraces(random_texts(5, 9)), thresholds=[0.1], draft_lengths=[2], costs=costs)
    one = replay(MemoryTraces(random_texts(5, 9)), threshold=0.1, draft_length=2)
    assert frame["tokens_per_second"].tolist() == [one.tokens_per_second(costs)]


@pytest.mark.parametrize("costs", [(-1.0, 1.0), (math.nan, 1.0), (0.1, math.inf), (0.1, 0.0, 0.0)])
def test_invalid_costs_are_refused(costs: tuple[float, ...]) -> None:
    with pytest.raises(UsageError, match=r"draft_step|verify"):
        CostModel(*costs)


magnitudes = st.floats(0.0, 2.0**127, width=32) | st.just(math.inf)


@given(st.lists(magnitudes, min_size=1, max_size=60), st.floats(0.01, 1.0))
def test_a_quantile_accepts_its_share_and_hardly_more(values: list[float], share: float) -> None:
    rows: list[list[Row]] = [[{"js": value} for value in values]]
    (result,) = quantiles(MemoryTraces(rows), "js", [share])
    needed = next(n for n in range(len(values) + 1) if n >= share * len(values))
    exact = sorted(values)[needed - 1]
    assert exact <= result
    assert result <= max(exact * (1 + 2.0**-11), 2.0**-126)  # below are fp32's subnormal numbers


def test_a_number_of_thresholds_means_quantiles() -> None:
    traces = MemoryTraces(random_texts(200, 30))
    frame = sweep(traces, ["fsd"], thresholds=9, draft_lengths=[1])
    everything = np.array([row["js"] for completion in traces.completions for row in completion])
    accepted = [(everything <= threshold).mean() for threshold in frame["threshold"]]
    assert accepted == pytest.approx(even_shares(9), abs=2 / len(everything))
    assert even_shares(9)[[0, -1]] == pytest.approx([0.1, 0.999])


def test_divergences_have_thresholds_of_their_own_and_lossless_rules_none() -> None:
    completions = [[row | {"tv": row["js"] / 2} for row in text] for text in random_texts(20, 10)]
    traces = MemoryTraces(completions, manifest=MemoryManifest(scores=("js", "tv")))
    frame = sweep(traces, ["coupled", "fsd"], ["js", "tv"], {"js": [0.4, 0.2], "tv": [0.1, 0.2]}, [4])
    assert frame["threshold"].tolist()[1:] == [0.2, 0.4, 0.1, 0.2]
    assert frame["rounds"][1] == frame["rounds"][3]
    assert frame["rounds"][2] == frame["rounds"][4]
    assert math.isnan(frame["threshold"][0])
    assert frame["substitutions"][0] == 0
    exact = replay(traces, "coupled", draft_length=4)
    assert (exact.score, exact.threshold, exact.rounds) == (None, None, frame["rounds"][0])


def test_where_selects_completions() -> None:
    texts = random_texts(6, 10)
    marked = [[row | {"split": "tuning" if i % 2 else "certification"} for row in c] for i, c in enumerate(texts)]
    result = replay(MemoryTraces(marked), where=pc.field("split") == "tuning")
    assert replace(result) == replay(MemoryTraces(texts[1::2]))


@pytest.mark.parametrize("rule", sorted(RULES))
def test_every_rule_is_replayed_or_refused_with_a_reason(rule: str) -> None:
    traces = MemoryTraces(random_texts(3, 5))
    if rule in EXACT:
        assert replay(traces, rule).rounds > 0
    else:
        own = rule_named(rule).score  # which these traces do not hold
        why = f"hold no score '{own}'" if own else f"rule '{rule}' cannot be replayed: .*; replay one of sd, "
        with pytest.raises(UsageError, match=why):
            replay(traces, rule)


def test_a_rule_with_a_score_of_its_own_is_replayed_by_it() -> None:
    texts = [[row | {"ensemble": row["js"]} for row in text] for text in random_texts(4, 9, seed=2)]
    found = replay(MemoryTraces(texts, manifest=MemoryManifest(scores=("ensemble",))), "ensemble", "js", 0.2)
    assert found.score == "ensemble"
    assert found.rounds == replay(MemoryTraces(texts), "fsd-sd", "js", 0.2).rounds


SOME = MemoryTraces(random_texts(3, 5, seed=1))
ONE = MemoryTraces([random_texts(1, 5)[0][:1] * 4])


@pytest.mark.parametrize(
    ("traces", "options", "complaint"),
    [
        (
            SOME,
            {"rules": ["fzd"]},
            "unknown rule 'fzd'; known: sd, coupled, fsd, fsd-sd, fsd-coupled, and your own as module:Name",
        ),
        (SOME, {"rules": []}, "give at least one of each"),
        (SOME, {"scores": []}, "give at least one of each"),
        (SOME, {"scores": ["tv"]}, "no score 'tv', only js, fly@1, fly@2; collect again with it"),
        (replace(SOME, manifest=MemoryManifest(way="on-policy")), {}, "are on-policy; replay needs"),
        (SOME, {"thresholds": []}, "must be numbers, at least one"),
        (SOME, {"thresholds": [0.1, math.nan]}, "must be numbers, at least one"),
        (SOME, {"thresholds": ["low"]}, "must be numbers, at least one"),
        (SOME, {"thresholds": {"tv": [0.1]}}, "thresholds name tv, not 'js'"),
        (SOME, {"thresholds": 0}, "thresholds=0; it must be a number of quantiles, 1 or more"),
        (SOME, {"draft_lengths": [3, 0]}, r"draft lengths are \[3, 0\]"),
        (SOME, {"draft_lengths": [2.5]}, r"draft lengths are \[2.5\]"),
        (SOME, {"draft_lengths": [True]}, r"draft lengths are \[True\]"),
        (SOME, {"draft_lengths": []}, r"draft lengths are \[\]"),
        (SOME, {"where": pc.field("js") < 0}, "selects no rows"),
        (ONE, {"where": pc.field("position") > 0}, "must select whole completions"),
        (ONE, {"where": pc.field("position") != 2}, "must select whole completions"),
        (MemoryTraces([]), {"thresholds": [0.1]}, "selects no rows"),
        (SOME, {"stops": StopPolicy((), lambda of: of["js"])}, "the stop policy returned float64"),
        (
            SOME,
            {"stops": StopPolicy((), lambda of: np.array([True]))},
            r"returned bool of shape \(1,\); it must return",
        ),
        (SOME, {"stops": LengthPolicy((), lambda of, most: of["js"])}, "the length policy returned float64"),
        (
            SOME,
            {"stops": LengthPolicy((), lambda of, most: of["position"] + 9)},
            "a whole number for each draft, from 0 to 8",
        ),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(
    traces: MemoryTraces, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint) as refused:
        sweep(traces, **options)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("shares", [[0.0], [1.1], [math.nan]])
def test_invalid_shares_are_refused(shares: list[float]) -> None:
    with pytest.raises(UsageError, match="must be above 0 and at most 1"):
        quantiles(SOME, "js", shares)
