"""Fixed-sequence testing of frozen settings: in which order, on how many problems, and with what result.

That the settings were frozen before their outcomes were decoded is up to the caller, and part of the guarantee.
The text of a verdict in the ledger holds the grades it rests on, so that another process can take it over: two may
decode a few problems differently, in the last bits of bf16 say, and each would come to a verdict of its own. The first
one recorded stands, and certificates of the other process rest on its grades.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
from scipy.stats import beta, binom

from fsd_calib.certification.bounds import require_level
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.outcomes import Gradings, Paired
from fsd_common.errors import UsageError
from fsd_decoding.profile.parts import OutcomeCounts

_DOUBT = 1e-3  # probability that the remaining problems hold more gains than assumed


@dataclass(frozen=True)
class Evidence:
    """The result of one setting on the problems decoded of it.

    Attributes:
        p_value: None: nothing was tested; 1: given up before the whole part was decoded.
        delta: Each bound by itself holds at 1 - delta.
        any_time: Whether the number of problems depended on outcomes.

    Raises:
        UsageError: The target solved nothing and the claim is about retention.
    """

    paired: Paired
    p_value: float | None
    claim: Claim
    delta: float
    any_time: bool = False

    def __post_init__(self) -> None:
        if self.claim.acc == "retention":
            self.paired.outcomes.require_solved()

    @property
    def outcomes(self) -> OutcomeCounts:
        return self.paired.outcomes

    @property
    def lower_bound(self) -> float:
        """The lower bound of retention; 0 where the target solved nothing."""
        return self._bounds[0]

    @property
    def accuracy_bound(self) -> float:
        """The lower bound of the fuzzy rule's absolute accuracy."""
        return self._bounds[1]

    @cached_property
    def _bounds(self) -> tuple[float, float]:  # which take a hundred tests, and no verdict needs them
        return self.claim.bounds(self.paired, self.delta, self.any_time)


@dataclass(frozen=True)
class SequenceVerdict:
    """The result of a sequence.

    Attributes:
        passed: Index of the last setting that passed; None: the first failed.
        tested: Evidence from the first setting to the one that failed, or to the end.
    """

    passed: int | None
    tested: tuple[Evidence, ...]


def certify_sequence(candidates: Iterable[Iterable[Paired]], claim: Claim, delta: float) -> SequenceVerdict:
    """Tests frozen settings in order, safest first, each at the full `delta`, until one fails.

    Fixed-sequence testing: the probability that any setting passes whose claim is false is at most `delta`, as
    far as the claim's test keeps its size. Prefixes are drawn only as far as the decision needs them.

    Args:
        candidates: For each setting, growing prefixes of the certification part, the whole part last. Betting may
            decide on any prefix, the score test on the whole only; either gives up on a prefix where passing is futile.
        claim: Without `wanted` nothing is tested: the first setting is bounded and passes, the rest is not drawn.

    Raises:
        UsageError: The target solved nothing and the claim is about retention, or `delta` is not in (0, 1).
        ValueError: The score test received less than the whole part.
    """
    require_level(delta)
    if claim.wanted is None:
        first = [Evidence(_whole(prefixes, claim), None, claim, delta) for prefixes in islice(candidates, 1)]
        return SequenceVerdict(0 if first else None, tuple(first))
    tested, passed = list[Evidence](), None
    for index, prefixes in enumerate(candidates):
        paired, p_value, gave_up = _test(prefixes, claim, delta)
        tested.append(Evidence(paired, p_value, claim, delta, any_time=gave_up))
        if not p_value <= delta:
            break
        passed = index
    return SequenceVerdict(passed, tuple(tested))


def bound_together(settings: Sequence[Paired], claim: Claim, delta: float) -> tuple[Evidence, ...]:
    """Returns simultaneous bounds of whole settings: each at delta / their number (Bonferroni).

    All retention bounds hold together at 1 - `delta`, and so do all accuracy bounds.
    """
    require_level(delta)
    return tuple(Evidence(paired, None, claim, delta / len(settings)) for paired in settings)


def _test(prefixes: Iterable[Paired], claim: Claim, delta: float) -> tuple[Paired, float, bool]:
    """Returns the problems that decided, their p-value, and whether the test was given up before the whole part."""
    prefix = None
    for prefix in prefixes:
        if prefix.problems == claim.problems or (claim.any_time and claim.p_value(prefix) <= delta):
            break
        if is_futile(prefix, claim, delta):
            return prefix, 1.0, True
    paired = _complete(prefix, claim)
    return paired, claim.p_value(paired), False


