"""Stopping rules in the engine: the same rounds as in replay, in any batch, and lossless where the rule is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from fsd_collectors.replay.cost import CostModel
from fsd_collectors.replay.simulation import replay
from fsd_common.errors import NumericalError
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.engine.result import Result
from fsd_predictors.features import FEATURES
from fsd_predictors.share_scale import Knots, ShareScale
from fsd_predictors.stopping.baselines import AdaEdl, Confidence, FixedLength, Heuristic, Svip
from fsd_predictors.stopping.in_loop import EarlyStop
from fsd_predictors.stopping.in_replay import InReplay
from fsd_predictors.stopping.rule import Rates, StoppingRule, Throughput
from support.models.tiny_models import continuations, llama, word_tokenizer
from support.models.tiny_pair import ragged_prompts, tiny_decoder
from support.traces.memory_traces import MemoryTraces
from support.traces.stopping_inputs import KINDS, UNENDING, Linear, reference_traces

NEW, MOST = 24, 6
SCALE = ShareScale({"js": Knots(np.array([0.0, 0.05, 0.3]), np.array([0.0, 1.0, 2.0]))})


def named(names: tuple[str, ...], **weights: float) -> dict[int, float]:
    return {names.index(name): weight for name, weight in weights.items()}


def throughput(position: float = 0.02, rate: float = 1.0) -> Throughput:
    """Returns a rule whose forecasts use all features of a round, with various weights."""
    place = {"share": 0.3, "position": -0.02, "step": -0.1, "accepted_1_back": 0.1, "accepted_3_back": -0.1}
    place |= {"spared": 3.0, "refused": -2.0, "product": 0.5, "entropies": -0.2, "previous_kind": 0.2}
    a = Linear(named(FEATURES, **place, top1=3.0, entropy=-0.5), -1.0)
    b = Linear(named(FEATURES, **place, probability=3.0, kind=-0.2), -1.0)
    return Throughput(a, b, Rates((0.0, 2.0), (rate, 1.1 * rate), CostModel(0.3, 3.0, position)), "linear")


EXACT = [FixedLength(3), Confidence(0.5), Svip(0.35), Heuristic(2, MOST), throughput(), throughput(0.4)]
RULES: list[StoppingRule] = [*EXACT, AdaEdl(0.5, MOST)]


def named_by(rule: StoppingRule) -> str:
    return f"{rule.name}-{RULES.index(rule)}"


def early(rule: StoppingRule, score: str | None = "js") -> EarlyStop:
    return EarlyStop(rule, KINDS, SCALE, score)


@pytest.fixture(autouse=True)
def _as_the_engine_does() -> Iterator[None]:
    with torch.inference_mode():
        yield


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
def traces(decoder: SpeculativeDecoder, prompts: list[list[int]], alone: list[Result]) -> list[MemoryTraces]:
    return [reference_traces(decoder, *one) for one in zip(prompts, alone, strict=True)]


@pytest.mark.thinned(every=14)
@pytest.mark.parametrize("rule", RULES, ids=named_by)
@pytest.mark.parametrize(("accepts", "threshold"), [("coupled", -1.0), ("fsd-coupled", 0.03)])
def test_decoding_takes_the_rounds_that_replay_says(
    decoder: SpeculativeDecoder,
    prompts: list[list[int]],
    alone: list[Result],
    traces: list[MemoryTraces],
    rule: StoppingRule,
    accepts: str,
    threshold: float,
) -> None:
    """Round for round where nothing is substituted; what is drafted beyond a rejection replay takes from the text."""
    policy = early(rule, None if accepts == "coupled" else "js")  # replay, too, knows of no T there
    decoded = decoder.generate(
        prompts, NEW, rule=accepts, threshold=threshold, draft_length=MOST, stop_policy=policy, batch_size=7
    )
    pairs = []
    for own, real, trace in zip(alone, decoded, traces, strict=True):
        found = replay(trace, accepts, "js", threshold, MOST, InReplay(rule, KINDS, SCALE).policy)
        if found.substitutions == 0:
            assert real.tokens == own.tokens
            pairs.append((real, found))
    assert len(pairs) == 40 if accepts == "coupled" else 5 < len(pairs) < 40
    same = sum(real.rounds == found.rounds for real, found in pairs)
    assert same == len(pairs) if rule in EXACT else same > 0.9 * len(pairs)  # AdaEDL's λ follows what was drafted
    drafted = [sum(counts) for counts in zip(*((real.drafted, found.drafted) for real, found in pairs), strict=True)]
    assert drafted[0] == pytest.approx(drafted[1], rel=0.12)
    free = sum(replay(trace, accepts, "js", threshold, MOST).drafted for trace in traces)
    assert drafted[1] < 0.9 * free


@pytest.mark.thinned(every=14)
@pytest.mark.parametrize("rule", RULES, ids=named_by)
@pytest.mark.parametrize(("accepts", "temperature"), [("fsd-coupled", 0.9), ("sd", 0.0)])
def test_the_batch_changes_nothing(
    decoder: SpeculativeDecoder, prompts: list[list[int]], rule: StoppingRule, accepts: str, temperature: float
) -> None:
    some = prompts[:14]
    thresholds = [0.01 * (i % 5) for i in range(len(some))]

    def decoded(rows: int) -> list[Result]:
        given: dict[str, Any] = {"rule": accepts, "threshold": thresholds, "draft_length": MOST}
        found = decoder.generate(some, NEW, temperature, **given, stop_policy=early(rule), batch_size=rows)
        return [replace(r, interval=(0, 0)) for r in found]

    one_by_one = decoded(1)
    assert decoded(5) == one_by_one
    assert decoded(14) == one_by_one


@pytest.mark.thinned(every=7)
@pytest.mark.parametrize("rule", RULES, ids=named_by)
def test_a_lossless_text_stays_the_targets(
    decoder: SpeculativeDecoder, prompts: list[list[int]], rule: StoppingRule
) -> None:
    for temperature in (0.0, 0.9):
        own = decoder.generate(prompts[:20], NEW, temperature, rule="target")
        found = decoder.generate(
            prompts[:20],
            NEW,
            temperature,
            rule="fsd-coupled",
            threshold=-1.0,
            draft_length=MOST,
            stop_policy=early(rule),
        )
        assert [r.tokens for r in found] == [r.tokens for r in own]


def test_where_a_step_is_worth_more_than_any_token_rounds_draft_one(
    decoder: SpeculativeDecoder, prompts: list[list[int]], alone: list[Result]
) -> None:
    found = decoder.generate(prompts, NEW, rule="coupled", draft_length=MOST, stop_policy=early(throughput(1.1)))
    assert [r.tokens for r in found] == [r.tokens for r in alone]
    assert all(r.drafted == r.rounds for r in found)
    some, more = (
        decoder.generate(prompts, NEW, rule="coupled", draft_length=MOST, stop_policy=early(throughput(rate=rate)))
        for rate in (1.6, 0.4)
    )
    assert sum(r.rounds for r in some) < sum(r.drafted for r in some) < sum(r.drafted for r in more)


def test_a_rule_that_reads_the_threshold_has_no_interval_around_it(
    decoder: SpeculativeDecoder, prompts: list[list[int]]
) -> None:
    given: dict[str, Any] = {"rule": "fsd-coupled", "threshold": 0.03, "draft_length": MOST}
    (found,) = decoder.generate(prompts[:1], NEW, **given, stop_policy=early(throughput()))
    assert found.interval == (0.03, math.nextafter(0.03, 1.0))
    (found,) = decoder.generate(prompts[:1], NEW, **given, stop_policy=early(Svip(0.35)))
    assert found.interval[0] < 0.03 < found.interval[1]
    assert early(throughput()).identity == throughput().identity


@pytest.mark.slow
def test_sampled_sd_keeps_the_distribution_where_the_drafted_tokens_decide_when_drafts_end() -> None:
    """The first three tokens of texts of six, of a six-token vocabulary, 8,000 samples. False alarm: 1e-6."""
    target, draft = (llama(seed, layers=1, vocab_size=6, eos_token_id=None) for seed in (1, 2))
    target.generation_config.eos_token_id = []
    pair = SpeculativeDecoder(target, draft, word_tokenizer(), rule="sd", draft_length=3)
    samples, temperature = 8_000, 2.0
    a = Linear(named(FEATURES, top1=6.0, previous_probability=-2.0, step=0.5), -2.5)
    b = Linear(named(FEATURES, probability=4.0, kind=0.3), -1.0)
    rule = Throughput(a, b, Rates((0.0,), (1.0,), CostModel(0.05, 3.0, 0.3)), "linear")
    policy = EarlyStop(rule, UNENDING)
    found = pair.generate([[5, 2]] * samples, 6, temperature, batch_size=4_000, stop_policy=policy)
    drafted = sum(r.drafted for r in found) / sum(r.rounds for r in found)
    assert 1.2 < drafted < 2.8
    expected = continuations(target, [5, 2], temperature).flatten()
    seen = torch.zeros(6, 6, 6, dtype=torch.float64)
    for r in found:
        seen[tuple(r.tokens[:3])] += 1
    rare = expected * samples < 5
    pooled = [torch.cat([x[~rare], x[rare].sum()[None]]) for x in (seen.flatten(), expected * samples)]
    assert (~rare).sum() > 30
    assert chisquare(pooled[0].numpy(), pooled[1].numpy()).pvalue > 1e-6


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("rule", [FixedLength(3), Confidence(0.5), throughput(), throughput(1.1)])
def test_the_engine_reports_broken_logits(rule: StoppingRule, rows: int) -> None:
    """Forecasts never see them, as `Linear` asserts, and the error names the prompt. Token 9 breaks the draft."""
    target, draft = llama(seed=1), llama(seed=1)
    draft.model.embed_tokens.weight.data[9] = math.nan
    pair = SpeculativeDecoder(target, draft, word_tokenizer(), rule="coupled", draft_length=MOST)
    with pytest.raises(NumericalError, match=r"prompt 1 got logits that are NaN or .* in round 1;"):
        pair.generate([[5, 4], [3, 9], [6, 2]][-rows:] if rows == 3 else [[5], [3, 9]], NEW, stop_policy=early(rule),
                      batch_size=rows)  # fmt: skip


def test_a_row_keeps_its_history_through_a_batch_that_shrinks(
    decoder: SpeculativeDecoder, prompts: list[list[int]]
) -> None:
    """One long text among short ones ends alone in its batch, where a single row takes another code path."""

    def decoded(rows: int) -> Result:
        found = decoder.generate(
            prompts[:4], NEW, rule="coupled", draft_length=MOST, stop_policy=policy, batch_size=rows
        )
        return max(found, key=lambda r: r.emitted)

    policy = early(Heuristic(1, MOST))
    assert decoded(4) == decoded(1)


@pytest.mark.parametrize("rule", RULES, ids=named_by)
def test_a_row_beyond_the_drafts_context_ends_as_the_target_alone(rule: StoppingRule) -> None:
    """Nothing is drafted there, of which no rule hears."""
    target, draft = llama(seed=1), llama(seed=2, max_position_embeddings=24)
    decoder = SpeculativeDecoder(target, draft, word_tokenizer())
    prompts = [[5, 9, 3], [7] * 30, [4] * 20]
    for rows in (1, 3):
        found = decoder.generate(
            prompts, 12, rule="coupled", draft_length=MOST, stop_policy=early(rule, None), batch_size=rows
        )
        assert [r.tokens for r in found] == [r.tokens for r in decoder.generate(prompts, 12, rule="target")]
        assert found[1].drafted == 0
