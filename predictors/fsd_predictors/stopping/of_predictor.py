"""A predictor's throughput rule for T of one divergence, in decoding and in replay.

Knows how a predictor, its rates and the rule come together. Knows nothing of files, profiles or calibration.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np

from fsd_collectors.replay.cost import CostModel
from fsd_collectors.replay.rounds import RoundPolicy
from fsd_collectors.store.reading import Traces
from fsd_decoding.policies.stopping import StopPolicy
from fsd_predictors.features.share_scale import MOST, NEVER
from fsd_predictors.features.token_kinds import TokenKinds
from fsd_predictors.predictor import Predictor
from fsd_predictors.stopping.dinkelbach import rates_on
from fsd_predictors.stopping.draft_states import DraftStates
from fsd_predictors.stopping.in_loop import EarlyStop
from fsd_predictors.stopping.in_replay import InReplay
from fsd_predictors.stopping.rates import Rates
from fsd_predictors.stopping.throughput import Throughput

_RATES = 9  # thresholds that λ is found at, even in logit(u); between them it is interpolated


@dataclass(frozen=True)
class Stopper:
    """`tokenizer`: that of both models."""

    predictor: Predictor
    divergence: str
    rates: Rates
    tokenizer: Any

    @classmethod
    def fitted(
        cls, predictor: Predictor, divergence: str, tokenizer: Any, traces: Traces, costs: CostModel, most: int
    ) -> Self:
        """With λ found by replay on traces, for drafts of up to `most` tokens.

        Raises:
            UsageError: as `replay`; the traces are of other models or another tokenizer, or hold not the hidden
                states that the predictor reads.
        """
        facts, manifest = predictor.facts, traces.manifest
        facts.check(manifest.target, manifest.draft, tokenizer, facts.rule, divergence)
        if predictor.facts.hidden is not None:
            predictor.facts.hidden.check(traces.manifest)
        scale, kinds = predictor.scale, _kinds(tokenizer, predictor.facts.eos)
        thresholds = np.unique(scale.thresholds_of(divergence, np.linspace(NEVER, MOST, _RATES)))
        rates = rates_on(
            traces, lambda rates: _rule(predictor, rates), kinds, scale, predictor.facts.rule, divergence, thresholds,
            costs, most,
        )  # fmt: skip
        return cls(predictor, divergence, rates, tokenizer)

    def in_loop(self, draft: Any) -> StopPolicy:
        """For a `SpeculativeDecoder` with this draft, under the predictor's own rule.

        UsageError: the predictor reads the draft's hidden state, and it has none to be seen.
        """
        facts, scale = self.predictor.facts, self.predictor.scale
        states = None if facts.hidden is None else DraftStates(draft, facts.hidden)
        policy = EarlyStop(_rule(self.predictor, self.rates), self._kinds, scale, self.divergence, states)
        policy.rules = frozenset({facts.rule})
        return policy

    def in_replay(self) -> RoundPolicy:
        """For `replay` and `sweep`."""
        return InReplay(_rule(self.predictor, self.rates), self._kinds, self.predictor.scale).policy

    @property
    def _kinds(self) -> TokenKinds:
        return _kinds(self.tokenizer, self.predictor.facts.eos)


@lru_cache(maxsize=4)
def _kinds(tokenizer: Any, eos: tuple[int, ...]) -> TokenKinds:
    """Once a tokenizer: it reads the whole vocabulary."""
    return TokenKinds.of(tokenizer, eos)


def _rule(predictor: Predictor, rates: Rates) -> Throughput:
    reads_state = predictor.facts.hidden is not None
    return Throughput(predictor.accepting, predictor.next, rates, predictor.fingerprint, reads_state)
