"""The holdout: the certification part, which can be decoded only after the choice is frozen in the ledger."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsd_calib.certification.attempt_ledger import Attempt, AttemptLedger, Entry, Run, known, numbers
from fsd_calib.certification.certificate import (
    Evidence,
    SequenceVerdict,
    bound_together,
    certify_sequence,
    counts_of,
    passed_of,
    standing_grades,
    verdict_text,
)
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.dropped import Dropped, dropped
from fsd_calib.certification.extension import Extension, Frozen
from fsd_calib.certification.looks import Looks
from fsd_calib.certification.outcomes import Paired
from fsd_calib.measuring.evaluator import Decode, Evaluator
from fsd_calib.measuring.measurement import Measurement, Seeds, groups_of
from fsd_calib.tasks.base import Problem
from fsd_common.argument_checks import named, off
from fsd_common.errors import UsageError
from fsd_common.progress.base import Progress
from fsd_decoding.profile.certificate import ClaimHistory, attempt_level
from fsd_decoding.profile.setting import Setting


@dataclass(frozen=True)
class EngineSequence:
    """Engines that certify in turn.

    Attributes:
        engines: Names and arguments (as JSON), in the order in which they certify.
        place: Of the one that certifies now, from 0.
        attempt: Number of the attempt that the first of them opened; None for the first itself.
    """

    engines: tuple[tuple[str, str], ...]
    place: int = 0
    attempt: int | None = None

    def __str__(self) -> str:
        """Returns what identifies it; not the attempt's number, which follows from the rest."""
        return json.dumps([self.engines, self.place])


_LEAST = 2  # problems of a usable certification part


