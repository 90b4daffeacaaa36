"""Export of a calibration's findings as a profile."""

from __future__ import annotations

import math
import platform
import statistics
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from fsd_calib.calibration.findings import Findings
from fsd_calib.calibration.guards import Guarded
from fsd_calib.calibration.ready import Ready
from fsd_calib.certification.certificate import Evidence
from fsd_calib.certification.harm import difference_of, harm_of, retention_interval
from fsd_calib.certification.holdout import HoldoutAttempt
from fsd_calib.engines.base import Engine
from fsd_calib.engines.beams import BeamEngine
from fsd_calib.measuring.measurement import Measurement, ends_in_loop
from fsd_calib.measuring.speed import Speeds
from fsd_common.addons import Addon, addon
from fsd_decoding.drafters.named import drafter_named
from fsd_decoding.judging.known import is_judge, model_named
from fsd_decoding.judging.model import JudgeModel
from fsd_decoding.profile.certificate import Certificate, GuardEstimate, OutcomeCounts
from fsd_decoding.profile.fields import CostInfo, CurvePoint, Effort, Speed, Work
from fsd_decoding.profile.following import share_of_threshold
from fsd_decoding.profile.parts import (
    AcceptanceInfo,
    Accuracy,
    BeamsInfo,
    DataInfo,
    Estimate,
    KeptScoresInfo,
    Lengths,
    Repetition,
    SamplingInfo,
    TokensPerRound,
    Truncation,
)
from fsd_decoding.profile.setting import Setting
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.scores import SCORES_VERSION

_PACKAGES = ("fsd-calib", "torch", "transformers", "optuna")


