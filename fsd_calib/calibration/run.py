"""Run of a prepared calibration: search, freeze, test and time, by the kind of goal."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from fsd_calib.calibration.baseline import (
    COMPARED,
    COUNTED,
    Baseline,
    check_numerical_floor,
    measure_baseline,
    note_numerical_churn,
)
from fsd_calib.calibration.findings import Findings
from fsd_calib.calibration.guards import Guarded, measure_guards
from fsd_calib.calibration.plan import stages_of
from fsd_calib.calibration.ready import Ready
from fsd_calib.calibration.timing import Timed
from fsd_calib.certification.certificate import Evidence
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.holdout import HoldoutAttempt
from fsd_calib.certification.outcomes import Paired
from fsd_calib.certification.power import independent_worth, power
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.measuring.speed import Speeds
from fsd_calib.options.goal import Goal
from fsd_calib.report.record import Step
from fsd_calib.search.max_accuracy import MaxAccuracy
from fsd_calib.search.max_speed import Chance, MaxSpeed
from fsd_calib.search.objective import FinishedTrial, Objective, retention
from fsd_calib.search.pareto import FrontPoint, ParetoFront, selectable_retention, thin_out
from fsd_calib.search.study_storage import agreed
from fsd_calib.search.surrogate import PassModel
from fsd_calib.search.trials import freeze, record_recounts, search
from fsd_common.formatting import percent
from fsd_common.progress.base import ProgressEstimate
from fsd_decoding.profile.fields import CERTIFIED, Outcome, Work, follows, timed_outcome
from fsd_decoding.profile.setting import Setting


def best_so_far(trials: Sequence[FinishedTrial], lossless: float, front: bool) -> str:
    """Returns the setting that the search would choose now, with what is known of it.

    Args:
        lossless: forecast tokens/s of lossless decoding.
        front: whether many settings are searched for, none of which is the best.
    """
    feasible = [trial for trial in trials if trial.feasible]
    if front or not feasible:
        tried = f"settings tried: {len(trials)}"
        return tried if front or not trials else f"{tried}, none likely to meet the goal"
    best = max(feasible, key=lambda trial: trial.value)
    faster = best.tokens_per_second / lossless
    return f"best: retention {percent(best.retention)}, about {faster:.2f}x lossless, {best.setting}"


def decided(outcome: Outcome, chosen: Setting | None) -> str:
    """Returns what the test decided, before the clock says what is known of speed."""
    tested = "certified" if outcome in CERTIFIED else outcome
    return f"{tested}, before timing{'' if chosen is None else f': {chosen}'}"


_MAX_LENGTH = 200  # characters of the words: databases keep 512 of a name


def study_name(ready: Ready, objective: Objective) -> str:
    """Returns a name made of everything that the values of a trial depend on, so such processes share the study.

    Beside the run's name these are the level of its attempt, on which chances of passing depend, and the costs of a
    round, on which forecasts and the early stop depend, and the scores that traces speak for.
    """
    facts = [
        ready.facts.name,
        ready.session.identity,
        type(objective).__name__,
        objective.description,
        *ready.facts.timings.costs,
        *ready.space.scores,
    ]
    digest = hashlib.sha256(" ".join(map(str, facts)).encode()).hexdigest()[:8]
    words = ", ".join([ready.session.task.name, ready.session.models, _goal(ready.goal, objective)])
    return f"{words[:_MAX_LENGTH]}, {digest}"


def _goal(goal: Goal, objective: Objective) -> str:
    if goal.min_acc is not None:
        return f"keep {goal.acc} {goal.min_acc:g}"
    if goal.min_speed is None or isinstance(objective, ParetoFront):
        return "the front"
    return f"reach {goal.min_speed:g} tokens/s"


_CLOSE, _CONTEST = 0.93, 3  # share of the best forecast, and number of settings, that are timed to find the fastest
_FRONT = 8  # points bounded together at most: six, and two in reserve that certification problems may show dominated
HOPELESS, _EVEN = 0.02, 0.5  # probabilities of passing: below the first a test is not worth it


@dataclass
class Meter:
    """Times each stage, counts what was decoded and reused in it, and tells the outlook where the calibration is."""

    ready: Ready
    outlook: ProgressEstimate
    stage: str = "baseline"
    steps: list[Step] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def begin(self, stage: str) -> None:
        """Ends the current stage and begins another."""
        self.end()
        self.stage = stage
        self.outlook.begin(stage)

    def end(self) -> None:
        """Ends the current stage."""
        before = sum((step.work for step in self.steps if step.work is not None), Work())
        total, now = self.ready.session.decode.work, time.monotonic()
        work = Work(**{n: getattr(total, n) - getattr(before, n) for n in Work.model_fields})
        self.steps.append(Step(name=self.stage, seconds=now - self.began, work=work))
        self.began = now


def find(ready: Ready, outlook: ProgressEstimate) -> Findings:
    """Returns what the long work found. The certification part is decoded only after candidates are frozen."""
    outlook.expect(stages_of(ready.plan.steps), ready.session.decode.count)
    outlook.begin("baseline")
    meter = Meter(ready, outlook)
    baseline = measure_baseline(ready.session, ready.lossless, COMPARED)
    note_numerical_churn(baseline.numerical_churn, ready.session.progress)
    if baseline.alone.problems > ready.plan.pilot.problems:  # otherwise it was judged already
        check_numerical_floor(ready.goal, baseline.alone.accuracy, baseline.numerical_churn, ready.session.progress)
    wanted = ready.goal.min_speed
    if wanted is not None:
        timed = ready.timer.time([ready.alone, ready.rival])
        if timed.speeds.of(ready.rival).low >= wanted:
            meter.begin("timing")
            return _export(ready, Decision("lossless"), baseline, timed, meter)
    alone = ready.session.tuning.measure(ready.alone)
    meter.begin("search")
    objective = _objective(ready, baseline, alone)
    if ready.fixed:
        return _certify_fixed(ready, objective, baseline, meter)
    lossless = ready.forecast.measured(baseline.lossless)
    frozen, trials = _search(ready, objective, alone, lossless, outlook)
    if isinstance(objective, MaxAccuracy) and not frozen:
        front, more = _search(ready, ParetoFront(), alone, lossless, outlook)
        frozen, trials = front[-1:], [*trials, *more]
    meter.begin("certification")
    decision = _decide(ready, objective, frozen, baseline)
    decision.trials = trials
    outlook.best = decided(decision.outcome, decision.chosen)
    return _time(ready, decision, baseline, meter)


def _certify_fixed(ready: Ready, objective: Objective, baseline: Baseline, meter: Meter) -> Findings:
    """Returns what was found of settings, chosen elsewhere, that are tested without a search."""
    for setting in ready.fixed:
        ready.session.tuning.measure(setting)  # whether a test is worth an attempt, and how fast it is
    meter.begin("certification")
    decision = _decide(ready, objective, ready.fixed, baseline)
    meter.outlook.best = decided(decision.outcome, decision.chosen)
    return _time(ready, decision, baseline, meter)


@dataclass
class Decision:
    """What search and test came to.

    Attributes:
        outcome: before the clock decides: of what passed its test `certified-speed-unknown`.
        chosen: what passed, else what is given as an estimate; None: the lossless rule.
        opened: the certification part; None: nothing was tested.
        evidence: by tested setting; of the target alone it is evidence on lossless decoding.
        trials: of the search.
    """

    outcome: Outcome
    chosen: Setting | None = None
    opened: HoldoutAttempt | None = None
    evidence: dict[Setting, Evidence] = field(default_factory=dict)
    trials: Sequence[FinishedTrial] = ()


def _time(ready: Ready, decision: Decision, baseline: Baseline, meter: Meter) -> Findings:
    """Times the target alone, the lossless rival and the chosen setting, and returns the findings."""
    meter.begin("timing")
    compared = [ready.alone, ready.rival, *([decision.chosen] if decision.chosen else [])]
    timed = ready.timer.time(compared, decision.opened)
    return _export(ready, decision, baseline, timed, meter)


def _export(ready: Ready, decision: Decision, baseline: Baseline, timed: Timed, meter: Meter) -> Findings:
    """Returns the findings, with the outcome that follows from the timing."""
    rival = ready.rival
    outcome, chosen = _timed_outcome(ready, decision, timed.speeds), decision.chosen or rival
    certified = decision.outcome in CERTIFIED
    over_lossless = timed.speeds.ratio(chosen, rival)
    ends = (over_lossless.low, over_lossless.high) if timed.speeds.timed else (0.0, math.inf)
    followed = follows(outcome, ends, certified=certified, lossless_meets=_lossless_meets(ready))
    if rival != ready.alone:  # for its tokens per round, and its forecast
        (decision.opened or ready.session.tuning).measure(rival, COUNTED)
        ready.session.tuning.measure(rival, COUNTED)
    for setting in (ready.alone, chosen):
        ready.session.tuning.measure(setting)
    single = ready.timer.time_single([*dict.fromkeys((ready.alone, rival, chosen))], decision.opened)
    guarded = _guarded(ready, chosen, meter)
    meter.end()
    return Findings(
        ready, outcome, certified, chosen, rival, chosen if followed else rival, baseline, timed, single, meter.steps,
        decision.opened, decision.evidence, decision.trials, guarded,
    )  # fmt: skip


def _guarded(ready: Ready, chosen: Setting, meter: Meter) -> tuple[Guarded, ...]:
    session = ready.session
    if session.guards and chosen.threshold is None:
        session.progress.note("the guards were not decoded: nothing lossy was chosen")
    elif session.guards:
        meter.begin("guards")
        return measure_guards(session, chosen, ready.alone)
    return ()


def _timed_outcome(ready: Ready, decision: Decision, speeds: Speeds[Setting]) -> Outcome:
    """Returns the outcome after timing, which shows of a setting that would be followed how fast it is, if anything."""
    if decision.chosen is None or not speeds.timed:
        return decision.outcome
    over_lossless, own = speeds.ratio(decision.chosen, ready.rival), speeds.of(decision.chosen)
    intervals = (over_lossless.low, over_lossless.high), (own.low, own.high)
    return timed_outcome(decision.outcome, *intervals, ready.goal.min_speed)


def _lossless_meets(ready: Ready) -> bool:
    """Returns whether lossless decoding meets the goal, as far as that was to be shown, where it is the faster."""
    if ready.goal.min_speed is not None:
        return True
    return bool(_lossless_rung(ready)) if ready.goal.acc == "absolute" else _needs_no_gain(ready)


def _needs_no_gain(ready: Ready) -> bool:
    """Returns whether the goal is a retention that is met by losing nothing."""
    goal = ready.goal
    return goal.min_acc is not None and goal.min_acc <= 1 and goal.acc == "retention"


def _objective(ready: Ready, baseline: Baseline, alone: Measurement) -> Objective:
    goal, problems = ready.goal, ready.session.holdout.problems
    if goal.min_acc is not None:
        plan = ready.plan
        words = f"keeping {goal.acc} {goal.min_acc:g}, {goal.guarantee}, {problems} at {plan.delta:.6g}"
        bar = pass_model_of(plan.claim, plan.delta, alone, plan.pilot.worth)
        return MaxSpeed(_chance(ready), words, bar, ready.forecast.measured(baseline.lossless))
    return MaxAccuracy(goal.min_speed) if goal.min_speed is not None else ParetoFront()


def _chance(ready: Ready) -> Chance:
    return chance_of(ready.plan.claim, ready.plan.delta)


def _search(
    ready: Ready, objective: Objective, alone: Measurement, lossless: float, outlook: ProgressEstimate
) -> tuple[list[Setting], Sequence[FinishedTrial]]:
    """Returns the frozen candidates, the safest first, and the trials. Each attempt and goal has a study.

    Args:
        lossless: forecast tokens/s of lossless decoding.
    """
    session, name = ready.session.tuning, study_name(ready, objective)

    def seen(trials: Sequence[FinishedTrial]) -> None:
        outlook.best = best_so_far(trials, lossless, isinstance(objective, ParetoFront))

    searched = search(
        session, alone, ready.forecast, ready.space, objective, ready.config.study_storage, name, ready.config.trials,
        ready.session.progress, seen,
    )  # fmt: skip
    if searched.untried:
        ready.session.progress.note(searched.untried)
    for trial in searched.trials:  # in an earlier process or by another worker too: the curve shows them all
        session.measure(trial.setting, trial.problems)
    own = freeze(searched, ready.space, session, alone, ready.forecast, objective)
    frozen = _agreed(ready, name, f"frozen after at most {ready.config.trials} trials", own)
    for setting in frozen:  # whether a test is worth it is judged by the whole part
        session.measure(setting)
    record_recounts(searched, session, alone, ready.forecast, ready.config.study_storage, name)
    return frozen, searched.trials


def _agreed(ready: Ready, study: str, key: str, own: Sequence[Setting]) -> list[Setting]:
    """Returns what the first process of the study chose, which is this one's choice where that is the first."""
    recorded = agreed(ready.config.study_storage, study, key, [setting.values for setting in own])
    return [Setting.of(values) for values in recorded]


