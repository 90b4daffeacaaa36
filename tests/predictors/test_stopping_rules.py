"""Stopping rules: agreement with the original code, single rows and arrays, and the rates of the throughput rule."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GenerationConfig
from transformers.generation.candidate_generator import AssistedCandidateGenerator
from transformers.generation.stopping_criteria import ConfidenceCriteria

from fsd_collectors.replay.cost import CostModel
from fsd_collectors.replay.simulation import replay
from fsd_common.errors import UsageError
from fsd_predictors.features import FEATURES, NO_HISTORY, Drafted, RoundContext, measure
from fsd_predictors.share_scale import Knots, ShareScale
from fsd_predictors.stopping.baselines import AdaEdl, Confidence, FixedLength, Heuristic, Svip
from fsd_predictors.stopping.in_replay import InReplay, climb, rates_on
from fsd_predictors.stopping.rule import Rates, Round, StoppingRule, Throughput
from support.traces.memory_traces import MemoryTraces
from support.traces.stopping_inputs import UNENDING, Linear, random_round, row_of

COSTS = CostModel(0.5, 3.5, 0.1)
RATES = Rates((0.2, 0.8), (0.5, 1.5), COSTS)
ACCEPTS = Linear({FEATURES.index("top1"): 3.0, 0: 1.0, FEATURES.index("previous_probability"): 1.0}, -2.0)
FURTHER = Linear({FEATURES.index("probability"): 3.0, 0: 1.0, FEATURES.index("refused"): -1.0}, -1.0)


def throughput(rates: Rates = RATES, fingerprint: str = "these") -> Throughput:
    return Throughput(ACCEPTS, FURTHER, rates, fingerprint)


RULES: list[StoppingRule] = [
    FixedLength(3), Confidence(0.4), Svip(0.3), AdaEdl(0.6, 8), Heuristic(3, 8), throughput(),
]  # fmt: skip


@pytest.mark.thinned(every=6)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@given(st.integers(0, 10_000), st.integers(1, 6))
def test_arrays_and_single_rows_get_the_same_decisions(rule: StoppingRule, seed: int, steps: int) -> None:
    rows = 7
    together = random_round(np.random.default_rng(seed), steps, rows, rule.kept)
    alone = [row_of(together, row) for row in range(rows)]
    more = np.broadcast_to(rule.goes_on(together), rows)
    assert [bool(rule.goes_on(one)) for one in alone] == more.tolist()


@given(st.integers(1, 12), st.integers(0, 12), st.sampled_from(RULES))
def test_arrays_and_single_rows_keep_the_same(drafted: int, accepted: int, rule: StoppingRule) -> None:
    accepted = min(drafted, accepted)
    kept = tuple(np.full(3, value) for value in rule.kept)
    together = rule.remembers(kept, np.full(3, drafted), np.full(3, accepted))
    alone = rule.remembers(rule.kept, float(drafted), float(accepted))
    assert [np.asarray(value).tolist() for value in together] == [[value] * 3 for value in alone]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@given(seed=st.integers(0, 10_000))
def test_nothing_is_drafted_after_the_end_of_a_text(rule: StoppingRule, seed: int) -> None:
    drafting = random_round(np.random.default_rng(seed), 1, 20, rule.kept)
    ended = np.asarray(drafting.steps[-1].ends) == 1.0
    assert not (np.broadcast_to(rule.goes_on(drafting), 20) & ended).any()


def one_token(logits: torch.Tensor, token: int) -> Drafted:
    return Drafted(*measure(logits, torch.tensor([token]))[0].tolist(), kind=0.0, ends=0.0)  # type: ignore[misc]


def first(step: Drafted, rule: StoppingRule, steps: int = 1) -> Round:
    return Round(RoundContext.after(NO_HISTORY, 0.0, 0.0, 0.0), rule.kept, [step] * steps)


@given(st.integers(0, 10_000), st.floats(0.05, 0.9))
def test_confidence_stops_where_transformers_does(seed: int, threshold: float) -> None:
    logits = 3 * torch.randn(1, 9, generator=torch.Generator().manual_seed(seed))
    token = int(torch.multinomial(logits[0].softmax(-1), 1, generator=torch.Generator().manual_seed(seed)))
    ids: Any = torch.tensor([[3, token]])
    theirs = ConfidenceCriteria(threshold)(ids, (logits,))
    rule = Confidence(threshold)
    assert rule.goes_on(first(one_token(logits, token), rule)) is (not theirs)


@given(st.integers(1, 6), st.lists(st.floats(0, 1), max_size=12))
def test_the_heuristic_aims_where_transformers_does(begin: int, shares: list[float]) -> None:
    theirs = AssistedCandidateGenerator.__new__(AssistedCandidateGenerator)
    theirs.assistant_generation_config = GenerationConfig(num_assistant_tokens_schedule="heuristic_transient")
    theirs.num_assistant_tokens = begin
    rule = Heuristic(begin, 1000)
    kept, ids = rule.kept, torch.zeros(1, 1, dtype=torch.int64)
    for share in shares:
        drafted = int(theirs.num_assistant_tokens)
        matches = min(drafted, int(share * (drafted + 1)))
        theirs.update_candidate_strategy(ids, torch.zeros(1, drafted + 1, 1), matches)  # type: ignore[arg-type]
        kept = rule.remembers(kept, float(drafted), float(matches))
        assert kept == (float(theirs.num_assistant_tokens),)
    step = one_token(torch.zeros(1, 9), 0)
    decisions = [rule.goes_on(Round(first(step, rule).context, kept, [step] * n)) for n in range(1, 40)]
    assert decisions == [n < kept[0] for n in range(1, 40)]


def test_the_heuristic_grows_no_further_than_the_longest_draft() -> None:
    rule = Heuristic(7, 8)
    assert rule.remembers(rule.kept, 7.0, 7.0) == (8.0,)
    assert Heuristic(20, 8).kept == (8.0,)


@given(st.integers(0, 10_000), st.floats(0.05, 0.95))
def test_entropy_rules_are_their_papers_formulas(seed: int, threshold: float) -> None:
    logits = 3 * torch.randn(1, 9, generator=torch.Generator().manual_seed(seed))
    q = logits[0].softmax(-1)
    entropy = float(-(q * q.log()).sum())
    step = one_token(logits, 0)
    svip, ada = Svip(threshold), AdaEdl(threshold, 8)
    assert svip.goes_on(first(step, svip)) is not (math.sqrt(0.15 * entropy) > threshold)
    assert ada.goes_on(first(step, ada)) is not (1 - math.sqrt(0.2 * entropy) < threshold)


def test_adaedl_follows_its_algorithm() -> None:
    """A round with 2 of 4 accepted: r falls to .7, so λ rises; fully accepted rounds raise r above .9, and λ falls."""
    rule = AdaEdl(0.5, 6)
    kept = rule.remembers(rule.kept, 4.0, 2.0)
    assert kept == pytest.approx((0.7, 0.501))
    kept = rule.remembers(kept, 4.0, 4.0)
    assert kept == pytest.approx((0.85, 0.502))
    kept = rule.remembers(kept, 4.0, 4.0)
    assert kept == pytest.approx((0.925, 0.501))
    assert rule.remembers(kept, 6.0, 6.0)[1] == pytest.approx(0.501)  # all L of them: it stays
    assert not AdaEdl(1.1, 6).goes_on(first(one_token(torch.tensor([[0.0, -math.inf]]), 0), AdaEdl(1.1, 6)))


@given(st.integers(0, 10_000), st.floats(0.0, 3.0), st.floats(0.0, 0.5))
def test_throughput_equals_its_formula(seed: int, rate: float, position: float) -> None:
    rule = throughput(Rates((0.0,), (rate,), CostModel(0.3, 3.0, position)))
    whole = row_of(random_round(np.random.default_rng(seed), 5, 1, ()), 0)
    drafting, survival = Round(whole.context), 1.0
    for step in whole.steps:
        drafting.steps.append(step)
        share, steps = whole.context.share, drafting.steps
        before = steps[-2].probability if len(steps) > 1 else 1.0
        survival *= 1 / (1 + math.exp(2.0 - 3.0 * step.top1 - share - before))
        chance = 1 / (1 + math.exp(1.0 - 3.0 * step.probability - share + whole.context.smallest_rejected))
        assert rule.wants_more(drafting) == (survival * chance >= rate * (0.3 + position))


DIFFERENT = [
    FixedLength(3), FixedLength(4), Confidence(0.4), Confidence(0.4000000000000001), Svip(0.3), Svip(0.31),
    Svip(0.3, 0.2), AdaEdl(0.6, 8), AdaEdl(0.5, 8), AdaEdl(0.6, 9), AdaEdl(0.6, 8, 0.3), Heuristic(3, 8),
    Heuristic(4, 8), Heuristic(3, 9), throughput(), throughput(fingerprint="those"),
    throughput(Rates((0.2, 0.8), (0.5, 1.6), COSTS)), throughput(Rates((0.2, 0.9), (0.5, 1.5), COSTS)),
    throughput(Rates((0.2, 0.8), (0.5, 1.5), CostModel(0.5, 3.5, 0.2))),
]  # fmt: skip


def test_other_parameters_have_another_identity() -> None:
    assert len({rule.identity for rule in DIFFERENT}) == len(DIFFERENT)
    assert throughput().identity == throughput().identity
    assert [rule.reads_threshold for rule in RULES] == [False] * 5 + [True]


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: FixedLength(0), "length is 0; it must be a whole number of at least 1"),
        (lambda: FixedLength(True), "length is True"),
        (lambda: Confidence(math.nan), "threshold is NaN; it must be a finite number"),
        (lambda: Svip(0.0), "threshold is 0.0; it must be a finite number above 0"),
        (lambda: AdaEdl(0.5, 0), "most is 0"),
        (lambda: Heuristic(2.5, 8), "first is 2.5"),  # type: ignore[arg-type]
        (lambda: Rates((1.0, 1.0), (2.0, 2.0), COSTS), "shares are .*, rising numbers"),
        (lambda: Rates((), (), COSTS), "shares are"),
        (lambda: Rates((1.0,), (math.nan,), COSTS), "tokens_per_second are"),
        (lambda: Rates((1.0,), (1.0, 2.0), COSTS), "for each share"),
    ],
)
def test_invalid_rules_are_refused_in_one_line(make: Any, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as refused:
        make()
    assert "\n" not in str(refused.value)


def test_rates_are_interpolated() -> None:
    assert RATES.worth(0.5) == pytest.approx(1.0 * 0.6)
    assert RATES.worth(np.array([-9.0, 9.0])) == pytest.approx([0.5 * 0.6, 1.5 * 0.6])


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1, max_size=8))
def test_the_iteration_reaches_the_largest_ratio(choices: list[tuple[float, float]]) -> None:
    """Maximises N/D over pairs (N, D) by maximising N − λD, as in Dinkelbach's paper."""

    def reached(rate: float) -> float:
        n, d = max(choices, key=lambda one: one[0] - rate * one[1])
        return n / d

    iterates = climb(reached, 1e-3)
    assert iterates == sorted(iterates)
    assert iterates[-1] == pytest.approx(max(n / d for n, d in choices), rel=2e-4)