class Holdout:
    """Gives access to the certification part once the frozen sequence is recorded in the ledger.

    Args:
        evaluator: Measures on the certification part.
        family: Attempts of one family are counted together, see `family_id`.
        claim: Name of what is claimed, see `Entry`.
        identity: All that determines the outcomes besides settings and problems: models, sampling, seeds. Another
            identity makes another attempt.
        sequence: The engines that certify in turn; None: this one alone does.
        whole: Number of problems before some were left out; None: none were.
        extension: What attempts on it go on from, whose problems are its first ones; None: nothing.
    """

    def __init__(
        self, evaluator: Evaluator, ledger: AttemptLedger, family: str, claim: str, identity: str,
        sequence: EngineSequence | None = None, whole: int | None = None, extension: Extension | None = None,
    ) -> None:  # fmt: skip
        self._evaluator, self._ledger, self._family, self._claim = evaluator, ledger, family, claim
        self._identity = identity
        self.sequence, self.extension = sequence, extension
        self.whole = len(evaluator.problems) if whole is None else whole

    @property
    def problems(self) -> int:
        return len(self._evaluator.problems)

    @property
    def groups(self) -> NDArray[np.int64] | None:
        """See `groups_of`."""
        return groups_of(self._evaluator.problems)

    @property
    def part(self) -> tuple[Problem, ...]:
        return self._evaluator.problems

    @property
    def next_attempt(self) -> int:
        """The number that a new attempt on these problems would have, or that of the sequence that goes on here."""
        return self._ledger.next_number(self._family, self._claim, self._evaluator.problems, self._continued)

    def best_case(self, confidence: float) -> tuple[int, float]:
        """Returns the most problems and the highest level of any attempt; see `AttemptLedger.best_case`."""
        problems, level = self._ledger.best_case(self._family, self._claim, self._evaluator.problems, confidence)
        return problems, max(level, attempt_level(confidence, self.next_attempt))

    def looks(self, number: int) -> Looks:
        """Returns up to `number` looks at the problems, after those of the attempts that this one goes on from."""
        if self.extension is None:
            return Looks.evenly(self.problems, number, self.groups)
        return self.extension.of_more(number, self.groups)

    def levels(self, confidence: float, attempt: int) -> list[float]:
        """Returns the levels of the attempts that one of this number goes on from, and its own."""
        return [attempt_level(confidence, number) for number in (*self._extends, attempt)]

    def facts_of(self, run: str) -> str | None:
        """Returns the facts that the ledger has of the run of that name; None: none."""
        return self._ledger.facts_of(self._family, run)

    def other_questions(self, problems: Sequence[Problem]) -> list[str]:
        """What the ledger knows of the family to have been tuned or certified on, beside these problems."""
        return self._ledger.other_questions(self._family, problems)

    def of_run(self, run: str, trained: frozenset[int] = frozenset()) -> Holdout:
        """Returns the part for the run of that name, without problems that influenced a choice, and without their
        groups, of which what was chosen knows something, too.

        A run whose attempt is decided has the problems of that attempt again, whatever was tuned on since.

        Args:
            trained: Keys of problems that a predictor or a draft of the run was trained on.

        Raises:
            UsageError: Fewer than two problems remain.
        """
        usable = self._ledger.usable(self._family, self._evaluator.problems, run)
        unseen = [
            problem
            for problem, is_usable in zip(self._evaluator.problems, usable, strict=True)
            if is_usable and problem.keys.isdisjoint(trained)
        ]
        ids = {problem.id for problem in unseen}
        groups = {problem.group for problem in self._evaluator.problems if problem.id not in ids} - {None}
        remaining = [problem for problem in unseen if problem.group not in groups]
        if len(remaining) < _LEAST:
            grouped = ", or share a group with one" if groups else ""
            raise UsageError(
                f"{self.problems - len(remaining)} of {self.problems} certification problems were tuned or trained on "
                f"before{grouped}, which leaves {len(remaining)} to certify on; give others"
            )
        return self._with(Evaluator(self._evaluator.decode, remaining, self._evaluator.part))

    def extendable(self, claim: Claim, is_same: Callable[[str], bool]) -> Extension | None:
        """Returns what goes on from the decided attempt of the same claim that had the most of these problems, and no
        others; None: there is none, or another attempt was decided on some of the others.

        Args:
            is_same: Whether the facts of a run are of the same command.
        """
        decided = self._ledger.decided(self._family)
        candidates = [self._from(entry, claim) for entry, runs in decided if any(map(is_same, runs))]
        found = max(filter(None, candidates), key=lambda each: len(each.problems), default=None)
        return found if found is not None and self.is_new(found) else None

    def is_new(self, extension: Extension) -> bool:
        """Whether no other attempt was decided on problems that an attempt adds."""
        places, more = {each.place for each in extension.before}, numbers(self._with_ids(extension.more))
        others = [entry for entry, _ in self._ledger.decided(self._family) if entry.place not in places]
        return not any(known(more, entry.problems).any() for entry in others)

    def extension_from(self, place: int, claim: Claim) -> Extension:
        """Returns what goes on from the attempt at this place, which did so before.

        Raises:
            UsageError: Problems of then cannot be used any more, or the ledger is not the one of then.
        """
        entry = next((entry for entry, _ in self._ledger.decided(self._family) if entry.place == place), None)
        found = None if entry is None else self._from(entry, claim)
        if found is None:
            why = "this ledger has no decided attempt at its place"
            if entry is not None:
                why = f"some problems of attempt {entry.number} were tuned or trained on since"
            raise UsageError(
                f"the run cannot go on: {why}; search anew, by {off('extend')}, or give the {named('state')} of then"
            )
        return found

    def _from(self, entry: Entry, claim: Claim) -> Extension | None:
        return Extension.of(entry, self.part, claim, self._identity)

    def extending(self, extension: Extension) -> Holdout:
        """Returns the part for an attempt that goes on: the problems of then, in their order, before all others."""
        problems = self._with_ids((*extension.problems, *extension.more))
        evaluator = Evaluator(self._evaluator.decode, problems, self._evaluator.part)
        return self._with(evaluator, extension=extension)

    def _with_ids(self, ids: Sequence[int]) -> list[Problem]:
        by_id = {problem.id: problem for problem in self.part}
        return [by_id[number] for number in ids]

    def first(self, problems: int) -> Holdout:
        """Returns the first problems of the part, with all of their groups."""
        groups = {problem.group for problem in self.part[:problems]} - {None}
        part = [p for place, p in enumerate(self.part) if place < problems or p.group in groups]
        return self._with(Evaluator(self._evaluator.decode, part, self._evaluator.part))

    def of_identity(self, decode: Decode, identity: str) -> Holdout:
        """Returns the same part, decoded so that all that determines outcomes is this."""
        evaluator = Evaluator(decode, self.part, self._evaluator.part)
        return Holdout(evaluator, self._ledger, self._family, self._claim, identity, self.sequence, self.whole)

    def decoded_by(self, decode: Decode, suffix: str) -> Holdout:
        """Returns the same part under another way of decoding, whose attempts are other attempts.

        Args:
            suffix: Added to `identity`.
        """
        return self._with(Evaluator(decode, self._evaluator.problems, self._evaluator.part), suffix)

    def open(
        self,
        frozen: Sequence[Setting],
        target: Setting,
        claim: Claim,
        confidence: float,
        run: Run | None = None,
    ) -> HoldoutAttempt:
        """Opens the attempt: from here on the choice is frozen. The same sequence and claim are the same attempt.

        Args:
            frozen: The sequence, safest first.
            target: The target decoding by itself, which outcomes are compared with.

        Raises:
            UsageError: Some problems were tuned on, in this run or an earlier one.
        """
        engines = "" if self.sequence is None else str(self.sequence)
        before = () if self.extension is None else self.extension.before
        text = Frozen.of(self._identity, engines, self.part, claim, confidence, frozen, before).text
        charged = sum(each.dropped for each in before)  # which count in their own stages

        def owed(earlier: Sequence[Entry]) -> str:
            found = dropped(earlier, numbers(self._evaluator.problems), claim.acc)
            return "" if found is None else replace(found, counted=max(found.counted - charged, 0)).text

        attempt = self._ledger.open(
            self._family, self._claim, self._evaluator.problems, text, run, self._continued, owed
        )
        gone = Dropped.of_text(attempt.dropped)
        levels = self.levels(confidence, attempt.number)
        looks, counted = claim.looks and claim.looks.sized(levels), gone.counted if gone else 0
        tested = replace(claim, looks=looks, dropped=counted)
        return HoldoutAttempt(self._evaluator, frozen, target, tested, attempt, sum(levels), gone, self._extends)

    @property
    def _extends(self) -> tuple[int, ...]:
        """The numbers of the attempts that one goes on from."""
        return () if self.extension is None else self.extension.attempts

    @property
    def _continued(self) -> int | None:
        """The number of the attempt that an earlier engine of the sequence opened."""
        return None if self.sequence is None else self.sequence.attempt

    def _with(self, evaluator: Evaluator, suffix: str = "", extension: Extension | None = None) -> Holdout:
        return Holdout(
            evaluator, self._ledger, self._family, self._claim, self._identity + suffix, self.sequence, self.whole,
            extension or self.extension,
        )  # fmt: skip


