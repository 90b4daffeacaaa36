"""Stopping rules while decoding: the engine's stop policy that evaluates a rule after each draft step.

Statistics of the drafted tokens, and the draft's hidden states where a rule reads them, are computed on the device,
copied to the host once a step, and passed to the rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import and_
from threading import get_ident
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fsd_collectors.collection.measures import HiddenStates
from fsd_common.errors import UsageError
from fsd_decoding.batch import Row
from fsd_decoding.drafters.base import DraftSource
from fsd_decoding.policies.stopping import DraftState, StopPolicy, Verified
from fsd_predictors.facts import HiddenInfo
from fsd_predictors.features import NO_HISTORY, Drafted, RoundContext, TokenKinds, Value, history_after, measure
from fsd_predictors.share_scale import ShareScale
from fsd_predictors.stopping.rule import Answer, Kept, Round, StoppingRule


class DraftStates(HiddenStates):
    """Reads the hidden state of one draft step at a time: the one that follows a call of `watch`.

    Its hook is installed for that step only, so other users of the draft model are not slowed down.

    Args:
        draft: the draft model.
        info: width and projection of the state.

    Raises:
        UsageError: the draft is not a model, or it is compiled.
    """

    def __init__(self, draft: Any, info: HiddenInfo) -> None:
        _check(draft)
        super().__init__(draft, info.setting, info.seed or 0)
        self._watching: int | None = None  # id of the thread that decodes: others may use the model meanwhile

    def watch(self) -> None:
        """Installs the hook for the next draft step of this thread."""
        self._leave()  # the last step may have failed
        self._calls.clear()
        self._watching = get_ident()
        self.__enter__()

    def take(self) -> Tensor:
        """Returns the states (B, width) in fp16 at the rows' last positions, from which q was computed."""
        if not self._calls:
            raise UsageError("the predictor reads the hidden state of another draft; pass it the decoder's own")
        return self.latest()[:, -1]

    def _keep(self, head: Any, inputs: tuple[Tensor, ...]) -> None:
        if get_ident() == self._watching:
            super()._keep(head, inputs)
            self._leave()

    def _leave(self) -> None:
        if self._watching is not None:
            self._watching = None
            self.__exit__(None, None, None)


def _check(draft: Any) -> None:
    need = "the predictor reads the draft's last hidden state, but"
    if isinstance(draft, DraftSource):
        raise UsageError(f"{need} {draft!r:.80} has none; use a draft model, or a predictor trained without it")
    if hasattr(draft, "_orig_mod") or getattr(draft, "_compiled_call_impl", None) is not None:
        raise UsageError(f"{need} it cannot be read from a compiled draft; pass the model without compiling it")


