"""Findings of a calibration: what was chosen, measured, timed and tested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fsd_calib.calibration.baseline import Baseline
from fsd_calib.calibration.guards import Guarded
from fsd_calib.calibration.prepare import Prepared
from fsd_calib.calibration.ready import Ready
from fsd_calib.calibration.timing import Timed
from fsd_calib.certification.certificate import Evidence
from fsd_calib.certification.holdout import HoldoutAttempt
from fsd_calib.certification.outcomes import Paired
from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.measuring.speed import Speeds
from fsd_calib.report.record import Step
from fsd_calib.search.objective import FinishedTrial
from fsd_calib.tasks.base import Problem
from fsd_decoding.profile.fields import Outcome
from fsd_decoding.profile.setting import Setting


@dataclass(frozen=True)
class Findings:
    """Everything a calibration found.

    Attributes:
        certified: whether `chosen` passed its test.
        chosen: what passed, else what is given as an estimate, else the rival.
        rival: the fastest lossless rule at its fastest draft length.
        followed: what decoders of the profile run, `chosen` or `rival`.
        single: speeds with one stream, beside those of several.
        steps: what the baseline, the search, the certificate and the timing took, as far as the calibration came.
        trials: of the search.
        opened: the certification part; None: nothing was decoded there.
        evidence: by tested setting.
        guarded: what the chosen setting kept on other tasks.
    """

    ready: Ready
    outcome: Outcome
    certified: bool
    chosen: Setting
    rival: Setting
    followed: Setting
    baseline: Baseline
    timed: Timed
    single: Speeds[Setting] | None
    steps: Sequence[Step]
    opened: HoldoutAttempt | None = None
    evidence: Mapping[Setting, Evidence] = field(default_factory=dict)
    trials: Sequence[FinishedTrial] = ()
    guarded: tuple[Guarded, ...] = ()

    @property
    def prepared(self) -> Prepared:
        """What was prepared with engines that are known from inside."""
        assert isinstance(self.ready, Prepared)
        return self.ready

    @property
    def lossy(self) -> bool:
        """Whether decoders of the profile may change texts."""
        return self.followed.threshold is not None

    def exported(self, setting: Setting) -> Setting:
        """Returns a setting as profiles have it: without the name of its draft where that is the profile's own."""
        return replace(setting, draft=None) if setting.draft == self.followed.draft else setting

    @property
    def certifying(self) -> tuple[Evidence | None, bool]:
        """The evidence that the certificate rests on, and whether it is of lossless decoding instead of `chosen`."""
        of_chosen, of_lossless = self.evidence.get(self.chosen), self.evidence.get(self.ready.alone)
        return of_chosen or of_lossless, of_chosen is None and of_lossless is not None

    @property
    def parts(self) -> Sequence[Evaluator | HoldoutAttempt]:
        """The parts that problems were decoded on: tuning, and where it was opened certification."""
        return (self.ready.session.tuning, *((self.opened,) if self.opened else ()))

    def measured(self, setting: Setting) -> Measurement:
        """Returns its measurement on the certification part where it was decoded there, else on the tuning part."""
        for part in reversed(self.parts):
            for measurement in part.measured():
                if measurement.setting == setting:
                    return measurement
        raise ValueError(f"{setting} was measured nowhere")

    def alone(self, like: Measurement) -> Measurement:
        """Returns the target's measurement on the same problems."""
        return self._part(like).measure(self.ready.alone, like.problems)

    def problems(self, of: Measurement) -> Sequence[Problem]:
        """Returns the problems that a measurement is of, in its order."""
        return self._part(of).problems[: of.problems]

    def paired(self, measured: Measurement) -> Paired:
        """Returns its grades beside the target's: of a tested setting those that the verdict rests on."""
        tested = self.evidence.get(measured.setting)
        if tested is not None and measured.part == "certification":
            return tested.paired
        return Paired.of(self.alone(measured), measured)

    def _part(self, of: Measurement) -> Evaluator | HoldoutAttempt:
        return self.opened if self.opened and of.part == "certification" else self.ready.session.tuning