def _decide(ready: Ready, objective: Objective, frozen: Sequence[Setting], baseline: Baseline) -> Decision:
    """Tests the rungs that are worth an attempt, if any, and decides."""
    if ready.session.holdout.extension is not None:
        return _test(ready, objective, frozen)
    rungs = [*_lossless_rung(ready), *_worth_testing(ready, objective, frozen, baseline)]
    if ready.goal.explore:
        return _explored(ready, objective, rungs, frozen)
    if isinstance(objective, ParetoFront):
        return _bound_front(ready, _spread(ready, rungs)) if rungs else Decision("front")
    return _test(ready, objective, rungs) if rungs else _nothing_to_test(ready, objective, frozen, baseline)


def _explored(ready: Ready, objective: Objective, rungs: Sequence[Setting], frozen: Sequence[Setting]) -> Decision:
    """Returns the setting that is estimated: the fastest that will probably pass, else the one nearest to the goal."""
    if isinstance(objective, ParetoFront):
        return Decision("front")
    chosen = next((c for c in [*reversed(rungs), *frozen] if c != ready.alone), None)
    return Decision("not-certified" if chosen is None else "untested", chosen)


def _nothing_to_test(ready: Ready, objective: Objective, frozen: Sequence[Setting], baseline: Baseline) -> Decision:
    if _needs_no_gain(ready) and not _faster(ready, frozen, baseline):
        return Decision("lossless")
    return Decision("too-slow" if isinstance(objective, MaxAccuracy) else "not-certified", next(iter(frozen), None))


