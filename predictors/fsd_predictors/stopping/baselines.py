"""Published stopping rules, each with one parameter to tune, that read only what was drafted.

All of them stop after a drafted end of text, as the originals do: transformers' assistant stops generating there, and
so does SVIP's code.
"""

from __future__ import annotations

import math
from typing import Any

from fsd_common.argument_checks import amount, check_count, number
from fsd_common.errors import UsageError
from fsd_predictors.stopping.rule import Answer, Kept, Round, StoppingRule, numbers


class FixedLength(StoppingRule):
    """Drafts `length` tokens in every round."""

    name = "fixed"

    def __init__(self, length: int) -> None:
        check_count("length", length)
        self._length = length

    @property
    def identity(self) -> str:
        return f"{self.name}({self._length})"

    def wants_more(self, drafting: Round) -> Answer:
        return len(drafting.steps) < self._length


class Confidence(StoppingRule):
    """Stops after a token of probability q(x) < threshold.

    This is transformers' `ConfidenceCriteria` with `assistant_confidence_threshold`, .4 by default
    (generation/stopping_criteria.py); the token that stops the draft is verified too. transformers also tunes the
    threshold while decoding, by a ROC curve (generation/candidate_generator.py); here it is tuned beforehand.
    """

    name = "confidence"

    def __init__(self, threshold: float = 0.4) -> None:
        self._threshold = _finite("threshold", threshold)

    @property
    def identity(self) -> str:
        return f"{self.name}({numbers(self._threshold)})"

    def wants_more(self, drafting: Round) -> Answer:
        return drafting.steps[-1].probability >= self._threshold


class Svip(StoppingRule):
    """Stops after a token drawn where sqrt(factor·H(q)) > threshold, H in nats.

    SVIP, arXiv 2411.18462, section 3, where sqrt(cH) yields a lower bound of the acceptance rate. As in its code
    (github.com/Geralt-Targaryen/SVIP, vanilla-sd/eval_specbench.py: c = .15, threshold .3) the token that stops the
    draft is verified too.
    """

    name = "svip"

    def __init__(self, threshold: float = 0.3, factor: float = 0.15) -> None:
        self._threshold = amount("threshold", threshold, zero=False)
        self._factor = amount("factor", factor, zero=False)
        self._most = self._threshold**2 / self._factor  # largest entropy, in nats

    @property
    def identity(self) -> str:
        return f"{self.name}({numbers(self._threshold, self._factor)})"

    def wants_more(self, drafting: Round) -> Answer:
        return drafting.steps[-1].entropy <= self._most


class AdaEdl(StoppingRule):
    """Stops after a token drawn where 1 − sqrt(factor·H(q)) < λ, H in nats.

    AdaEDL, arXiv 2410.18351, section 3 and Algorithm 1. λ begins at `start` and follows the acceptance rate r. After
    each round r <- .5 r + .5 accepted/drafted; λ' = λ + .01 if r < .9, else λ − .01 if fewer than L were accepted, else
    λ; and λ <- .9 λ + .1 λ'.

    The paper leaves three points open. Here r begins at .9; H is the entropy of the raw logits, as in traces, so that
    it is defined under greedy decoding too; and the token that stops the draft is verified, which on the bundled pair
    gains some percent over leaving it out.

    Args:
        start: λ in a text's first round.
        most: L, the longest draft.
        factor: factor of the entropy.
    """

    name = "adaedl"
    _TARGET, _STEP, _RATE_DECAY, _BAR_DECAY = 0.9, 0.01, 0.5, 0.9  # of Algorithm 1

    def __init__(self, start: float, most: int, factor: float = 0.2) -> None:
        check_count("most", most)
        self._start, self._most = _finite("start", start), most
        self._factor = amount("factor", factor, zero=False)
        self.kept = (self._TARGET, self._start)

    @property
    def identity(self) -> str:
        return f"{self.name}({numbers(self._start, self._most, self._factor)})"

    def wants_more(self, drafting: Round) -> Answer:
        room: Any = 1.0 - drafting.kept[1]
        square = room * abs(room)  # with its sign: at λ > 1 nothing is sure
        sure: Answer = self._factor * drafting.steps[-1].entropy <= square
        return sure

    def remembers(self, kept: Kept, drafted: Any, accepted: Any) -> Kept:
        bar = kept[1]
        rate = self._RATE_DECAY * kept[0] + (1.0 - self._RATE_DECAY) * accepted / drafted
        low = rate < self._TARGET
        room = accepted != self._most
        moved = bar + self._STEP * (low - (1 - low) * room)
        return rate, self._BAR_DECAY * bar + (1.0 - self._BAR_DECAY) * moved


class Heuristic(StoppingRule):
    """Drafts two tokens more after a round that was accepted as a whole, else one less, but at least one.

    This is transformers' `num_assistant_tokens_schedule="heuristic_transient"` (generation/candidate_generator.py,
    `update_candidate_strategy`), whose draft length starts anew with each text, at 20 by default. Here it is capped at
    the longest draft, as in SVIP's code, which caps it at 40.

    Args:
        first: draft length of a text's first round.
        most: L, the longest draft.
    """

    name = "heuristic"

    def __init__(self, first: int, most: int) -> None:
        check_count("first", first)
        check_count("most", most)
        self._first, self._most = first, most
        self.kept = (float(min(self._first, self._most)),)

    @property
    def identity(self) -> str:
        return f"{self.name}({self._first}, {self._most})"

    def wants_more(self, drafting: Round) -> Answer:
        return len(drafting.steps) < drafting.kept[0]

    def remembers(self, kept: Kept, drafted: Any, accepted: Any) -> Kept:
        length = kept[0]
        whole_draft = accepted == drafted
        changed = length + 2.0 * whole_draft - (1.0 - whole_draft) * (length > 1.0)
        return (changed - (changed - self._most) * (changed > self._most),)


def _finite(name: str, value: float) -> float:
    if not math.isfinite(number(name, value, "it must be a finite number")):
        raise UsageError(f"{name} is {value!r}; it must be a finite number")
    return float(value)
