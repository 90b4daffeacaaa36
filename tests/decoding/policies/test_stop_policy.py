"""Stop policies: withheld tokens, memory, intervals, caches and attempts. `test_drafting.py` tests which drafts end."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from scipy.stats import chisquare

from fsd_calib.certification.attempt_ledger import AttemptLedger
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.holdout import Holdout
from fsd_calib.engines.own import OwnEngine
from fsd_calib.measuring.evaluator import CachedDecoder, Evaluator
from fsd_calib.measuring.result_cache import ResultCache
from fsd_common.errors import UsageError
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.engine.result import Result
from fsd_decoding.policies.stopping import Answer, DraftState, StopPolicy, Verified
from fsd_decoding.profile.setting import Setting
from support.models.tiny_calibration import task
from support.models.tiny_models import VOCABULARY, llama, word_tokenizer
from support.models.tiny_pair import related

NEW = 24


class Shy(StopPolicy):
    """Drafts on, and withholds tokens where q was not sure."""

    identity = "shy"

    def goes_on(self, state: DraftState) -> Answer:
        return [True] * len(state.rows)

    def withholds(self, state: DraftState) -> Answer:
        return torch.softmax(state.logits[-1][:, 0], -1).amax(-1) < 0.4


class ByThreshold(StopPolicy):
    """Drafts further where T is larger."""

    identity, reads_threshold = "by threshold", True

    def goes_on(self, state: DraftState) -> Answer:
        drafted = len(state.logits)
        return [row is not None and drafted < 1 + 8 * row.request.threshold for row in state.rows]


class Recalling(StopPolicy):
    """Remembers every round of a row, and drafts as many tokens as there were rounds."""

    def __init__(self) -> None:
        self.verified: dict[int, list[Verified]] = defaultdict(list)  # by prompt

    def goes_on(self, state: DraftState) -> Answer:
        for row in state.rows:
            if row is not None and row.memory:
                self.verified[row.request.index] = row.memory
        return [row is not None and len(state.logits) <= len(row.memory or []) for row in state.rows]

    def remember(self, memory: Any, verified: Verified) -> Any:
        return [*(memory or []), verified]


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = Random(0)
    return [[rng.randrange(2, VOCABULARY) for _ in range(rng.randint(1, 12))] for _ in range(12)]


@pytest.fixture(scope="module")
def pair() -> SpeculativeDecoder:
    target, draft = related(seed=1, spread=0.05)
    return SpeculativeDecoder(target, draft, word_tokenizer(), rule="fsd-coupled", threshold=0.2, draft_length=5)


def test_withheld_tokens_are_neither_verified_nor_emitted(pair: SpeculativeDecoder, prompts: list[list[int]]) -> None:
    alone = pair.generate(prompts, NEW, 0.9, rule="target")
    found = pair.generate(prompts, NEW, 0.9, rule="coupled", stop_policy=Shy(), batch_size=5)
    assert [r.tokens for r in found] == [r.tokens for r in alone]
    whole = pair.generate(prompts, NEW, 0.9, rule="coupled", batch_size=5)
    assert 0 < sum(r.drafted for r in found) < sum(r.drafted for r in whole)
    assert sum(r.accepted for r in found) / sum(r.drafted for r in found) > sum(r.accepted for r in whole) / sum(
        r.drafted for r in whole
    )


def test_the_target_does_not_read_tokens_that_all_rows_withhold(
    pair: SpeculativeDecoder, prompts: list[list[int]]
) -> None:
    class Third(StopPolicy):
        def goes_on(self, state: DraftState) -> Answer:
            return [True] * len(state.rows)

        def withholds(self, state: DraftState) -> Answer:
            return [len(state.logits) > 2] * len(state.rows)

    read: list[int] = []
    hook = pair.target.register_forward_pre_hook(
        lambda model, args, kwargs: read.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        (found,) = pair.generate(prompts[:1], NEW, stop_policy=Third(), draft_length=5)
    finally:
        hook.remove()
    assert found.drafted == 2 * found.rounds
    assert set(read[-found.rounds + 1 :]) == {3}


def test_a_policy_applies_only_to_its_rules(pair: SpeculativeDecoder, prompts: list[list[int]]) -> None:
    shy = Shy()
    shy.rules = frozenset({"fsd-coupled"})
    for rule, applies in (("sd", False), ("coupled", False), ("fsd-coupled", True)):
        whole, early = (pair.generate(prompts, NEW, 0.9, rule=rule, stop_policy=p) for p in (None, shy))
        assert (early != whole) == applies


@pytest.mark.slow
def test_sd_keeps_the_distribution_where_tokens_are_withheld_by_q() -> None:
    """All two-token continuations of a six-token vocabulary, 8,000 samples. False alarm: 1e-6."""
    target, draft = (llama(seed, layers=1, vocab_size=6, eos_token_id=None) for seed in (1, 2))
    target.generation_config.eos_token_id = []
    decoder = SpeculativeDecoder(target, draft, word_tokenizer(), rule="sd", draft_length=3)
    samples, temperature = 8_000, 2.0
    found = decoder.generate([[5, 2]] * samples, 2, temperature, batch_size=4_000, stop_policy=Shy())
    assert 0 < sum(r.drafted for r in found) < 3 * sum(r.rounds for r in found)
    seen = torch.zeros(6, 6, dtype=torch.float64)
    for r in found:
        seen[tuple(r.tokens)] += 1
    pairs = torch.tensor([[5, 2, first] for first in range(6)])
    p = torch.softmax(target(input_ids=pairs).logits.detach() / temperature, -1)
    expected = (p[0, 1][:, None] * p[:, 2] * samples).flatten()
    assert (expected >= 5).sum() > 20
    rare = expected < 5
    pooled = [torch.cat([x[~rare], x[rare].sum()[None]]) for x in (seen.flatten(), expected)]
    pooled = [x[: len(x) - int(not rare.any())] for x in pooled]
    assert chisquare(pooled[0].numpy(), pooled[1].numpy()).pvalue > 1e-6


def test_a_policy_that_reads_the_threshold_has_no_interval_around_it(
    pair: SpeculativeDecoder, prompts: list[list[int]]
) -> None:
    for result in pair.generate(prompts, NEW, threshold=0.2, stop_policy=ByThreshold()):
        assert result.interval == (0.2, math.nextafter(0.2, 1.0))
    widths = [r.interval[1] - r.interval[0] for r in pair.generate(prompts, NEW, threshold=0.2, stop_policy=Shy())]
    assert max(widths) > 0.01


@pytest.mark.parametrize("batch_size", [1, 5])
def test_a_row_remembers_its_own_rounds_and_no_others(
    pair: SpeculativeDecoder, prompts: list[list[int]], batch_size: int
) -> None:
    policy = Recalling()
    found = pair.generate(prompts, NEW, stop_policy=policy, batch_size=batch_size, draft_length=6)
    for index, result in enumerate(found):
        verified = policy.verified[index]
        assert len(verified) == result.rounds - 1  # that of the last round is not needed any more
        assert [v.drafted for v in verified] == [min(n, 6) for n in range(1, result.rounds)]
        assert all(v.accepted <= v.drafted for v in verified)
        assert all((v.smallest_rejected is None) or v.accepted < v.drafted for v in verified)
        assert all(v.largest_accepted is None or v.largest_accepted <= 0.2 for v in verified)
        assert all(v.smallest_rejected is None or v.smallest_rejected > 0.2 for v in verified)
    every = list(itertools.chain.from_iterable(policy.verified.values()))
    assert any(v.largest_accepted is not None for v in every)
    assert any(v.smallest_rejected is not None for v in every)


def test_a_decoders_own_policy_is_that_of_its_calls(pair: SpeculativeDecoder, prompts: list[list[int]]) -> None:
    decoder = SpeculativeDecoder(
        pair.target, pair.draft, pair.tokenizer, rule="fsd-coupled", threshold=0.2, draft_length=5, stop_policy=Shy()
    )
    assert decoder.generate(prompts, NEW) == pair.generate(prompts, NEW, stop_policy=Shy())
    with pytest.raises(UsageError, match="stop_policy is 7; it must be a StopPolicy, its name, or a function"):
        pair.generate(prompts, NEW, stop_policy=7)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="unknown stop policy 'shy'; known: your own as module:Name"):
        pair.generate(prompts, NEW, stop_policy="shy")


def test_a_cache_keeps_texts_of_policies_apart_and_lossless_ones_together() -> None:
    target, draft = related(seed=1, spread=0.05)
    decoder = SpeculativeDecoder(target, draft, word_tokenizer())
    problems = task(12).problems
    fuzzy, lossless = Setting("fsd-coupled", "js", 4, 0.2), Setting("coupled", "js", 4)
    with ResultCache(None) as store:
        plain = CachedDecoder(OwnEngine(decoder, task(12)), task(12), store)
        shy = plain.stopping_early({"js": Shy()})
        before, after = plain(fuzzy, problems), shy(fuzzy, problems)
        assert shy.decoded == 12
        assert [d.drafted for (d,) in after] != [d.drafted for (d,) in before]
        assert shy(fuzzy, problems) == after
        plain(lossless, problems)
        shy(lossless, problems)
        assert (shy.decoded, shy.reused) == (12, 24)
        assert plain.key(fuzzy) == replace(shy.key(fuzzy), stop_policy=None)


def test_a_policy_without_an_identity_cannot_be_cached() -> None:
    decoder = SpeculativeDecoder(*related(seed=1, spread=0.05), word_tokenizer())
    with ResultCache(None) as store, pytest.raises(UsageError, match="policy Recalling has no identity"):
        CachedDecoder(OwnEngine(decoder, task(12)), task(12), store).stopping_early({"js": Recalling()})(
            Setting("fsd-coupled", "js", 4, 0.2), task(12).problems
        )


def test_an_exact_threshold_is_found_again_and_its_neighbours_are_not() -> None:
    decoder = SpeculativeDecoder(*related(seed=1, spread=0.05), word_tokenizer())
    problems = task(6).problems
    with ResultCache(None) as store:
        cached = CachedDecoder(OwnEngine(decoder, task(6)), task(6), store).stopping_early({"js": ByThreshold()})
        for threshold, decoded in ((0.2, 6), (0.2, 6), (0.2 + 1e-9, 12), (0.3, 18), (0.2, 18)):
            cached(Setting("fsd-coupled", "js", 4, threshold), problems)
            assert cached.decoded == decoded


def test_an_attempt_under_a_policy_is_another_attempt() -> None:
    def none(configuration: Setting, problems: Any) -> list[Any]:
        return []

    frozen, alone = [Setting("fsd-coupled", "js", 5, 0.1)], Setting("target", "js", 1)
    with AttemptLedger(None) as ledger:
        holdout = Holdout(Evaluator(none, task(12).problems, "certification"), ledger, "family", "claim", "models")
        numbers = [
            of.open(frozen, alone, Claim(0.9), 0.95).attempt.number
            for of in (holdout, holdout.decoded_by(none, "shy"), holdout, holdout.decoded_by(none, "shy"))
        ]
    assert numbers == [1, 2, 1, 2]


def test_results_do_not_depend_on_the_batch(pair: SpeculativeDecoder, prompts: list[list[int]]) -> None:
    def counted(results: list[Result]) -> list[tuple[list[int], int, int]]:
        return [(r.tokens, r.rounds, r.drafted) for r in results]

    together = pair.generate(prompts, NEW, stop_policy=Shy(), batch_size=12)
    alone = [pair.generate([p], NEW, stop_policy=Shy(), ids=[i])[0] for i, p in enumerate(prompts)]
    assert counted(together) == counted(alone)
