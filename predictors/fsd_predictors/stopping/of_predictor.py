"""`Stopper`: a predictor with the throughput rule, ready for decoding or replay."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np

from fsd_collectors.replay.cost import CostModel
from fsd_collectors.replay.rounds import RoundPolicy
from fsd_collectors.store.reading import Traces
from fsd_decoding.policies.stopping import StopPolicy
from fsd_predictors.features import TokenKinds
from fsd_predictors.predictor import Predictor
from fsd_predictors.share_scale import MOST, NEVER
from fsd_predictors.stopping.in_loop import DraftStates, EarlyStop
from fsd_predictors.stopping.in_replay import InReplay, rates_on
from fsd_predictors.stopping.rule import Rates, Throughput

_RATES = 9  # thresholds at which λ is found, evenly spaced in logit(u); between them it is interpolated


@dataclass(frozen=True)
class Stopper:
    """Early stop by a predictor, for thresholds on one score.

    Args:
        predictor: forecasts acceptance.
        score: score that T bounds.
        rates: λ by T, and the costs it was found with.
        tokenizer: tokenizer of both models.
    """

    predictor: Predictor
    score: str
    rates: Rates
    tokenizer: Any

    @classmethod
    def fitted(
        cls, predictor: Predictor, score: str, tokenizer: Any, traces: Traces, costs: CostModel, most: int
    ) -> Self:
        """Finds λ by replay of traces, for drafts of up to `most` tokens.

        Raises:
            UsageError: as `replay`; or the traces are of other models or another tokenizer, or lack the hidden
                states that the predictor reads.
        """
        facts, manifest = predictor.facts, traces.manifest
        facts.check(manifest.target, manifest.draft, tokenizer, facts.rule, score)
        if predictor.facts.hidden is not None:
            predictor.facts.hidden.check(traces.manifest)
        scale, kinds = predictor.scale, _kinds(tokenizer, predictor.facts.eos)
        thresholds = np.unique(scale.thresholds_of(score, np.linspace(NEVER, MOST, _RATES)))
        rates = rates_on(
            traces, lambda rates: _rule(predictor, rates), kinds, scale, predictor.facts.rule, score, thresholds,
            costs, most,
        )  # fmt: skip
        return cls(predictor, score, rates, tokenizer)

    def in_loop(self, draft: Any) -> StopPolicy:
        """Returns the stop policy for a `SpeculativeDecoder` with this draft, under the predictor's acceptance rule.

        Raises:
            UsageError: the predictor reads the draft's hidden state, and this draft has none that can be read.
        """
        facts, scale = self.predictor.facts, self.predictor.scale
        states = None if facts.hidden is None else DraftStates(draft, facts.hidden)
        policy = EarlyStop(_rule(self.predictor, self.rates), self._kinds, scale, self.score, states)
        policy.rules = frozenset({facts.rule})
        return policy

    def in_replay(self) -> RoundPolicy:
        """Returns the round policy for `replay` and `sweep`."""
        return InReplay(_rule(self.predictor, self.rates), self._kinds, self.predictor.scale).policy

    @property
    def _kinds(self) -> TokenKinds:
        return _kinds(self.tokenizer, self.predictor.facts.eos)


@lru_cache(maxsize=4)
def _kinds(tokenizer: Any, eos: tuple[int, ...]) -> TokenKinds:
    """Cached, since it reads the whole vocabulary."""
    return TokenKinds.of(tokenizer, eos)


def _rule(predictor: Predictor, rates: Rates) -> Throughput:
    reads_state = predictor.facts.hidden is not None
    return Throughput(predictor.accepting, predictor.next, rates, predictor.fingerprint, reads_state)