def _test(ready: Ready, objective: Objective, rungs: Sequence[Setting]) -> Decision:
    opened = _open_holdout(ready, rungs)
    verdict = opened.decide(ready.session.progress)
    evidence = dict(zip(rungs, verdict.tested, strict=False))
    if verdict.passed is None:
        return Decision(*_outcome(ready, "not-certified", rungs[0]), opened, evidence)
    passed = rungs[: verdict.passed + 1]
    best = passed[-1] if len(passed) == 1 else _agreed_fastest(ready, objective, opened, passed)
    return Decision(*_outcome(ready, "certified-speed-unknown", best), opened, evidence)


def _agreed_fastest(ready: Ready, objective: Objective, opened: HoldoutAttempt, passed: Sequence[Setting]) -> Setting:
    """Returns the fastest of the certified settings by the clock of the first process that timed them so."""
    own = ready.timer.fastest(_fastest(ready, passed))
    key = f"fastest of attempt {opened.attempt.number}, timing {ready.timer.way}"
    (first,) = _agreed(ready, study_name(ready, objective), key, [own])
    return first if first in passed else own  # a process with another ledger may have certified others


def _fastest(ready: Ready, passed: Sequence[Setting]) -> list[Setting]:
    """Returns those of the jointly certified settings that may be the fastest, by their forecasts."""
    speeds = {c: ready.forecast.measured(ready.session.tuning.measure(c)) for c in passed if c != ready.alone}
    close = [c for c in speeds if speeds[c] >= _CLOSE * max(speeds.values())]
    return sorted(close, key=lambda c: -speeds[c])[:_CONTEST] or list(passed)


