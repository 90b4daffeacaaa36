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
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from fsd_calib.certification.bounds import require_level
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.given_passing import GivenPassing, given_passing
from fsd_calib.certification.harm import change_of
from fsd_calib.certification.looks import hope
from fsd_calib.certification.outcomes import Gradings, Paired
from fsd_common.errors import UsageError
from fsd_decoding.profile.certificate import OutcomeCounts


class Bounds(NamedTuple):
    """Lower bounds of retention and of accuracy; None: none holds given that it is printed."""

    retention: float | None
    accuracy: float | None


@dataclass(frozen=True)
class Evidence:
    """The result of one setting on the problems decoded of it.

    Attributes:
        paired: What was decoded up to the look that decided.
        p_value: None: nothing was tested.
        delta: The size of the test over all looks. Each bound by itself holds at 1 - delta, whether or not it is
            printed, and whichever look decided.

    Raises:
        UsageError: The target solved nothing and the claim is about retention.
    """

    paired: Paired
    p_value: float | None
    claim: Claim
    delta: float

    def __post_init__(self) -> None:
        if self.claim.acc == "retention":
            self.paired.outcomes.require_solved()

    @property
    def outcomes(self) -> OutcomeCounts:
        return self.paired.outcomes

    @property
    def level(self) -> float:
        """The level of the look that decided."""
        return self.claim.level(self.paired.problems, self.delta)

    @property
    def two_sided(self) -> float:
        """The confidence of an interval at this look, such that those of all looks together have the claim's."""
        return 1 - (1 - self.claim.confidence) * self.level / self.delta

    @property
    def passed(self) -> bool:
        """Whether the claim was tested and passed."""
        return self.p_value is not None and self.p_value <= self.level

    @cached_property
    def given_passing(self) -> GivenPassing | None:
        """What holds given that it passed; None: it did not, nothing was wanted, or the test is betting, whose bounds
        hold at any time."""
        inverted = self.passed and self.claim.guarantee == "population"
        return given_passing(self.paired, self.claim, self.delta) if inverted else None

    @property
    def printed(self) -> Bounds:
        """The bounds to print: of what passed that of the claim alone, given that it passed."""
        given = self.given_passing
        if given is None:
            return Bounds(self.lower_bound, self.accuracy_bound)
        return Bounds(given.kept, None) if self.claim.acc == "retention" else Bounds(None, given.kept)

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
        return self.claim.bounds(self.paired, self.level)


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
        candidates: For each setting, the problems decoded at each look, rising.
        claim: Without `wanted` nothing is tested: the whole part bounds the first setting, which passes, and the rest
            is not drawn.

    Raises:
        UsageError: The target solved nothing and the claim is about retention, or `delta` is not in (0, 1).
        ValueError: A prefix is not of a look, or there are none.
    """
    require_level(delta)
    tested, passed = list[Evidence](), None
    for index, prefixes in enumerate(candidates):
        tested.append(_test(prefixes, claim, delta))
        if claim.wanted is not None and not tested[-1].passed:
            break
        passed = index
        if claim.wanted is None:
            break
    return SequenceVerdict(passed, tuple(tested))


def bound_together(settings: Sequence[Paired], claim: Claim, delta: float) -> tuple[Evidence, ...]:
    """Returns simultaneous bounds of whole settings: each at delta / their number (Bonferroni).

    All retention bounds hold together at 1 - `delta`, and so do all accuracy bounds.
    """
    require_level(delta)
    return tuple(Evidence(paired, None, claim, delta / len(settings)) for paired in settings)


def _test(prefixes: Iterable[Paired], claim: Claim, delta: float) -> Evidence:
    """Returns what was decoded up to the look that decides, and its p-value."""
    prefix, p_value, decided = None, None, False
    for prefix in prefixes:
        whole = claim.problems in (None, prefix.problems)
        if claim.acc == "retention" and not prefix.target.any() and not whole:
            continue  # there is nothing to keep yet
        p_value = None if claim.wanted is None else claim.p_value(prefix)
        passed = p_value is not None and p_value <= claim.level(prefix.problems, delta)
        decided = passed or whole or is_futile(prefix, claim, delta)
        if decided:
            break
    if prefix is None or not decided:
        seen = "no outcomes" if prefix is None else f"{prefix.problems} of {claim.problems} problems"
        raise ValueError(f"a candidate has {seen}, which decide nothing")
    return Evidence(prefix, p_value, claim, delta)


def is_futile(paired: Paired, claim: Claim, delta: float) -> bool:
    """Whether the claim fails even with a remainder of which a better one has only the chance `hope`.

    An early look knows little, so it must be all the surer. Giving up only ever denies a certificate, so the guarantee
    does not depend on it.
    """
    if claim.wanted is None or claim.problems is None or paired.problems >= claim.problems:
        return False
    return claim.p_value(_with_best_remainder(paired, claim)) > claim.level(claim.problems, delta)


def _with_best_remainder(paired: Paired, claim: Claim) -> Paired:
    """Returns the grades with a remainder of which a better one has the chance `hope`, by what was decoded.

    Its net gain is a normal variable around what was seen, whose variance includes that of the estimate.
    """
    assert claim.problems is not None
    assert claim.looks is not None
    remaining, seen = claim.problems - paired.problems, claim.judged(paired)
    change, squares, counted = change_of(seen)
    deviation = (remaining * (1 + remaining / counted) * squares / counted) ** 0.5
    net = round(remaining * change - float(ndtri(hope(claim.looks.time(paired.problems)))) * deviation)
    lost, gained = (float(each.mean()) for each in (seen.target & ~seen.fuzzy, seen.fuzzy & ~seen.target))
    exchanged = remaining * min(lost, gained)
    gains = min(round(exchanged + max(net, 0) * (claim.acc == "retention")), remaining)
    losses = min(round(exchanged + max(-net, 0)), remaining - gains)
    solved = (seen.problems * seen.target_accuracy + 1) / counted
    right = round((remaining - gains - losses) * solved)
    counts = right, remaining - gains - losses - right, gains, losses
    kinds = np.repeat(np.array([(True, True), (False, False), (False, True), (True, False)]), counts, axis=0)
    if claim.looks.earlier:  # all that is in one stage would not be as good
        kinds = kinds[np.concatenate([(np.arange(each) + 0.5) / max(each, 1) for each in counts]).argsort()]
    return paired.followed_by(*kinds.T)


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
    return graded_in(standing)


def passed_of(verdict: str | None) -> int | None:
    """Returns the place of the last setting that a verdict certified; None: it certified nothing."""
    passed: int | None = None if verdict is None else json.loads(verdict).get("passed")
    return passed


def graded_in(verdict: str) -> list[Paired]:
    """Returns the grades that a verdict rests on, of every setting tested."""
    read = json.loads(verdict)
    counts = [sum(shown) // seeds for shown, (*_, seeds) in zip(read["shown"], read["grades"], strict=True)]
    return [
        Paired(_decode(target, problems, seeds), _decode(fuzzy, problems, seeds))
        for (target, fuzzy, seeds), problems in zip(read["grades"], counts, strict=True)
    ]


def _encode(grades: Gradings) -> str:
    return base64.b64encode(np.packbits(grades).tobytes()).decode()


def _decode(text: str, problems: int, seeds: int) -> Gradings:
    bits = np.frombuffer(base64.b64decode(text), np.uint8)
    return np.unpackbits(bits, count=problems * seeds).astype(bool).reshape(problems, seeds)