class HoldoutAttempt:
    """One attempt: the certification part, open to the frozen settings only."""

    def __init__(
        self,
        evaluator: Evaluator,
        frozen: Sequence[Setting],
        target: Setting,
        claim: Claim,
        attempt: Attempt,
        delta: float,
        gone: Dropped | None = None,
        extends: tuple[int, ...] = (),
    ) -> None:
        self.frozen, self.target, self.claim, self.attempt, self.delta = tuple(frozen), target, claim, attempt, delta
        self.dropped, self.extends = gone, extends
        self._groups = groups_of(evaluator.problems)
        earlier = attempt.at_same_claim
        self.history = ClaimHistory(
            asked=1 + len(earlier), passed=sum(passed_of(entry.verdict) is not None for entry in earlier),
            attempts=1 + len(attempt.attempts_before), since=datetime.fromisoformat(attempt.since),
            first=attempt.is_first,
        )  # fmt: skip
        self._evaluator = evaluator

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems, which may be timed once the attempt is decided."""
        return self._evaluator.problems

    def measure(self, setting: Setting, first: int | None = None) -> Measurement:
        """Measures a frozen setting, or a rule without a threshold, which loses no accuracy.

        Raises:
            ValueError: The setting is not among the frozen ones.
        """
        if setting.threshold is not None and setting not in self.frozen:
            raise ValueError(f"{setting} is not among the frozen settings; the certification part is for those only")
        return self._evaluator.measure(setting, first)

    def measured(self) -> list[Measurement]:
        return self._evaluator.measured()

    def decide(self, progress: Progress | None = None) -> SequenceVerdict:
        """Tests the sequence in its order, and records the verdict; a second call raises UsageError.

        Where another process recorded one before, that one stands and is returned, and `progress` receives a note if it
        rests on other grades.
        """
        candidates = (self._prefixes(setting) for setting in self.frozen)
        verdict = certify_sequence(candidates, self.claim, self.delta)
        standing = self._record("passed", verdict.passed, verdict.tested, progress)
        if standing is None:
            return verdict
        return certify_sequence(([self._grouped(grades)] for grades in standing), self.claim, self.delta)

    def bound_all(self, progress: Progress | None = None) -> tuple[Evidence, ...]:
        """Returns simultaneous bounds of all frozen settings, recorded as the attempt's verdict; see `decide`."""
        whole = [self._paired(setting, None) for setting in self.frozen]
        bounded = bound_together(whole, self.claim, self.delta)
        standing = self._record("bounded", counts_of(bounded), bounded, progress)
        if standing is None:
            return bounded
        return bound_together([self._grouped(grades) for grades in standing], self.claim, self.delta)

    def _record(
        self, kind: str, result: Any, evidence: Sequence[Evidence], progress: Progress | None
    ) -> list[Paired] | None:
        """Records a verdict; returns the grades of the one that stands where they are not this process's."""
        own = verdict_text(kind, result, evidence)
        standing = standing_grades(own, self.attempt.decide(own), kind, self.attempt.number)
        for setting, grades in zip(self.frozen, standing or (), strict=False):
            for measured in (self.target, setting):  # for its tokens and rounds
                self._evaluator.measure(measured, grades.problems)
        if standing is not None and progress is not None:
            progress.note(
                f"attempt {self.attempt.number} was decided by another process, whose decodings differ in outcomes; "
                "its verdict stands, and the certificate has its numbers"
            )
        return standing

    def _prefixes(self, setting: Setting) -> Iterator[Paired]:
        """Yields what is decoded at each look, so that an early decision saves decoding the rest."""
        looks = self.claim.looks or Looks((len(self._evaluator.problems),))
        for problems in looks.problems:
            yield self._paired(setting, problems)

    def _paired(self, setting: Setting, first: int | None) -> Paired:
        target, fuzzy = (self._evaluator.measure(c, first) for c in (self.target, setting))
        return Paired.of(target, fuzzy)

    def _grouped(self, grades: Paired) -> Paired:
        return grades if self._groups is None else replace(grades, groups=self._groups[: grades.problems])


class TuningRecord:
    """Records the tuning problems of one family in the ledger before they are decoded; each problem once."""

    def __init__(self, ledger: AttemptLedger, family: str) -> None:
        self._ledger, self._family = ledger, family
        self._recorded: set[int] = set()

    def mark(self, problems: Sequence[Problem]) -> None:
        """Records the problems: no later attempt may certify on them."""
        new = [problem for problem in problems if problem.id not in self._recorded]
        if new:
            self._ledger.tuned_on(self._family, new)
            self._recorded.update(problem.id for problem in new)

    def before(self, decode: Decode) -> Decode:
        """Returns `decode` with problems recorded first, where it is under a threshold.

        Only outcomes under a threshold influence the choice; those of the target and of lossless rules do not.
        """

        def decode_marking(setting: Setting, problems: Sequence[Problem]) -> Sequence[Seeds]:
            if setting.threshold is not None:
                self.mark(problems)
            return decode(setting, problems)

        return decode_marking
