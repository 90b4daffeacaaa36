"""The record and the page of a calibration: what its pages show beyond its profile, saved beside that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fsd_calib.calibration.baseline import COMPARED
from fsd_calib.calibration.findings import Findings
from fsd_calib.calibration.to_profile import curve_point
from fsd_calib.engines.base import DecodingRequest, KeyedPrompt
from fsd_calib.engines.own import OwnEngine
from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.measuring.measurement import Decoding
from fsd_calib.report.page import run_page
from fsd_calib.report.record import (
    Answer,
    Differences,
    Differing,
    DraftAlone,
    Replayed,
    Rung,
    RunRecord,
    Scale,
    Step,
    Token,
    Trial,
)
from fsd_calib.report.run_folder import PAGE, Run, save_record, write_as
from fsd_calib.search.space import logit
from fsd_calib.tasks.base import Problem
from fsd_common.errors import UsageError
from fsd_decoding.observers.token_sources import TokenSources, token_line
from fsd_decoding.profile.setting import Setting
from fsd_decoding.profile.threshold_profile import ThresholdProfile

_SHARES = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.965, 0.98, 0.99, 0.995, 0.999)
_SHOWN = 24  # differing problems
_ATTRIBUTED = 12  # of them, whose tokens are attributed: one batch, which takes as long as its longest text
_LONGEST = 8000  # characters of a text
_CUT = "\n[… cut here]"


def save_pages(findings: Findings, profile: ThresholdProfile, folder: Path) -> None:
    """Writes run.json and report.html; where that fails, a note says so. The profile is saved already."""
    try:
        (folder / PAGE).unlink(missing_ok=True)  # an earlier profile's page must not stand beside this one
        record = to_record(findings, profile)
        save_record(record, folder)
        write_as("html", run_page(Run(folder.absolute().name, profile, record)), folder / PAGE)
    except Exception as error:  # whatever it is: the calibration is done, and its profile is safe
        why = " ".join(str(error).split()) or type(error).__name__
        findings.ready.session.progress.note(
            f"{folder / PAGE} was not written ({why}); the profile is complete, and fsd-report {folder} tries again"
        )


def to_record(findings: Findings, profile: ThresholdProfile) -> RunRecord:
    """Returns the record of the run that found this profile, which has a digest."""
    assert profile.digest is not None
    return RunRecord(
        profile=profile.digest,
        draft_alone=_draft_alone(findings),
        trials=tuple(_trials(findings)),
        rungs=tuple(_rungs(findings)),
        steps=(Step(name="preparation", seconds=findings.ready.seconds), *findings.steps),
        scales=tuple(_scales(findings)),
        replayed=tuple(_replayed(findings)),
        differences=_differences(findings),
    )


def _draft_alone(findings: Findings) -> DraftAlone | None:
    """Decodes the first tuning problems with the draft of what decoders of the profile run, and times it.

    It is no point of the profile's curve, and no failure of it ends a calibration that is done.

    Returns:
        What was measured; None where the engine cannot run a draft alone, or where that failed, which a note says.
    """
    ready, session = findings.prepared, findings.prepared.session
    alone = Setting.draft_alone(session.engine.score, findings.followed.draft)
    if not session.engine_of(alone).runs_draft_alone:
        return None
    try:
        measured = Evaluator(session.decode, session.tuning.problems, "tuning").measure(alone, COMPARED)
        speed = ready.timer.time_here(alone, findings.opened)
    except UsageError as error:
        session.progress.note(f"the draft alone was not measured: {error}")
        return None
    return DraftAlone(
        point=curve_point(findings, measured, None), speed=None if speed is None else speed.value,
        speed_interval=(speed.low, speed.high) if speed is not None and speed.bounded else None,
    )  # fmt: skip


def _trials(findings: Findings) -> Iterator[Trial]:
    for trial in findings.trials:
        yield Trial(
            setting=findings.exported(trial.setting), share=trial.share, problems=trial.problems,
            retention=trial.retention, speed=trial.tokens_per_second, feasible=trial.feasible,
        )  # fmt: skip


def _rungs(findings: Findings) -> Iterator[Rung]:
    for setting in findings.opened.frozen if findings.opened else ():
        found = findings.evidence.get(setting)
        shown: dict[str, Any] = dict.fromkeys(
            ("problems", "counts", "lower_bound", "accuracy_bound", "p_value", "passed")
        )
        if found is not None:
            shown = {
                "problems": found.paired.problems, "counts": found.outcomes, "lower_bound": found.printed.retention,
                "accuracy_bound": found.printed.accuracy, "p_value": found.p_value,
                "passed": None if found.p_value is None else found.passed,
            }  # fmt: skip
        yield Rung(setting=findings.exported(setting), **shown)


def _scales(findings: Findings) -> Iterator[Scale]:
    space, forecast = findings.prepared.space, findings.prepared.forecast
    for arm, *_ in space.families:
        if arm.rule == space.rules[0]:  # thresholds do not depend on the rule
            shares = tuple(share for share in _SHARES if forecast.reaches(arm, logit(share)))
            thresholds = tuple(forecast.threshold(arm, logit(share)) for share in shares)
            yield Scale(arm=findings.exported(arm), shares=shares, thresholds=thresholds)


def _replayed(findings: Findings) -> Iterator[Replayed]:
    """The chosen T at all draft lengths of the search, where there is one."""
    chosen, ready = findings.chosen, findings.prepared
    if chosen.threshold is None:
        return
    for arm in next(family for family in ready.space.families if chosen.family == family[0].family):
        counted = ready.forecast.counts(replace(chosen, draft_length=arm.draft_length))
        if counted.rounds and counted.drafted:
            yield Replayed(
                setting=findings.exported(replace(chosen, draft_length=arm.draft_length)),
                tokens_per_round=counted.tokens / counted.rounds,
                accepted=min(max(counted.tokens - counted.rounds, 0.0) / counted.drafted, 1.0),
            )


def _differences(findings: Findings) -> Differences:
    chosen = findings.measured(findings.chosen)
    alone, problems = findings.alone(chosen), findings.problems(chosen)
    pairs = [(p, a[0], b[0]) for p, a, b in zip(problems, alone.decodings, chosen.decodings, strict=True)]
    differing = [pair for pair in pairs if pair[1].text != pair[2].text]
    shown = sorted(differing, key=lambda pair: _interest(*pair[1:]))[:_SHOWN]
    attributed = [(problem, decoding.text) for problem, _, decoding in shown if len(decoding.text) <= _LONGEST]
    tokens, unavailable = _token_attribution(findings, attributed[:_ATTRIBUTED])
    return Differences(
        source=chosen.part, problems=len(pairs), texts=len(differing), unattributed=unavailable,
        shown=tuple(_differing(*pair, tokens.get(pair[0].id, ())) for pair in shown),
    )  # fmt: skip


def _token_attribution(
    findings: Findings, texts: Sequence[tuple[Problem, str]]
) -> tuple[dict[int, tuple[Token, ...]], str | None]:
    """Decodes these texts of the chosen setting once more, to tell where their tokens come from.

    A text that comes out otherwise this time, by rounding in a batch of another size, is left out.

    Returns:
        The tokens by problem; and why there are none, if the engine cannot tell.
    """
    chosen, session = findings.chosen, findings.prepared.session
    engine = session.engine_of(chosen)
    if not texts:
        return {}, None
    if not (isinstance(engine, OwnEngine) and engine.watched):
        return {}, f"{engine.info or engine.name} does not tell which decision emitted a token"
    observer = TokenSources(engine.tokenizer)
    prompts = [KeyedPrompt(problem.id, problem.prompt) for problem, _ in texts]
    request = DecodingRequest(chosen, engine.decoding.seed, prompts, len(prompts))
    with session.progress.step("telling where tokens come from", len(texts)) as advance:
        results = engine.decode(request, lambda place, result: advance(1), observer=observer)
    tokens = {}
    for place, (result, (problem, text)) in enumerate(zip(results, texts, strict=True)):
        if result.text == text:
            sources = observer.tokens(result, place)
            tokens[problem.id] = tuple(Token(text=t.text, source=t.source.value, says=token_line(t)) for t in sources)
    return tokens, None


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
