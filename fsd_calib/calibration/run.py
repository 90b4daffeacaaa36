"""From what was prepared to a profile: search, freeze, test, time, one way for each kind of wish.

Knows which step follows from which result. How each is done is in the module of its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fsd_calib.calibration.baseline import Baseline, measure_baseline
from fsd_calib.calibration.numerical_floor import judge
from fsd_calib.calibration.pass_probability import bar_of, chance_of, claim_of
from fsd_calib.calibration.prepare import Prepared
from fsd_calib.calibration.study_name import study_name
from fsd_calib.calibration.timing import Timed
from fsd_calib.calibration.to_profile import Findings, to_profile
from fsd_calib.certification.holdout import HoldoutAttempt
from fsd_calib.certification.sequence import Evidence
from fsd_calib.measuring.configuration import Configuration
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.measuring.speed import Interval, Speeds
from fsd_calib.search.max_accuracy import MaxAccuracy
from fsd_calib.search.max_speed import Chance, MaxSpeed
from fsd_calib.search.objective import Objective, retention
from fsd_calib.search.pareto import FrontPoint, ParetoFront, selectable_retention, thin_out
from fsd_calib.search.search import freeze, record_recounts, search
from fsd_decoding.profile.costs import Work
from fsd_decoding.profile.threshold_profile import Outcome, ThresholdProfile

_BASELINE = 256  # tuning problems: what the lossless rule and the target say, before anything is searched
_SD = 300  # problems of a part on which SD's tokens a round are counted
_CLOSE, _CONTEST = 0.93, 3  # settings so close to the fastest, and so many of them, are timed against each other
_FRONT = 8  # points at most, bounded together: six, and two that other problems may find beaten
HOPELESS, _EVEN = 0.02, 0.5  # chances of passing: not worth a test, and as likely as not


@dataclass
class Meter:
    """What was decoded and reused, step by step."""

    ready: Prepared
    steps: list[Work] = field(default_factory=list)

    def mark(self) -> None:
        """A step ends here."""
        before = sum(self.steps, Work())
        total = self.ready.session.decode.work
        self.steps.append(Work(**{n: getattr(total, n) - getattr(before, n) for n in Work.model_fields}))


def find(ready: Prepared) -> ThresholdProfile:
    """Does the long work. What is on the certification part is decoded after the choice is frozen."""
    meter = Meter(ready)
    baseline = measure_baseline(ready.session, ready.lossless, _BASELINE)
    if baseline.alone.problems > ready.plan.handful.problems:  # otherwise it was judged already
        judge(ready.goal, baseline.alone.accuracy, baseline.numerical_churn, ready.session.progress)
    wanted = ready.goal.min_speed
    if wanted is not None:
        timed = _timed(ready)
        if timed.speeds.of(_fastest_sd(ready, timed.speeds)).low >= wanted:
            meter.mark()
            return _exported(ready, Found("lossless-suffices"), baseline, timed, meter)
    alone = ready.session.tuning.measure(ready.alone)
    meter.mark()
    objective = _objective(ready, baseline, alone)
    frozen, trials = _searched(ready, objective, alone)
    if isinstance(objective, MaxAccuracy) and not frozen:
        frontier, more = _searched(ready, ParetoFront(), alone)
        frozen, trials = frontier[-1:], trials + more
    meter.mark()
    found = _decided(ready, objective, frozen, baseline)
    found.trials = trials
    meter.mark()
    return _exported(ready, found, baseline, _timed(ready, found.chosen, found.opened), meter)


@dataclass
class Found:
    """`chosen` is what passed, or what is estimated where nothing did; None: the lossless rule. `opened` None:
    nothing was tested. `evidence` of the target alone is of lossless decoding."""

    outcome: Outcome
    chosen: Configuration | None = None
    opened: HoldoutAttempt | None = None
    evidence: dict[Configuration, Evidence] = field(default_factory=dict)
    trials: int = 0


def _exported(ready: Prepared, found: Found, baseline: Baseline, timed: Timed, meter: Meter) -> ThresholdProfile:
    """With what the timing says of the outcome."""
    sd = _fastest_sd(ready, timed.speeds)
    outcome, chosen = _timely(ready, found, timed.speeds, sd), found.chosen
    if chosen is None or (outcome == "lossless-suffices" and ready.alone in found.evidence):
        chosen = sd
    (found.opened or ready.session.tuning).measure(sd, _SD)
    ready.session.tuning.measure(sd, _SD)  # for its forecast
    for configuration in (ready.alone, chosen):
        ready.session.tuning.measure(configuration)
    single = ready.timer.single([ready.alone, sd, chosen], found.opened)
    return to_profile(
        Findings(
            ready, outcome, chosen, sd, baseline, timed, single, meter.steps, found.opened, found.evidence, found.trials
        )
    )


def _timely(ready: Prepared, found: Found, speeds: Speeds[Configuration], sd: Configuration) -> Outcome:
    """A setting that is slower than was asked for is no success; nor is a lossy one that may be no faster than `sd`,
    where `sd` does what was asked."""
    wanted = ready.goal.min_speed
    if found.chosen is None or found.outcome not in ("certified", "untested"):
        return found.outcome
    if speeds.ratio(found.chosen, sd).low <= 1 and _lossless_meets(ready, speeds.of(sd)):
        return "lossless-suffices"
    return found.outcome if wanted is None or speeds.of(found.chosen).value >= wanted else "too-slow"


def _lossless_meets(ready: Prepared, sd: Interval) -> bool:
    """Whether lossless decoding, at this speed, does what was asked, as far as that was to be shown."""
    goal = ready.goal
    if goal.min_speed is not None:
        return sd.value >= goal.min_speed
    return bool(_lossless_rung(ready)) if goal.acc == "absolute" else _asks_for_no_gain(ready)


def _asks_for_no_gain(ready: Prepared) -> bool:
    """Whether losing nothing is all that is asked for."""
    goal = ready.goal
    return goal.min_acc is not None and goal.min_acc <= 1 and goal.acc == "retention"


def _fastest_sd(ready: Prepared, speeds: Speeds[Configuration]) -> Configuration:
    return max(ready.sds, key=lambda sd: speeds.of(sd).value)


def _objective(ready: Prepared, baseline: Baseline, alone: Measurement) -> Objective:
    goal, problems = ready.goal, ready.session.holdout.problems
    if goal.min_acc is not None:
        level = ready.facts.level(goal.confidence)
        asked = f"keeping {goal.acc} {goal.min_acc:g}, {goal.guarantee}, {problems} at {level:.6g}"
        bar = bar_of(goal, problems, level, alone)
        return MaxSpeed(_chance(ready), asked, bar, ready.forecast.measured(baseline.lossless))
    return MaxAccuracy(goal.min_speed) if goal.min_speed is not None else ParetoFront()


def _chance(ready: Prepared) -> Chance:
    return chance_of(ready.goal, ready.session.holdout.problems, ready.facts.level(ready.goal.confidence))


def _searched(ready: Prepared, objective: Objective, alone: Measurement) -> tuple[list[Configuration], int]:
    """What is frozen, safest first, and how many trials that took. A study for each attempt and goal."""
    session, name = ready.session.tuning, study_name(ready, objective)
    searched = search(
        session,
        alone,
        ready.forecast,
        ready.space,
        objective,
        ready.config.study_storage,
        name,
        ready.config.trials,
        ready.session.progress,
    )
    for line in searched.skipped:
        ready.session.progress.note(line)
    for trial in searched.trials:  # in an earlier process or by another worker too: the curve shows them all
        session.measure(trial.configuration, trial.problems)
    frozen = freeze(searched, ready.space, session, alone, ready.forecast, objective)
    for configuration in frozen:  # what is worth a test is told by all of the part
        session.measure(configuration)
    record_recounts(searched, session, alone, ready.forecast, ready.config.study_storage, name)
    return frozen, len(searched.trials)


def _decided(ready: Prepared, objective: Objective, frozen: Sequence[Configuration], baseline: Baseline) -> Found:
    """Tests what is worth an attempt, and no more."""
    asked = [*_lossless_rung(ready), *_worth_testing(ready, objective, frozen, baseline)]
    if isinstance(objective, ParetoFront):
        return Found("front") if ready.goal.guarantee == "none" or not asked else _bounded(ready, _spread(ready, asked))
    if not asked:
        return _nothing_to_test(ready, objective, frozen, baseline)
    if ready.goal.guarantee == "none":
        return Found(*_named(ready, "untested", asked[-1]))
    return _tested(ready, asked)


def _nothing_to_test(
    ready: Prepared, objective: Objective, frozen: Sequence[Configuration], baseline: Baseline
) -> Found:
    if _asks_for_no_gain(ready) and not _faster(ready, frozen, baseline):
        return Found("lossless-suffices")
    return Found("too-slow" if isinstance(objective, MaxAccuracy) else "not-certified", next(iter(frozen), None))


def _tested(ready: Prepared, asked: Sequence[Configuration]) -> Found:
    opened = _opened(ready, asked)
    verdict = opened.decide()
    evidence = dict(zip(asked, verdict.tested, strict=False))
    if verdict.passed is None:
        return Found(*_named(ready, "not-certified", asked[0]), opened, evidence)
    best = ready.timer.fastest(_fastest(ready, asked[: verdict.passed + 1]))
    return Found(*_named(ready, "certified", best), opened, evidence)


def _fastest(ready: Prepared, passed: Sequence[Configuration]) -> list[Configuration]:
    """Of what is certified jointly those that may be the fastest by the clock, as rounds and their costs tell."""
    speeds = {c: ready.forecast.measured(ready.session.tuning.measure(c)) for c in passed if c != ready.alone}
    close = [c for c in speeds if speeds[c] >= _CLOSE * max(speeds.values())]
    return sorted(close, key=lambda c: -speeds[c])[:_CONTEST] or list(passed)


def _bounded(ready: Prepared, asked: Sequence[Configuration]) -> Found:
    opened = _opened(ready, asked)
    return Found("front", None, opened, dict(zip(asked, opened.bound_all(), strict=True)))


def _opened(ready: Prepared, asked: Sequence[Configuration]) -> HoldoutAttempt:
    """From here on the attempt is spent."""
    claim = claim_of(ready.goal, ready.session.holdout.problems)
    return ready.session.holdout.open(asked, ready.alone, claim, ready.goal.confidence, ready.facts.run)


def _named(ready: Prepared, outcome: Outcome, best: Configuration) -> tuple[Outcome, Configuration | None]:
    """Where lossless decoding is the best that was found, nothing fuzzy is chosen."""
    if best != ready.alone:
        return outcome, best
    return (outcome if outcome == "not-certified" else "lossless-suffices"), None


def _lossless_rung(ready: Prepared) -> list[Configuration]:
    """Where an accuracy by itself is asked for: the target alone, if it is as likely to pass as not. By tuning data,
    so that it may stand first in the sequence.

    `sd` has its law, so what holds of the target's texts holds of `sd`; of these very draws only where it is greedy.
    """
    goal = ready.goal
    others = goal.guarantee == "dataset" and not ready.session.decoder.sampling.greedy
    if goal.acc == "retention" or others or goal.min_acc is None:
        return []
    alone = ready.session.tuning.measure(ready.alone)
    return [ready.alone] if _chance(ready)(alone, alone) >= _EVEN else []


def _worth_testing(
    ready: Prepared, objective: Objective, frozen: Sequence[Configuration], baseline: Baseline
) -> list[Configuration]:
    """Those with a chance to be what was asked for; others would only spend an attempt."""
    if isinstance(objective, MaxSpeed):
        least = objective.wanted if ready.goal.guarantee == "none" else HOPELESS
        alone = ready.session.tuning.measure(ready.alone)
        faster = _faster(ready, frozen, baseline)
        return [c for c in faster if objective.chance(ready.session.tuning.measure(c), alone) >= least]
    if isinstance(objective, MaxAccuracy):
        return [c for c in frozen if ready.forecast.measured(ready.session.tuning.measure(c)) >= objective.wanted]
    return _faster(ready, frozen, baseline)


def _faster(ready: Prepared, frozen: Sequence[Configuration], baseline: Baseline) -> list[Configuration]:
    """Than lossless decoding, as far as rounds and their costs tell."""
    lossless = ready.forecast.measured(baseline.lossless)
    return [c for c in frozen if ready.forecast.measured(ready.session.tuning.measure(c)) > lossless]


def _spread(ready: Prepared, front: Sequence[Configuration]) -> list[Configuration]:
    """Few enough to be bounded together: first where users choose, spread in retention and speed."""
    alone, seen = ready.session.tuning.measure(ready.alone), [ready.session.tuning.measure(c) for c in front]
    spots = [FrontPoint(retention(m, alone), ready.forecast.measured(m)) for m in seen]
    return [front[i] for i in thin_out(spots, _FRONT, selectable_retention(alone.problems))]


def _timed(ready: Prepared, chosen: Configuration | None = None, opened: HoldoutAttempt | None = None) -> Timed:
    """The target alone, `sd` at the lengths that may be its best, and what was chosen."""
    return ready.timer.time([ready.alone, *ready.sds, *([chosen] if chosen else [])], opened)
