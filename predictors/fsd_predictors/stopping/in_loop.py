"""Stopping rules in the engine: what rows drafted is measured on the device, copied once, and judged on the host.

Knows draft states and how a rule is asked. Knows neither rules' formulas nor replay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import and_
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fsd_decoding.policies.stopping import DraftState, RowFacts, StopPolicy, Verified
from fsd_predictors.features.draft_distribution import measure
from fsd_predictors.features.features import NO_HISTORY, Drafted, Place, Value, history_after
from fsd_predictors.features.share_scale import ShareScale
from fsd_predictors.features.token_kinds import TokenKinds
from fsd_predictors.stopping.draft_states import DraftStates
from fsd_predictors.stopping.rule import Answer, Kept, Round, StoppingRule


class EarlyStop(StopPolicy):
    """Drafts as far as a rule lets it, each row by itself.

    Rows whose logits are NaN draft no further and keep what they drafted: no rule sees them, and the engine raises
    NumericalError once the round is verified. One thread at a time: what the round drafted is kept here.

    Args:
        kinds: of the tokenizer that both models share.
        scale, divergence: what T becomes, and whose T it is; a rule that has no use for T does without.
        states: the draft's, where the rule reads them.
    """

    def __init__(
        self,
        rule: StoppingRule,
        kinds: TokenKinds,
        scale: ShareScale | None = None,
        divergence: str | None = None,
        states: DraftStates | None = None,
    ) -> None:
        self.identity, self.reads_threshold = rule.identity, rule.reads_threshold
        self.watches = states is not None
        self._rule, self._kind, self._ends = rule, kinds.kind, kinds.ends
        self._kind_of, self._ends_of = kinds.kind.tolist(), kinds.ends.tolist()
        self._scale, self._divergence, self._states = scale, divergence, states
        self._whose = 0.0 if scale is None or divergence is None else float(scale.index(divergence))
        self._shares: dict[float, float] = {}  # by T, of the rows at hand
        self._new = *NO_HISTORY, *rule.kept  # what a row keeps of its rounds, before the first
        self._round = Round(Place.behind(NO_HISTORY, 0.0, 0.0, 0.0))
        self._begins = 0  # where the round's first token stands, at one row
        self._broken: Answer = False

    def goes_on(self, state: DraftState) -> list[bool]:
        answer = self._wants_more(state)
        if self._states is not None and any(map(and_, state.going, answer)):
            self._states.watch()
        return answer

    def _wants_more(self, state: DraftState) -> list[bool]:
        if not state.logits:
            self._begin(state.rows)
            return [True] * len(state.rows)
        if len(state.rows) == 1:
            self._look_at_one(state)
            return [not self._broken and bool(self._rule.goes_on(self._round))]
        self._look_at_all(state)
        told: list[bool] = (self._rule.goes_on(self._round) & ~np.asarray(self._broken)).tolist()
        return told

    def remember(self, memory: Any, verified: Verified) -> Any:
        history, kept = _parts(memory or self._new)
        accepted, spared, refused = float(verified.accepted), verified.spared or 0.0, verified.refused or 0.0
        return (
            *history_after(history, accepted, spared, refused),
            *self._rule.remembers(kept, float(verified.drafted), accepted),
        )

    def _begin(self, rows: Sequence[RowFacts | None]) -> None:
        self._broken = False
        if len(rows) == 1 and rows[0] is not None:
            row = rows[0]
            self._begins = len(row.request.prompt) + len(row.tokens)
            history, kept = _parts(row.memory or self._new)
            share = self._share(row.request.threshold)
            self._round = Round(Place.behind(history, float(len(row.tokens)), share, self._whose), kept)
        else:
            self._round = self._round_of(rows)

    def _round_of(self, rows: Sequence[RowFacts | None]) -> Round:
        """Of all rows at once; an empty one stands as if at the beginning of a text."""
        memories = np.array([(row.memory if row else None) or self._new for row in rows]).T
        positions = np.array([float(len(row.tokens)) if row else 0.0 for row in rows])
        shares = np.array([self._share(row.request.threshold) if row else 0.0 for row in rows])
        history, kept = _parts(tuple(memories))
        return Round(Place.behind(history, positions, shares, np.full(len(rows), self._whose)), kept)

    def _share(self, threshold: float) -> float:
        if self._scale is None or self._divergence is None:
            return 0.0
        if threshold not in self._shares:
            if len(self._shares) >= 1024:  # rows have thresholds of their own
                self._shares.clear()
            self._shares[threshold] = float(self._scale.of(self._divergence, threshold))
        return self._shares[threshold]

    def _look_at_one(self, state: DraftState) -> None:
        steps = self._round.steps
        drawn = state.batch.tokens.select(1, self._begins + len(steps))  # (1,)
        measured = self._measured(state, drawn)
        if measured.is_cpu:
            (values,), token = measured.tolist(), drawn.item()
        else:
            ((*values, token),) = _together(measured, drawn).tolist()
        entropy, varentropy, top1, top2, chance, *self._round.state = values
        self._broken = not math.isfinite(sum(values))
        index = int(token)
        steps.append(Drafted(entropy, varentropy, top1, top2, chance, self._kind_of[index], self._ends_of[index]))

    def _look_at_all(self, state: DraftState) -> None:
        steps = self._round.steps
        drawn = state.batch.tokens.gather(1, (state.batch.lengths + len(steps))[:, None])[:, 0]  # (B,)
        told = _together(self._measured(state, drawn), drawn).numpy().astype(np.float64)
        broken = ~np.isfinite(told).all(1)
        told[broken] = 0.0
        entropy, varentropy, top1, top2, chance, *self._round.state, token = told.T
        index = token.astype(np.int64)
        self._broken = np.logical_or(self._broken, broken)
        steps.append(Drafted(entropy, varentropy, top1, top2, chance, self._kind[index], self._ends[index]))

    def _measured(self, state: DraftState, drawn: Tensor) -> Tensor:
        """(B, 5) and, where they are read, the draft's states behind: (B, 5 + H)."""
        shape = measure(state.logits[-1].squeeze(1), drawn)
        return shape if self._states is None else torch.cat([shape, self._states.taken().to(shape)], 1)


def _together(measured: Tensor, drawn: Tensor) -> Tensor:
    """(B, n) and (B,) as (B, n + 1), for one copy to the host. Ids up to 2^24 are exact in fp32."""
    return torch.cat([measured, drawn[:, None].to(measured.dtype)], 1).cpu()


def _parts(memory: tuple[Value, ...]) -> tuple[tuple[Value, ...], Kept]:
    """History, and what the rule itself keeps."""
    return memory[: len(NO_HISTORY)], memory[len(NO_HISTORY) :]
