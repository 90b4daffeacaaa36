"""Export of what a calibration's pages show beyond its profile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from fsd_calib.calibration.draft_alone import measure_draft_alone
from fsd_calib.calibration.findings import Findings
from fsd_calib.calibration.told_sources import sources_of
from fsd_calib.certification.harm import retention_interval
from fsd_calib.engines.configuration import Configuration
from fsd_calib.measuring.measurement import Decoding
from fsd_calib.report.record import (
    Answer,
    Differences,
    Differing,
    GoalInfo,
    Measured,
    Replayed,
    Rung,
    RunRecord,
    Scale,
    Step,
    Token,
    Trial,
)
from fsd_calib.search.space import logit
from fsd_calib.tasks.base import Problem
from fsd_decoding.profile.parts import Counts
from fsd_decoding.profile.threshold_profile import ThresholdProfile

_SHARES = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.965, 0.98, 0.99, 0.995, 0.999)
_SHOWN = 24  # differing problems
_LONGEST = 8000  # characters of a text
_CUT = "\n[… cut here]"


def to_record(findings: Findings, profile: ThresholdProfile) -> RunRecord:
    """Returns the record of the run that found this profile, which has a digest."""
    assert profile.digest is not None
    return RunRecord(
        profile=profile.digest,
        goal=GoalInfo(**dict(findings.ready.goal)),
        measured=tuple(_measured(findings)),
        draft_alone=measure_draft_alone(findings),
        trials=tuple(_trials(findings)),
        rungs=tuple(_rungs(findings)),
        steps=(Step(name="preparation", seconds=findings.ready.seconds), *findings.steps),
        scales=tuple(_scales(findings)),
        replayed=tuple(_replayed(findings)),
        differences=_differences(findings),
    )


def _setting(configuration: Configuration) -> dict[str, Any]:
    """Fields of `Setting`."""
    return asdict(configuration) | {"policy": configuration.info}


def _measured(findings: Findings) -> Iterator[Measured]:
    confidence = findings.ready.goal.confidence
    for part in findings.parts:
        for m in part.measured():
            paired = findings.paired(m)
            yield Measured(
                **_setting(m.configuration), source=m.part, counts=Counts(**asdict(paired.outcomes)),
                interval=retention_interval(paired, confidence), problems=m.problems, tokens=m.tokens, rounds=m.rounds,
                drafted=m.drafted, accepted=sum(d.accepted for seeds in m.decodings for d in seeds),
                forecast=findings.ready.timer.forecast_of(m.configuration),
            )  # fmt: skip


def _trials(findings: Findings) -> Iterator[Trial]:
    for trial in findings.trials:
        yield Trial(
            **_setting(trial.configuration), share=trial.share, problems=trial.problems, retention=trial.retention,
            speed=trial.tokens_per_second, feasible=trial.feasible,
        )  # fmt: skip


def _rungs(findings: Findings) -> Iterator[Rung]:
    for configuration in findings.opened.frozen if findings.opened else ():
        found = findings.evidence.get(configuration)
        shown: dict[str, Any] = dict.fromkeys(("counts", "lower_bound", "accuracy_bound", "p_value"))
        if found is not None:
            shown = {
                "counts": Counts(**asdict(found.outcomes)), "lower_bound": found.lower_bound,
                "accuracy_bound": found.accuracy_bound, "p_value": found.p_value,
            }  # fmt: skip
        yield Rung(**_setting(configuration), **shown)


def _scales(findings: Findings) -> Iterator[Scale]:
    space, forecast = findings.ready.space, findings.ready.forecast
    for family in space.families:
        arm = family[0]
        if arm.rule == space.rules[0]:  # thresholds do not depend on the rule
            thresholds = tuple(forecast.threshold(arm, logit(share)) for share in _SHARES)
            yield Scale(
                divergence=arm.divergence,
                policy=arm.info,
                draft=arm.draft,
                tree=arm.tree,
                shares=_SHARES,
                thresholds=thresholds,
            )


def _replayed(findings: Findings) -> Iterator[Replayed]:
    """The chosen T at all draft lengths of the search, where there is one."""
    chosen, ready = findings.chosen, findings.ready
    if chosen.threshold is None:
        return
    for arm in next(family for family in ready.space.families if chosen.family == family[0].family):
        counted = ready.forecast.counts(arm.at(chosen.threshold))
        if counted.rounds and counted.drafted:
            yield Replayed(
                rule=arm.rule, draft_length=arm.draft_length, tokens_per_round=counted.tokens / counted.rounds,
                accepted=min(max(counted.tokens - counted.rounds, 0.0) / counted.drafted, 1.0),
            )  # fmt: skip


def _differences(findings: Findings) -> Differences:
    chosen = findings.measured(findings.chosen)
    alone, problems = findings.alone(chosen), findings.problems(chosen)
    pairs = [(p, a[0], b[0]) for p, a, b in zip(problems, alone.decodings, chosen.decodings, strict=True)]
    differing = [pair for pair in pairs if pair[1].text != pair[2].text]
    shown = sorted(differing, key=lambda pair: _interest(*pair[1:]))[:_SHOWN]
    told = sources_of(findings, [(problem, decoding.text) for problem, _, decoding in shown])
    return Differences(
        source=chosen.part, problems=len(pairs), texts=len(differing), untold=told.untold,
        shown=tuple(_differing(*pair, told.tokens.get(pair[0].id, ())) for pair in shown),
    )  # fmt: skip


def _interest(target: Decoding, chosen: Decoding) -> int:
    """What was lost first, then what was gained, then other texts with the same outcome."""
    return 0 if target.correct > chosen.correct else 1 if chosen.correct > target.correct else 2


def _differing(problem: Problem, target: Decoding, chosen: Decoding, sources: tuple[Token, ...]) -> Differing:
    return Differing(
        problem=problem.id, question=_cut(problem.question), prompt=_cut(problem.prompt),
        reference=_cut(problem.reference), target=_answer(target), chosen=_answer(chosen),
        sources=sources,
    )  # fmt: skip


def _answer(decoding: Decoding) -> Answer:
    return Answer(text=_cut(decoding.text), correct=decoding.correct, tokens=decoding.tokens)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[:_LONGEST] + _CUT
