"""The certification part, sealed until the choice is frozen, and good for one decision an attempt.

Knows who may decode what on it, and when. The tests are in `certify.py`, the count of attempts in `attempts.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple

from fsd_calib.certifying.attempts import Attempt, Ledger
from fsd_calib.certifying.certify import Claim, Evidence, Paired, Verdict, bound_together, certify_sequence
from fsd_calib.measuring.bench import Bench, Decode
from fsd_calib.measuring.configuration import Configuration
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.tasks import Problem

_PORTIONS = 8  # of the part, between looks at whether a decision can still change


class Sealed:
    """Hands out the certification part once the frozen sequence is in the ledger.

    Args:
        family: attempts of one family are counted together.
        identity: all that decides what is looked at, beside configurations: models, sampling, seeds, prompts. Another
            one makes another attempt.
    """

    def __init__(self, bench: Bench, ledger: Ledger, family: str, identity: str) -> None:
        self._bench, self._ledger, self._family, self._identity = bench, ledger, family, identity

    @property
    def problems(self) -> int:
        return len(self._bench.problems)

    @property
    def ids(self) -> list[int]:
        return [problem.id for problem in self._bench.problems]

    @property
    def next_attempt(self) -> int:
        """The number that a new attempt on these problems would have."""
        return self._ledger.next_number(self._family, self.ids)

    def decoded_by(self, decode: Decode, how: str) -> Sealed:
        """The same part in the hands of another decoding, which makes other attempts of it."""
        bench = Bench(decode, self._bench.problems, self._bench.part)
        return Sealed(bench, self._ledger, self._family, self._identity + how)

    def open(self, frozen: Sequence[Configuration], alone: Configuration, claim: Claim, confidence: float) -> Opened:
        """From here on the choice is made. The same sequence and claim again are the same attempt.

        Raises:
            UsageError: some of the problems were tuned on, in this run or an earlier one.
        """
        told = json.dumps([self._identity, [asdict(c) for c in frozen], asdict(claim), confidence], sort_keys=True)
        attempt = self._ledger.open(self._family, self.ids, told)
        return Opened(self._bench, frozen, alone, claim, attempt, attempt.delta(confidence))


class Opened:
    """One attempt: the frozen sequence meets the certification part."""

    def __init__(
        self,
        bench: Bench,
        frozen: Sequence[Configuration],
        alone: Configuration,
        claim: Claim,
        attempt: Attempt,
        delta: float,
    ) -> None:
        self.frozen, self.alone, self.claim, self.attempt, self.delta = tuple(frozen), alone, claim, attempt, delta
        self._bench = bench

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
        shown = [[*astuple(e.outcomes), e.lower_bound] for e in verdict.tested]
        self.attempt.decide(json.dumps({"passed": verdict.passed, "shown": shown}))
        return verdict

    def bound_all(self) -> tuple[Evidence, ...]:
        """Bounds of all frozen ones that hold at once; it is this attempt's decision."""
        whole = [self._paired(configuration, None) for configuration in self.frozen]
        together = bound_together(whole, self.claim, self.delta)
        self.attempt.decide(json.dumps({"bounded": [evidence.lower_bound for evidence in together]}))
        return together

    def _prefixes(self, configuration: Configuration) -> Iterator[Paired]:
        """Ever more of the part, so that what is decided early is not decoded to the end."""
        whole = len(self._bench.problems)
        for portion in range(1, _PORTIONS + 1):
            yield self._paired(configuration, max(whole * portion // _PORTIONS, 1))

    def _paired(self, configuration: Configuration, first: int | None) -> Paired:
        alone, fuzzy = (self._bench.measure(c, first) for c in (self.alone, configuration))
        return Paired(alone.correct, fuzzy.correct)