def _bound_front(ready: Ready, points: Sequence[Setting]) -> Decision:
    opened = _open_holdout(ready, points)
    return Decision("front", None, opened, dict(zip(points, opened.bound_all(ready.session.progress), strict=True)))


def _open_holdout(ready: Ready, frozen: Sequence[Setting]) -> HoldoutAttempt:
    """Opens the certification part for these; the attempt is spent from here on."""
    holdout = ready.session.holdout
    opened = holdout.open(frozen, ready.alone, ready.plan.claim, ready.goal.confidence, ready.facts.run)
    if opened.dropped is not None:
        ready.session.progress.note(str(opened.dropped))
    return opened


def _outcome(ready: Ready, outcome: Outcome, best: Setting) -> tuple[Outcome, Setting | None]:
    """Returns outcome and choice; where lossless decoding is the best, nothing fuzzy is chosen."""
    if best != ready.alone:
        return outcome, best
    return (outcome if outcome == "not-certified" else "lossless"), None


def _lossless_rung(ready: Ready) -> list[Setting]:
    """Returns the target alone as the first rung, where an absolute accuracy is requested that it probably has.

    That is judged by tuning data, so that it may come first in the sequence. Lossless rules emit the target's
    distribution, so what is shown of the target holds for them; of the very texts of a data set only where
    decoding is greedy.
    """
    goal = ready.goal
    other_texts = goal.guarantee == "dataset" and not ready.session.engine.decoding.sampling.greedy
    if goal.acc == "retention" or other_texts or goal.min_acc is None:
        return []
    alone = ready.session.tuning.measure(ready.alone)
    return [ready.alone] if _chance(ready)(alone, alone) >= _EVEN else []


