"""Calibration of T for beams: the fastest of a ladder of thresholds that keeps a share of the accuracy of the target's
own beams, certified on problems that no choice has seen.

A problem's answer is the best-scored text. The claim, its test and the ledger are those of `fsd-calibrate`, and
attempts count together with those on single texts of the same target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from fsd_calib.calibration.session import Session, open_session
from fsd_calib.certification.certificate import Evidence
from fsd_calib.certification.claim import Claim
from fsd_calib.engines.base import DecodingRequest, KeyedPrompt, TextEngine
from fsd_calib.engines.beams import BeamEngine
from fsd_calib.engines.own import undisturbed_clock
from fsd_calib.options.run_config import RunConfig
from fsd_calib.tasks.base import Problem, Task
from fsd_common.errors import UsageError
from fsd_common.user_folders import default_cache, default_state
from fsd_decoding.beams.decode import check_beams
from fsd_decoding.beams.settings import BeamSettings
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.profile.setting import Setting

LADDER = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
"""Thresholds that are tried by default."""
_TIMED = 16  # problems


@dataclass(frozen=True)
class Step:
    """One threshold on the tuning part.

    Args:
        setting: with the threshold.
        retention: of the accuracy of the target's own beams.
        layers_per_round: by which steps are compared, as clocks differ from run to run.
        speed_up: layers per second over those of the target's own beams.
    """

    setting: Setting
    retention: float
    layers_per_round: float
    speed_up: float


@dataclass(frozen=True)
class BeamCalibration:
    """What was found.

    Args:
        settings: how beams are to be decoded, with `threshold`: as asked; where nothing was certified, losslessly, and
            so without a dynamic width.
        chosen: the fastest setting that was certified; None: none was.
        evidence: of the settings tested, safest first, on the certification part.
        attempt: which attempt at the claim it was.
        steps: the ladder on the tuning part.
        speed_up: layers per second of what was chosen over the target's own beams, timed on certification problems.
    """

    settings: BeamSettings
    chosen: Setting | None
    evidence: tuple[Evidence, ...]
    attempt: int | None
    steps: tuple[Step, ...]
    speed_up: float | None

    @property
    def threshold(self) -> float:
        """T to decode with: -1, which is lossless with `settings`, where none was certified."""
        return -1.0 if self.chosen is None or self.chosen.threshold is None else self.chosen.threshold


def calibrate_beams(
    decoder: SpeculativeDecoder,
    task: Task,
    settings: BeamSettings,
    min_acc: float,
    *,
    ladder: Sequence[float] = LADDER,
    confidence: float = 0.95,
    config: RunConfig | None = None,
) -> BeamCalibration:
    """Finds the largest T of a ladder that keeps the accuracy of the target's own beams.

    On the tuning part every T is decoded. Those that keep `min_acc` there, in fewer rounds than all smaller ones
    that do, are frozen in the ledger, safest first, and tested on the certification part until one fails.

    Args:
        decoder: the models and the sampling; its draft length is the depth.
        task: with problems for both parts.
        settings: how many beams, and how many are drafted.
        min_acc: the share of the accuracy to keep.
        ladder: thresholds.
        confidence: of the certificate.
        config: `batch_size`, `seeds`, `cache`, `state` and `progress` of the run.

    Raises:
        UsageError: beams cannot be decoded so, or there are too few problems.
    """
    if not decoder.setting.rule.bounds_score:
        raise UsageError(f"rule is {decoder.rule!r}, which has no T to calibrate; use fsd-coupled, or fsd-sd")
    check_beams(decoder.setting, settings, decoder.target, decoder.draft)
    asked = config or RunConfig()
    run = asked.changed(cache=asked.cache or default_cache(), state=asked.state or default_state())
    run = run.changed(batch_size=asked.batch_size or 1)
    engine, lossless = BeamEngine(decoder, task, settings), replace(settings, chance=0.0, least_beams=1)
    claim = Claim(min_acc, confidence=confidence)
    arm = Setting(decoder.rule, engine.score, decoder.draft_length)
    with open_session(engine, task, run) as session:
        steps = _climbed(session, [arm.at(threshold) for threshold in sorted(ladder)])
        frozen = worth_testing(steps, min_acc)
        if not frozen:
            return BeamCalibration(lossless, None, (), None, tuple(steps), None)
        session = session.certifying(f"beams {session.identity} {[each.values for each in frozen]}", frozenset())
        attempt = session.holdout.open(frozen, session.setting("target"), claim, confidence)
        verdict = attempt.decide(session.progress)
        chosen = None if verdict.passed is None else frozen[verdict.passed]
        timed = None if chosen is None else _speed_ups(session, [chosen], attempt.problems)[0]
    return BeamCalibration(settings, chosen, verdict.tested, attempt.attempt.number, tuple(steps), timed)


def worth_testing(steps: Sequence[Step], min_acc: float) -> list[Setting]:
    """Returns the settings to be certified, safest first: each keeps `min_acc`, in rounds of more layers than those
    before it and than the target's, which are of one. So a run that is repeated freezes the same ones."""
    frozen, most = [], 1.0
    for step in steps:
        if step.retention >= min_acc and step.layers_per_round > most:
            frozen.append(step.setting)
            most = step.layers_per_round
    return frozen


def _climbed(session: Session, settings: Sequence[Setting]) -> list[Step]:
    alone = session.tuning.measure(session.setting("target"))
    if not alone.correct.any():
        raise UsageError(
            f"the target's beams solve none of {alone.problems} {session.task.name} problems, so retention is "
            "undefined; look at the prompts"
        )
    fuzzy = [session.tuning.measure(setting) for setting in settings]
    retained = [float(found.correct.sum() / alone.correct.sum()) for found in fuzzy]
    layers = [(found.rounds + found.accepted) / found.rounds for found in fuzzy]  # each round adds one to the accepted
    speeds = _speed_ups(session, settings, session.tuning.problems)
    return [Step(*each) for each in zip(settings, retained, layers, speeds, strict=True)]


def _speed_ups(session: Session, settings: Sequence[Setting], problems: Sequence[Problem]) -> list[float]:
    """Layers per second of settings over the target's own, which take turns at the first problems: medians."""
    alone, ratios = session.setting("target"), [list[float]() for _ in settings]
    for problem in problems[:_TIMED]:
        own = _rate(session.engine, alone, problem)
        for setting, found in zip(settings, ratios, strict=True):
            found.append(_rate(session.engine, setting, problem) / own)
    return [median(found) for found in ratios]


def _rate(engine: TextEngine, setting: Setting, problem: Problem) -> float:
    assert isinstance(engine, BeamEngine)
    clock, prompts = undisturbed_clock(engine.decoder.device), [KeyedPrompt(problem.id, problem.prompt)]
    began = clock()
    emitted = engine.emitted(DecodingRequest(setting, engine.decoding.seed, prompts, 1))
    return emitted / (clock() - began)