SCALE = ShareScale({"js": Knots(np.array([0.0, 1.0]), np.array([0.0, 1.0]))})


class Right:
    """Forecasts with the distribution of the random traces: x = y with probability `top1` (.8 for the next token), D
    uniform on [0, 1]."""

    def __init__(self, role: str) -> None:
        self._top1 = None if role == "next" else FEATURES.index("top1")

    def predict_proba(self, x: Any) -> Any:
        same = 0.8 if self._top1 is None else x[:, self._top1]
        p = same + (1 - same) * np.maximum(0.0, x[:, 0])  # the share is T, see SCALE
        return np.stack([1 - p, p], 1)

    def probability(self, values: Any) -> float:
        return float(self.predict_proba(np.array([values]))[0, 1])


def random_traces(completions: int = 100, tokens: int = 60, seed: int = 0) -> MemoryTraces:
    """Acceptance with probabilities from .4 to 1; T < 0 accepts `same_token` alone, T = .5 half of the others too."""
    rng = np.random.default_rng(seed)
    shape = completions, tokens
    chance = 1 - 0.6 * rng.random(shape) ** 2
    same, js = rng.random(shape) < chance, rng.random(shape)
    return MemoryTraces(
        [
            [
                {"same_token": bool(s), "js": float(d), "drafted": 3, "draft_entropy": 1.0, "draft_varentropy": 0.0,
                 "draft_top1": float(p), "draft_top2": 0.0, "draft_probability": float(p)}
                for s, d, p in zip(*rows, strict=True)
            ]
            for rows in zip(same, js, chance, strict=True)
        ],
        per_table=40,
    )  # fmt: skip


def test_rates_are_a_fixed_point() -> None:
    """A fixed point at each T, higher at the T that accepts more, and above every fixed length."""

    def make_rule(rates: Rates) -> StoppingRule:
        return Throughput(Right("accepting"), Right("next"), rates, "right")

    traces = random_traces()
    rates = rates_on(traces, make_rule, UNENDING, SCALE, "fsd-coupled", "js", [0.5, -1.0], COSTS, 12)
    assert len(rates.shares) == 2
    assert rates.tokens_per_second[0] < rates.tokens_per_second[1]
    for threshold, rate in zip((-1.0, 0.5), rates.tokens_per_second, strict=True):
        policy = InReplay(make_rule(rates), UNENDING, SCALE).policy
        reached = replay(traces, "fsd-coupled", "js", threshold, 12, policy).tokens_per_second(COSTS)
        assert reached == pytest.approx(rate, rel=2e-3)
        fixed = [replay(traces, "fsd-coupled", "js", threshold, n).tokens_per_second(COSTS) for n in range(1, 13)]
        assert reached > max(fixed)