def _worth_testing(ready: Ready, objective: Objective, frozen: Sequence[Setting], baseline: Baseline) -> list[Setting]:
    """Returns the candidates with a chance to meet the goal; others would only spend an attempt."""
    if isinstance(objective, MaxSpeed):
        least = objective.wanted if ready.goal.explore else HOPELESS
        alone = ready.session.tuning.measure(ready.alone)
        faster = frozen if ready.fixed else _faster(ready, frozen, baseline)  # a fixed one was asked for
        return [c for c in faster if objective.chance(ready.session.tuning.measure(c), alone) >= least]
    if isinstance(objective, MaxAccuracy):
        return [c for c in frozen if ready.forecast.measured(ready.session.tuning.measure(c)) >= objective.wanted]
    return _faster(ready, frozen, baseline)


def _faster(ready: Ready, frozen: Sequence[Setting], baseline: Baseline) -> list[Setting]:
    """Returns the candidates that are faster than lossless decoding by their forecasts."""
    lossless = ready.forecast.measured(baseline.lossless)
    return [c for c in frozen if ready.forecast.measured(ready.session.tuning.measure(c)) > lossless]


def _spread(ready: Ready, front: Sequence[Setting]) -> list[Setting]:
    """Returns few enough points to be bounded together, spread in retention and speed, where users choose first."""
    alone, measured = ready.session.tuning.measure(ready.alone), [ready.session.tuning.measure(c) for c in front]
    spots = [FrontPoint(retention(m, alone), ready.forecast.measured(m)) for m in measured]
    return [front[i] for i in thin_out(spots, _FRONT, selectable_retention(alone.problems))]


_HALF = 0.5  # the level where every problem is decoded or nothing is tested: the mean decides, without a margin


def chance_of(claim: Claim, delta: float) -> Chance:
    """Returns the probability that a claim passes a test of size `delta`, as a function."""
    wanted, problems, size = claim.wanted, claim.problems, _size(claim, delta)
    assert wanted is not None
    assert problems is not None

    def chance(fuzzy: Measurement, alone: Measurement) -> float:
        tested = claim.judged(Paired.of(alone, fuzzy))
        once = power(
            problems=max(round(problems * independent_worth(tested, wanted)), 1), accuracy=tested.target_accuracy,
            churn=tested.churn, retention=tested.retention, wanted=wanted, delta=size,
        )  # fmt: skip
        return claim.chance(once, size)

    return chance


def pass_model_of(claim: Claim, delta: float, alone: Measurement, worth: float = 1) -> PassModel:
    """Returns the bar that unmeasured settings must clear: `chance_of` in normal approximation, by the last look.

    Args:
        alone: the target on the tuning part.
        worth: independent problems that one in a group counts as.
    """
    assert claim.wanted is not None
    assert claim.problems is not None
    tuning, certification = (max(round(worth * each), 1) for each in (alone.problems, claim.problems))
    level = claim.level(claim.problems, _size(claim, delta))
    return PassModel(claim.wanted, alone.accuracy, tuning, certification, level, claim.acc == "absolute")


def _size(claim: Claim, delta: float) -> float:
    return delta if claim.guarantee == "population" else _HALF