class EarlyStop(StopPolicy):
    """Ends each row's draft when a stopping rule says so.

    Rows with NaN logits stop drafting and keep what they drafted: they are not passed to the rule, and the engine
    raises NumericalError once the round is verified. An instance serves one thread at a time, since it holds the
    current round.

    Args:
        rule: the stopping rule.
        kinds: token kinds of the tokenizer that both models share.
        scale: scale on which the rule reads T; not needed by rules that do not read it.
        score: score that T bounds, one of the scale's.
        states: the draft's hidden states, where the rule reads them.
    """

    def __init__(
        self,
        rule: StoppingRule,
        kinds: TokenKinds,
        scale: ShareScale | None = None,
        score: str | None = None,
        states: DraftStates | None = None,
    ) -> None:
        self.identity, self.reads_threshold = rule.identity, rule.reads_threshold
        self.watches = states is not None
        self._rule, self._kind, self._ends = rule, kinds.kind, kinds.ends
        self._kind_of, self._ends_of = kinds.kind.tolist(), kinds.ends.tolist()
        self._scale, self._score, self._states = scale, score, states
        self._whose = 0.0 if scale is None or score is None else float(scale.index(score))
        self._shares: dict[float, float] = {}  # cache, by T
        self._new = *NO_HISTORY, *rule.kept  # a row's memory before its first round
        self._round = Round(RoundContext.after(NO_HISTORY, 0.0, 0.0, 0.0))
        self._begins = 0  # position of the round's first token, where there is one row
        self._broken: Answer = False

    def goes_on(self, state: DraftState) -> list[bool]:
        more = self._wants_more(state)
        if self._states is not None and any(map(and_, state.going, more)):
            self._states.watch()
        return more

    def _wants_more(self, state: DraftState) -> list[bool]:
        if not state.logits:
            self._begin(state.rows)
            return [True] * len(state.rows)
        if len(state.rows) == 1:
            self._look_at_one(state)
            return [not self._broken and bool(self._rule.goes_on(self._round))]
        self._look_at_all(state)
        more: list[bool] = (self._rule.goes_on(self._round) & ~np.asarray(self._broken)).tolist()
        return more

    def remember(self, memory: Any, verified: Verified) -> Any:
        history, kept = _parts(memory or self._new)
        accepted, largest = float(verified.accepted), verified.largest_accepted or 0.0
        return (
            *history_after(history, accepted, largest, verified.smallest_rejected or 0.0),
            *self._rule.remembers(kept, float(verified.drafted), accepted),
        )

    def _begin(self, rows: Sequence[Row | None]) -> None:
        self._broken = False
        if len(rows) == 1 and rows[0] is not None:
            row = rows[0]
            self._begins = len(row.request.prompt) + len(row.tokens)
            history, kept = _parts(row.memory or self._new)
            share = self._share(row.request.threshold)
            self._round = Round(RoundContext.after(history, float(len(row.tokens)), share, self._whose), kept)
        else:
            self._round = self._round_of(rows)

    def _round_of(self, rows: Sequence[Row | None]) -> Round:
        """Returns a round of all rows; an empty row gets the context of a text's first round."""
        memories = np.array([(row.memory if row else None) or self._new for row in rows]).T
        positions = np.array([float(len(row.tokens)) if row else 0.0 for row in rows])
        shares = np.array([self._share(row.request.threshold) if row else 0.0 for row in rows])
        history, kept = _parts(tuple(memories))
        return Round(RoundContext.after(history, positions, shares, np.full(len(rows), self._whose)), kept)

    def _share(self, threshold: float) -> float:
        if self._scale is None or self._score is None:
            return 0.0
        if threshold not in self._shares:
            if len(self._shares) >= 1024:  # each row may have a threshold of its own
                self._shares.clear()
            self._shares[threshold] = float(self._scale.of(self._score, threshold))
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
        measured = _together(self._measured(state, drawn), drawn).numpy().astype(np.float64)
        broken = ~np.isfinite(measured).all(1)
        measured[broken] = 0.0
        entropy, varentropy, top1, top2, chance, *self._round.state, token = measured.T
        index = token.astype(np.int64)
        self._broken = np.logical_or(self._broken, broken)
        steps.append(Drafted(entropy, varentropy, top1, top2, chance, self._kind[index], self._ends[index]))

    def _measured(self, state: DraftState, drawn: Tensor) -> Tensor:
        """Returns the statistics of q, followed by the draft's states where they are read: (B, 5) or (B, 5 + H)."""
        shape = measure(state.logits[-1].squeeze(1), drawn)
        return shape if self._states is None else torch.cat([shape, self._states.take().to(shape)], 1)


def _together(measured: Tensor, drawn: Tensor) -> Tensor:
    """Joins (B, n) and ids (B,) into (B, n + 1), for one copy to the host. Ids up to 2^24 are exact in fp32."""
    return torch.cat([measured, drawn[:, None].to(measured.dtype)], 1).cpu()


def _parts(memory: tuple[Value, ...]) -> tuple[tuple[Value, ...], Kept]:
    """Splits a row's memory into the history and what the rule keeps."""
    return memory[: len(NO_HISTORY)], memory[len(NO_HISTORY) :]
