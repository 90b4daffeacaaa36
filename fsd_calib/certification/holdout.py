"""The certification part, sealed until the choice is frozen, and good for one decision an attempt."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, astuple

from fsd_calib.certification.attempt_ledger import Attempt, AttemptLedger, Run
from fsd_calib.certification.sequence import Claim, Evidence, Paired, Verdict, bound_together, certify_sequence
from fsd_calib.measuring.configuration import Configuration
from fsd_calib.measuring.evaluator import Decode, Evaluator
from fsd_calib.measuring.measurement import Measurement, Seeds
from fsd_calib.tasks.base import Problem
from fsd_decoding.errors import UsageError

# MERGED: """Tells the ledger which tuning problems have a say in a choice, before they have it."""


TESTS_VERSION = 2  # raised where the same outcomes may come to another verdict: that is then another attempt
_PORTIONS = 8  # of the part, between looks at whether a decision can still change
_LEAST = 2  # problems


class Holdout:
    """Hands out the certification part once the frozen sequence is in the ledger.

    Args:
        family: attempts of one family are counted together: the target's fingerprint.
        identity: all that decides what is looked at, beside configurations and problems: models, sampling, seeds.
            Another one makes another attempt.
        whole: how many problems there were before some were left out; None: this many.
    """

    def __init__(
        self, evaluator: Evaluator, ledger: AttemptLedger, family: str, identity: str, whole: int | None = None
    ) -> None:
        self._bench, self._ledger, self._family, self._identity = evaluator, ledger, family, identity
        self.whole = len(evaluator.problems) if whole is None else whole

    @property
    def problems(self) -> int:
        return len(self._bench.problems)

    @property
    def ids(self) -> list[int]:
        return [problem.id for problem in self._bench.problems]

    @property
    def next_attempt(self) -> int:
        """The number that a new attempt on these problems would have."""
        return self._ledger.next_number(self._family, self._bench.problems)

    def at_best(self, confidence: float) -> tuple[int, float]:
        """At most so many problems at this level, whatever run this is; see `Ledger.at_best`."""
        return self._ledger.at_best(self._family, self._bench.problems, confidence)

    def facts_of(self, run: str) -> str | None:
        """What the ledger remembers of the run of that name; None: nothing."""
        return self._ledger.facts_of(self._family, run)

    def of_run(self, run: str, trained: Collection[int] = ()) -> Holdout:
        """The part for the run of that name, without problems that had a say in a choice.

        A run whose attempt is decided has the problems of that attempt again, whatever was tuned on since.

        Args:
            trained: ids of problems that a predictor of the run was trained on.

        Raises:
            UsageError: too few are left.
        """
        usable = self._ledger.usable(self._family, self._bench.problems, run)
        left = [
            problem
            for problem, may in zip(self._bench.problems, usable, strict=True)
            if may and problem.id not in trained and problem.key not in trained
        ]
        if len(left) < _LEAST:
            raise UsageError(
                f"{self.problems - len(left)} of {self.problems} certification problems were tuned or trained on "
                f"before, which leaves {len(left)} to certify on; give others"
            )
        return self._with(Evaluator(self._bench.decode, left, self._bench.part))

    def decoded_by(self, decode: Decode, how: str) -> Holdout:
        """The same part in the hands of another decoding, which makes other attempts of it."""
        return self._with(Evaluator(decode, self._bench.problems, self._bench.part), how)

    def open(
        self,
        frozen: Sequence[Configuration],
        alone: Configuration,
        claim: Claim,
        confidence: float,
        run: Run | None = None,
    ) -> HoldoutAttempt:
        """From here on the choice is made. The same sequence and claim again are the same attempt.

        Raises:
            UsageError: some of the problems were tuned on, in this run or an earlier one.
        """
        identity = [self._identity, _fingerprint(self._bench.problems), TESTS_VERSION]
        told = json.dumps([identity, [asdict(c) for c in frozen], asdict(claim), confidence], sort_keys=True)
        attempt = self._ledger.open(self._family, self._bench.problems, told, run)
        return HoldoutAttempt(self._bench, frozen, alone, claim, attempt, attempt.level(confidence))

    def _with(self, evaluator: Evaluator, how: str = "") -> Holdout:
        return Holdout(evaluator, self._ledger, self._family, self._identity + how, self.whole)


class HoldoutAttempt:
    """One attempt: the frozen sequence meets the certification part."""

    def __init__(
        self,
        evaluator: Evaluator,
        frozen: Sequence[Configuration],
        alone: Configuration,
        claim: Claim,
        attempt: Attempt,
        delta: float,
    ) -> None:
        self.frozen, self.alone, self.claim, self.attempt, self.delta = tuple(frozen), alone, claim, attempt, delta
        self._bench = evaluator

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Once the attempt has decided, these are free to be timed."""
        return self._bench.problems

    def measure(self, configuration: Configuration, first: int | None = None) -> Measurement:
        """Of frozen configurations and of rules without a threshold, which cost no accuracy."""
        if configuration.threshold is not None and configuration not in self.frozen:
            raise ValueError(f"{configuration} is not among the frozen ones: the certification part is not for it")
        return self._bench.measure(configuration, first)

    def measured(self) -> list[Measurement]:
        return self._bench.measured()

    def decide(self) -> Verdict:
        """Tests the sequence in its order; a second time raises."""
        candidates = (self._prefixes(configuration) for configuration in self.frozen)
        verdict = certify_sequence(candidates, self.claim, self.delta)
        self.attempt.decide(json.dumps({"passed": verdict.passed, "shown": _counts(verdict.tested)}))
        return verdict

    def bound_all(self) -> tuple[Evidence, ...]:
        """Bounds of all frozen ones that hold at once; it is this attempt's decision."""
        whole = [self._paired(configuration, None) for configuration in self.frozen]
        together = bound_together(whole, self.claim, self.delta)
        self.attempt.decide(json.dumps({"bounded": _counts(together)}))
        return together

    def _prefixes(self, configuration: Configuration) -> Iterator[Paired]:
        """Ever more of the part, so that what is decided early is not decoded to the end."""
        whole = len(self._bench.problems)
        for portion in range(1, _PORTIONS + 1):
            yield self._paired(configuration, max(whole * portion // _PORTIONS, 1))

    def _paired(self, configuration: Configuration, first: int | None) -> Paired:
        alone, fuzzy = (self._bench.measure(c, first) for c in (self.alone, configuration))
        return Paired(alone.correct, fuzzy.correct)


def _counts(shown: Sequence[Evidence]) -> list[list[int]]:
    """What a verdict rests on. Bounds follow from it, but for a last bit that another machine may round otherwise."""
    return [list(astuple(evidence.outcomes)) for evidence in shown]


def _fingerprint(problems: Sequence[Problem]) -> str:
    """Of what is asked and what is right, in whatever order."""
    asked = sorted([problem.id, problem.prompt, problem.reference] for problem in problems)
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()


class Tuned:
    """What this process told of one family; a problem is told once."""

    def __init__(self, ledger: AttemptLedger, family: str) -> None:
        self._ledger, self._family = ledger, family
        self._told: set[int] = set()

    def mark(self, problems: Sequence[Problem]) -> None:
        """From here on no attempt may ask them."""
        new = [problem for problem in problems if problem.id not in self._told]
        if new:
            self._ledger.tuned_on(self._family, new)
            self._told.update(problem.id for problem in new)

    def before(self, decode: Decode) -> Decode:
        """The same, marking problems that are decoded under a threshold: of a threshold's outcomes a choice is made,
        while the target and lossless rules leave none."""

        def marked(configuration: Configuration, problems: Sequence[Problem]) -> Sequence[Seeds]:
            if configuration.threshold is not None:
                self.mark(problems)
            return decode(configuration, problems)

        return marked