def to_profile(findings: Findings) -> ThresholdProfile:
    """Returns the profile, with a threshold only where the goal was met, or its test waived."""
    ready, chosen = findings.prepared, findings.chosen
    engine = ready.session.engine_of(findings.followed)
    pair, decoding = engine.pair, engine.decoding
    fuzzy = findings.measured(chosen)
    grades = findings.paired(fuzzy)
    return ThresholdProfile(
        created=ready.facts.started,
        outcome=findings.outcome,
        task=ready.session.task.name,
        prompt=ready.session.task.prompt,
        data=data_of(ready),
        target=pair.target,
        draft=pair.draft,
        tokenizer=pair.tokenizer,
        rule=chosen.rule if chosen.threshold is not None else ready.space.rules[0],
        score=chosen.score,
        scores_version=SCORES_VERSION,
        logits=decoding.on, within_support=decoding.within_support,
        threshold=chosen.threshold if findings.lossy else None,
        policy=chosen.policy,
        draft_length=chosen.draft_length,
        tree=chosen.tree,
        beams=_beams(engine, chosen),
        lossless=findings.exported(findings.rival),
        sampling=SamplingInfo.model_validate(decoding.sampling, from_attributes=True),
        seed=decoding.seed,
        seeds=ready.session.decode.seeds,
        lossy=findings.lossy,
        curve=list(_curve(findings)),
        certificate=certificate_of(findings),
        guards=tuple(_guard(each, ready.goal.confidence) for each in findings.guarded),
        accuracy=Accuracy(target=grades.target_accuracy, chosen=grades.accuracy),
        tokens_per_round=TokensPerRound(
            lossless=findings.measured(findings.rival).tokens_per_round, chosen=fuzzy.tokens_per_round
        ),
        speed=_speed(findings),
        estimate=_estimate(findings, fuzzy),
        costs=CostInfo(**asdict(ready.costs_of(findings.followed)), batch=ready.goal.serve_batch),
        numerical_churn=findings.baseline.numerical_churn,
        truncation=truncation_of(findings, fuzzy),
        lengths=lengths_of(findings, fuzzy),
        repetition=repetition_of(findings, fuzzy),
        acceptance=_acceptance(fuzzy) if findings.lossy else None,  # of what decoders of the profile run
        kept_scores=_kept_scores(fuzzy, findings.followed.threshold) if findings.lossy and not engine.info else None,
        other_drafts=tuple(
            other.pair.draft for other in ready.session.drafts.values() if other is not engine
        ),
        addons=_addons(findings),
        judge=_judge(findings),
        early_stop=ready.early_stop,
        stop_policy=engine.stop_policy,
        effort=effort_of(findings),
        compile=None if engine.info else ready.facts.timings.compile,
        engine=engine.info,
        device=engine.device,
        dtype=engine.dtype,
        versions={"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
    ).sealed()  # fmt: skip


def _beams(engine: Engine, chosen: Setting) -> BeamsInfo | None:
    if not isinstance(engine, BeamEngine):
        return None
    assert chosen.width is not None
    own = engine.beams
    return BeamsInfo(number=own.number, width=chosen.width, answer=own.answer, replacement=own.replacement)


def _addons(findings: Findings) -> tuple[Addon, ...]:
    session = findings.prepared.session
    measured = (measurement.setting for part in findings.parts for measurement in part.measured())
    drafts = (engine.pair.draft for engine in session.drafts.values() or [session.engine])
    found = [each for setting in measured for each in setting.addons]
    found += [drafter_named(draft.id).addon for draft in drafts if draft.kind == "addon"]
    ending = None if session.engine.stop_policy is None else addon("stop policy", session.engine.stop_policy)
    return tuple(dict.fromkeys([*found, *([] if ending is None else [ending])]))


def _judge(findings: Findings) -> JudgeModel | None:
    """The judge among the scores that were measured; there is at most one."""
    measured = (measurement.setting.score for part in findings.parts for measurement in part.measured())
    return next((model_named(score) for score in measured if is_judge(score)), None)


def data_of(ready: Ready) -> DataInfo:
    """The problems."""
    by_source = any(problem.part is not None for problem in ready.session.task.problems)
    return DataInfo(
        source=ready.session.task.source,
        fingerprint=ready.session.task.fingerprint,
        split="given" if by_source else "content-hash",
        tuning=len(ready.session.tuning.problems),
        certification=ready.session.holdout.problems,
    )


def certificate_of(findings: Findings) -> Certificate:
    """What was tested, without counts where nothing was decoded on the certification part."""
    goal, opened, (evidence, lossless) = findings.ready.goal, findings.opened, findings.certifying
    shown = {} if evidence is None else {
        "retention": evidence.paired.retention if evidence.paired.target.any() else None,
        "lower_bound": evidence.printed.retention,
        "accuracy": evidence.paired.accuracy,
        "accuracy_lower_bound": evidence.printed.accuracy,
        "problems": evidence.paired.problems,
        "groups": None if evidence.paired.groups is None else len(evidence.paired.unit_sizes),
        "lossless": lossless,
        "given_passing": evidence.given_passing is not None,
        "counts": evidence.outcomes,
        **({} if lossless or opened is None else _harm_and_difference(evidence, opened)),
    }  # fmt: skip
    nothing = {"retention": None, "lower_bound": None, "problems": 0, "counts": OutcomeCounts(0, 0, 0, 0)}
    return Certificate.model_validate(
        {
            **nothing, **shown, "certified": findings.certified, "wanted": goal.min_acc, "acc": goal.acc,
            "confidence": goal.confidence, "guarantee": "none" if goal.explore else goal.guarantee,
            "seeds": findings.ready.session.decode.seeds,
            "method": _method(findings),
            "attempt": opened.attempt.number if opened else None,
            "delta": opened.delta if opened else None,
            "frozen": len(opened.frozen) if opened else None,
            "history": opened.history if opened else None,
            "dropped": opened.claim.all_dropped if opened else 0,
            "looks": opened.claim.looks.problems if opened and opened.claim.looks else (),
            "extends": opened.extends if opened else (),
        }
    )  # fmt: skip


def _guard(guarded: Guarded, confidence: float) -> GuardEstimate:
    paired, task = guarded.paired, guarded.task
    return GuardEstimate(
        task=task.name, source=task.source, problems=paired.problems, counts=paired.outcomes, seeds=paired.seeds,
        retention=paired.retention if paired.target.any() else None, interval=retention_interval(paired, confidence),
        confidence=confidence,
    )  # fmt: skip


def _harm_and_difference(evidence: Evidence, opened: HoldoutAttempt) -> dict[str, Any]:
    """Fields of `Certificate`.

    The difference has no interval where the claim is about the very problems that were decoded, as none is needed.
    """
    paired, claim, given = evidence.paired, opened.claim, evidence.given_passing
    harm = harm_of(paired, claim, opened.delta)
    difference, *ends = difference_of(paired, evidence.two_sided, claim)
    sample = claim.guarantee == "population"
    return {
        "harm": harm.rate if harm else None,
        "harm_upper_bound": None if harm is None else harm.at_most if given is None else given.harm,
        "difference": difference,
        "difference_interval": given.difference if given else ends if sample else None,
    }


def truncation_of(findings: Findings, chosen: Measurement) -> Truncation:
    """How many texts reached the limit on new tokens."""
    limit = findings.ready.session.task.max_new_tokens
    limits = [limit if problem.room is None else problem.room for problem in findings.problems(chosen)]
    target, fuzzy = (
        sum(decoding.tokens >= most for seeds, most in zip(m.decodings, limits, strict=True) for decoding in seeds)
        for m in (findings.alone(chosen), chosen)
    )
    return Truncation(max_new_tokens=limit, texts=chosen.correct.size, target=target, chosen=fuzzy)


def lengths_of(findings: Findings, chosen: Measurement) -> Lengths:
    """How long texts are."""
    return Lengths(target=_mean_length(findings.alone(chosen)), chosen=_mean_length(chosen))


def repetition_of(findings: Findings, chosen: Measurement) -> Repetition:
    """How many texts end in a loop."""
    texts = chosen.correct.size
    return Repetition(texts=texts, target=_loops(findings.alone(chosen)), chosen=_loops(chosen))


def _mean_length(of: Measurement) -> float:
    return of.tokens / of.correct.size


def _loops(of: Measurement) -> int:
    return sum(ends_in_loop(decoding.text) for seeds in of.decodings for decoding in seeds)


def _method(findings: Findings) -> str:
    if findings.opened is None:
        return "not tested"
    if findings.outcome == "front":
        return "simultaneous bounds (Bonferroni)"
    evidence, _ = findings.certifying
    return findings.opened.claim.method_on(evidence.paired if evidence else None)


def _speed(findings: Findings) -> Speed:
    goal, timed, single = findings.ready.goal, findings.timed, findings.single
    load = {} if timed.load is None else {"load": timed.load.average, "cores": timed.load.cores}
    return Speed.model_validate(
        {
            **_figures(findings, timed.speeds), **load, "threads": timed.threads, "batch": goal.serve_batch,
            "wanted": goal.min_speed, "part": timed.part, "processes": timed.speeds.processes,
            "forecast": _forecasts(findings),
            "single": None if single is None else _figures(findings, single),
        }
    )  # fmt: skip


def _forecasts(findings: Findings) -> dict[str, float]:
    """Fields of `Forecasts`."""
    settings = {"target": findings.ready.alone, "lossless": findings.rival, "chosen": findings.chosen}
    return {name: findings.ready.timer.forecast_of(setting) for name, setting in settings.items()}


def _figures(findings: Findings, speeds: Speeds[Setting]) -> dict[str, Any]:
    return speed_figures(speeds, findings.ready.alone, findings.rival, findings.chosen, findings.ready.goal.confidence)


def speed_figures(
    speeds: Speeds[Setting], alone: Setting, rival: Setting, chosen: Setting, confidence: float
) -> dict[str, Any]:
    """Returns fields of `SpeedFigures`, without intervals where too little was timed for any of them."""
    settings = {"target": alone, "lossless": rival, "chosen": chosen}
    found = {name: speeds.of(setting) for name, setting in settings.items()}
    figures: dict[str, Any] = {name: speed.value for name, speed in found.items()} | {"timed": speeds.problems}
    if not speeds.timed:
        return figures
    ratios = {"over_lossless": speeds.ratio(chosen, rival), "over_target": speeds.ratio(chosen, alone)}
    figures |= {"clock": speeds.clock, "ratios": {name: ratio.value for name, ratio in ratios.items()}}
    figures["answer"] = {name: speeds.answer_seconds(setting) for name, setting in settings.items()}
    found |= ratios
    if not all(interval.bounded for interval in found.values()):
        return figures
    return figures | {"intervals": {**{n: (i.low, i.high) for n, i in found.items()}, "confidence": confidence}}


def _estimate(findings: Findings, fuzzy: Measurement) -> Estimate | None:
    if findings.lossy or findings.chosen.threshold is None:
        return None
    evidence = findings.evidence.get(findings.chosen)
    return Estimate(
        threshold=findings.chosen.threshold,
        retention=findings.paired(fuzzy).retention,
        lower_bound=evidence.printed.retention if evidence else None,
        draft=findings.exported(findings.chosen).draft,
    )


def _acceptance(fuzzy: Measurement) -> AcceptanceInfo | None:
    """The acceptance rates of one text per problem, as texts of several seeds are not independent; None: no drafts."""
    shares = [first.accepted / first.drafted for first, *_ in fuzzy.decodings if first.drafted]
    if not shares:
        return None
    return AcceptanceInfo(texts=len(shares), mean=statistics.fmean(shares), deviation=statistics.pstdev(shares))


def _kept_scores(fuzzy: Measurement, threshold: float | None) -> KeptScoresInfo | None:
    """How near to T the scores of the same texts come; None: no T keeps a token."""
    if threshold is None or threshold <= 0:
        return None
    kept = [first.largest_kept for first, *_ in fuzzy.decodings if first.drafted]
    shares = [share_of_threshold((largest, math.inf), threshold) for largest in kept]
    if not shares:
        return None
    return KeptScoresInfo(texts=len(shares), mean=statistics.fmean(shares), deviation=statistics.pstdev(shares))


def effort_of(findings: Findings) -> Effort:
    """What was decoded."""
    work = {step.name: step.work or Work() for step in findings.steps}
    counted = {name: work.get(name, Work()) for name in ("baseline", "search", "certification")}
    return Effort(**counted, trials=len(findings.trials))


def _curve(findings: Findings) -> Iterator[CurvePoint]:
    """Every setting on every part it was decoded on, compared with the target on the same problems."""
    for part in findings.parts:
        for measured in sorted(part.measured(), key=lambda m: _order(m.setting)):
            yield curve_point(findings, measured, findings.ready.timer.forecast_of(measured.setting))


def _order(s: Setting) -> tuple[str, str, str, str, str, int, int, float]:
    tree, policy = "" if s.tree is None else s.tree.text, "" if s.policy is None else s.policy.identity
    return (
        s.draft or "",
        tree,
        s.rule,
        s.score,
        policy,
        s.width or 0,
        s.draft_length,
        -1.0 if s.threshold is None else s.threshold,
    )


def curve_point(findings: Findings, measured: Measurement, forecast: float | None) -> CurvePoint:
    """Returns what was measured of a setting, in the form that profiles hold. `forecast`: tokens/s of one stream."""
    setting, paired = measured.setting, findings.paired(measured)
    tested = None
    if setting.threshold is not None and measured.part == "certification":
        tested = findings.evidence.get(setting)
    return CurvePoint(
        setting=findings.exported(setting),
        source=measured.part,
        problems=paired.problems,
        seeds=paired.seeds,
        counts=paired.outcomes,
        accuracy=paired.accuracy,
        retention=paired.retention if paired.target.any() else 0.0,
        interval=retention_interval(paired, tested.two_sided if tested else findings.ready.goal.confidence),
        lower_bound=tested.printed.retention if tested else None,
        simultaneous=tested is not None and findings.outcome == "front",
        tokens_per_round=measured.tokens_per_round,
        accepted=measured.accepted / measured.drafted if measured.drafted else None,
        forecast=forecast,
    )