def is_futile(paired: Paired, claim: Claim, delta: float) -> bool:
    """Whether the claim fails even if the remaining problems have no losses and plausibly many gains.

    Giving up only ever denies a certificate, so the guarantee does not depend on it. Without a limit on gains nothing
    would be given up: half of the problems could make up for any loss.
    """
    if claim.problems is None or paired.problems >= claim.problems:
        return False
    remaining = claim.problems - paired.problems
    return all(
        claim.p_value(_with_best_remainder(paired, claim, remaining, gains)) > delta
        for gains in (0, _plausible_gains(paired, remaining))
    )


def _plausible_gains(paired: Paired, remaining: int) -> int:
    """Returns the most gains that the remaining problems plausibly hold, by Clopper and Pearson's bound of their
    rate."""
    gained = int((paired.fuzzy.sum(1) > paired.target.sum(1)).sum())
    frequent = beta.ppf(1 - _DOUBT, gained + 1, paired.problems - gained) if gained < paired.problems else 1.0
    return int(binom.ppf(1 - _DOUBT, remaining, frequent))


def _with_best_remainder(paired: Paired, claim: Claim, remaining: int, gains: int) -> Paired:
    """Appends the best plausible remainder. Where more than the target's accuracy is wanted, problems that both solve
    lower the result, so that neither solves the others."""
    assert claim.wanted is not None
    others = claim.wanted <= 1
    return paired.followed_by(False, True, gains).followed_by(others, others, remaining - gains)


def _whole(prefixes: Iterable[Paired], claim: Claim) -> Paired:
    prefix = None
    for prefix in prefixes:
        if prefix.problems == claim.problems:
            break
    return _complete(prefix, claim)


def _complete(prefix: Paired | None, claim: Claim) -> Paired:
    """Checks that a prefix is the whole part where the test needs it: the score test must decide once, on all
    problems."""
    if prefix is None:
        raise ValueError("a candidate has no outcomes")
    if not claim.any_time and claim.problems not in (None, prefix.problems):
        raise ValueError(f"a candidate has {prefix.problems} of {claim.problems} problems; the score test needs all")
    return prefix


def verdict_text(kind: str, result: Any, evidence: Sequence[Evidence]) -> str:
    """Returns the verdict as text.

    Args:
        kind: What was decided, such as "passed"; another kind is another question.
        result: JSON of the result.
        evidence: Of every setting tested. Counts are for people; bounds follow from the grades, up to rounding
            of another machine.
    """
    grades = [[_encode(e.paired.target), _encode(e.paired.fuzzy), e.paired.seeds] for e in evidence]
    return json.dumps({kind: result, "shown": counts_of(evidence), "grades": grades})


def counts_of(evidence: Sequence[Evidence]) -> list[list[int]]:
    """Returns the counts of outcomes of every setting."""
    return [list(astuple(e.outcomes)) for e in evidence]


def standing_grades(own: str, standing: str, kind: str, number: int) -> list[Paired] | None:
    """Returns the grades that the standing verdict rests on; None where they are this process's own.

    Args:
        own: This process's verdict.
        number: Of the attempt.

    Raises:
        UsageError: The verdicts differ, and the standing one is of another kind.
    """
    ours, theirs = json.loads(own), json.loads(standing)
    if ours == theirs:
        return None
    if kind not in theirs:
        raise UsageError(
            f"attempt {number} was decided before as {standing!r:.200}, and now as {own!r:.200}; the first verdict "
            "stands, and answers another question: change the sequence or the claim for a new attempt"
        )
    counts = [sum(shown) // seeds for shown, (*_, seeds) in zip(theirs["shown"], theirs["grades"], strict=True)]
    return [
        Paired(_decode(target, problems, seeds), _decode(fuzzy, problems, seeds))
        for (target, fuzzy, seeds), problems in zip(theirs["grades"], counts, strict=True)
    ]


def _encode(grades: Gradings) -> str:
    return base64.b64encode(np.packbits(grades).tobytes()).decode()


def _decode(text: str, problems: int, seeds: int) -> Gradings:
    bits = np.frombuffer(base64.b64decode(text), np.uint8)
    return np.unpackbits(bits, count=problems * seeds).astype(bool).reshape(problems, seeds)
