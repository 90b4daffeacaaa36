"""Tables of a profile: settings, models, certificate, costs, texts, effort, and the measured curve."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath

from rich import box
from rich.table import Table

from fsd_calib.report.bounds import bounds_to_show, difference_to_show
from fsd_calib.report.figures import (
    bound_of,
    draft_length_label,
    rival_of,
    was_selected,
    was_timed,
)
from fsd_calib.report.verdict import guarded
from fsd_common.console import TITLE, breakable, literal
from fsd_common.formatting import (
    ROUNDS,
    answer_seconds,
    at_most,
    bound,
    exact,
    level,
    milliseconds,
    pace,
    percent,
    points,
    points_between,
    threshold,
    tokens,
)
from fsd_decoding.profile.certificate import Certificate
from fsd_decoding.profile.fields import CurvePoint
from fsd_decoding.profile.parts import IN_WORDS, ModelInfo
from fsd_decoding.profile.selection import corrected
from fsd_decoding.profile.setting import Setting
from fsd_decoding.profile.threshold_profile import ThresholdProfile


def sheets(profile: ThresholdProfile) -> list[Table]:
    """Returns a table for each of `details`."""
    return [_sheet(title, lines) for title, lines in details(profile).items()]


def details(profile: ThresholdProfile) -> dict[str, dict[str, str]]:
    """Returns names and values, by title, of what the profile holds of these."""
    contents = {
        "settings": _settings(profile), "models": _models(profile), "certificate": _certificate(profile),
        "guards": {guard.task: guarded(profile, guard) for guard in profile.guards}, "costs": _costs(profile),
        "texts": _texts(profile), "effort": _effort(profile),
    }  # fmt: skip
    return {title: lines for title, lines in contents.items() if lines}


def _sheet(title: str, lines: Mapping[str, str]) -> Table:
    table = Table(title=title, box=box.SIMPLE, show_header=False, title_justify="left")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in lines.items():
        table.add_row(name, literal(value))
    return table


def _settings(p: ThresholdProfile) -> dict[str, str]:
    return {
        "outcome": f"{p.outcome}{_unless_bound(p)}",
        "rule": f"{p.rule}, T = {threshold(p.threshold)}, {draft_length_label(p)}",
        **({} if p.beams is None else {"beams": str(p.beams)}),
        "policy": "none: T is constant" if p.policy is None else f"T is moved by {p.policy}",
        "early stop": _early_stop(p),
        "score": f"{p.score} on {p.logits} logits, definitions version {p.scores_version}",
        "sampling": ", ".join(
            f"{name} {value}" for name, value in p.sampling.model_dump().items() if value is not None
        ),
        "prompts": _prompts(p),
        "noise": f"seed {p.seed}, {p.seeds} seed{'s' * (p.seeds > 1)} per problem",
        "task": f"{p.task}: {p.data.source} (split {p.data.split})",
        "problems": f"{p.data.tuning:,} for tuning, {p.data.certification:,} for certification",
        "engine": str(p.engine or "fsd-calib, our own"),
        "rounds": "not recorded" if p.compile is None else ROUNDS[p.compile],
        "created": f"{p.created:%Y-%m-%d %H:%M %Z} on {p.device} in {p.dtype}",
        "versions": ", ".join(f"{name} {version}" for name, version in p.versions.items()),
    }


def _prompts(p: ThresholdProfile) -> str:
    made = p.prompt
    if made is None:
        return "not recorded: they were made by code of the calibration's own"
    named = ", ".join(f"{name}={json.dumps(value)}" for name, value in made.template_arguments.items())
    form = "plain texts" if made.template is None else f"chat template {made.template[:12]} with {named or 'nothing'}"
    graded = "" if made.answer_after is None else f", graded after {made.answer_after!r}"
    return f"{form}, specification {made.digest[:12]}, up to {made.max_new_tokens} new tokens{graded}"


def _unless_bound(p: ThresholdProfile) -> str:
    return "" if p.bound else f", says the profile, but it {'was edited' if p.edited else 'has no digest'}"


def _early_stop(p: ThresholdProfile) -> str:
    if p.stop_policy is not None:
        return f"stop policy {p.stop_policy}"
    if p.early_stop is None:
        return "none: every draft has its full length"
    return f"predictor {p.early_stop.predictor!r} ({p.early_stop.fingerprint[:12]})"


def _models(p: ThresholdProfile) -> dict[str, str]:
    others = {"other drafts": "\n".join(map(_model, p.other_drafts))} if p.other_drafts else {}
    return {"target": _model(p.target), "draft": _model(p.draft), **others, "tokenizer": p.tokenizer[:12]}


def _model(model: ModelInfo) -> str:
    revision = f" at {model.revision[:12]}" if model.revision else ""
    quantised = f" quantised as {model.quantization}" if model.quantization else ""
    attention = f", {model.attention} attention" if model.attention else ""
    role = "" if model.kind == "model" else f"{IN_WORDS[model.kind]} "
    kind = f"{model.dtype}{quantised}{attention}"
    return f"{role}{model.id}{revision}, {kind}, vocabulary {model.vocab_size:,}, fingerprint {model.fingerprint[:12]}"


def _certificate(p: ThresholdProfile) -> dict[str, str]:
    c = p.certificate
    wanted = {} if c.wanted is None else {"wanted": f"{c.acc} {exact(c.wanted)}"}
    groups = "" if c.groups is None else f" in {c.groups:,} groups"
    low, accuracy_low = bounds_to_show(c)
    return {
        "certified": f"{'yes' if c.certified else 'no'}{_unless_bound(p)}",
        "guarantee": c.guarantee,
        **wanted,
        **({"subject": "lossless decoding"} if c.lossless else {}),
        "retention": f"{percent(c.retention)}, lower bound {bound(low)}",
        "accuracy": f"{percent(c.accuracy)}, lower bound {bound(accuracy_low)}",
        "outcomes": str(c.counts),
        **_harm(c),
        "counted on": f"{c.problems:,} problems{groups}, {c.seeds} seed{'s' * (c.seeds > 1)} each",
        "frozen": "not recorded" if c.frozen is None else f"{c.frozen} candidate{'s' * (c.frozen != 1)}{_caveat(p)}",
        "confidence": f"{exact(c.confidence)}, tested at level {level(c.level)}",
        "attempt": "not recorded" if c.attempt is None else str(c.attempt),
        "method": c.method,
    }


def _caveat(p: ThresholdProfile) -> str:
    return "; bounds are not corrected for the choice among them" if was_selected(p) and p.certificate.problems else ""


def _harm(c: Certificate) -> dict[str, str]:
    if c.harm is None or c.harm_upper_bound is None or c.difference is None:
        return {}
    ends = difference_to_show(c)
    interval = "" if ends is None else f", {points_between(ends)}"
    return {
        "harm": f"{percent(c.harm)} of the target's right answers lost, at most {at_most(c.harm_upper_bound)}",
        "difference": f"{points(c.difference)} percentage points of accuracy{interval}",
    }


def _costs(p: ThresholdProfile) -> dict[str, str]:
    if p.costs is None:
        return {}
    return {
        "one draft step": milliseconds(p.costs.draft_step),
        "one verification": milliseconds(p.costs.verify),
        "one verified position": milliseconds(p.costs.position),
        "measured at batch": str(p.costs.batch),
    }


def _texts(p: ThresholdProfile) -> dict[str, str]:
    """Churn by rounding, lengths and ends of texts, and the acceptance rate that live decoding is compared with."""
    lines, churn, cut, acceptance = {}, p.numerical_churn, p.truncation, p.acceptance
    if churn is not None:
        lines["changed by rounding"] = (
            f"{churn.texts_changed} of {churn.problems:,} texts, {churn.outcomes_flipped} outcomes"
        )
    if cut is not None:
        lines["possibly cut short"] = (
            f"{cut.target} of the target's {cut.texts:,} texts and {cut.chosen} of the chosen setting's reached the "
            f"limit of {cut.max_new_tokens} tokens or the end of the context"
        )
    if p.repetition is not None:
        loops = p.repetition
        lines["ending in a loop"] = (
            f"{loops.target} of the target's {loops.texts:,} texts and {loops.chosen} of the chosen setting's"
        )
    if p.lengths is not None:
        lines["new tokens"] = (
            f"{p.lengths.target:.1f} per text of the target, {p.lengths.chosen:.1f} of the chosen setting: "
            f"{p.lengths.ratio:.2f} times as long"
        )
    if p.speed.answer is not None:
        answer = p.speed.answer
        lines["seconds per answer"] = (
            f"{answer_seconds(answer.target)} of the target, {answer_seconds(answer.lossless)} of {rival_of(p).rule}, "
            f"{answer_seconds(answer.chosen)} of the chosen setting"
        )
    if acceptance is not None:
        mean, deviation = percent(acceptance.mean), percent(acceptance.deviation)
        lines["accepted drafts"] = f"{mean} ± {deviation} per text, over {acceptance.texts:,} texts"
    return lines


def _effort(p: ThresholdProfile) -> dict[str, str]:
    return {} if p.effort is None else dict(_work_lines(p)) | {"trials": f"{p.effort.trials:,}"}


def _work_lines(p: ThresholdProfile) -> Iterator[tuple[str, str]]:
    assert p.effort is not None
    for name in ("baseline", "search", "certification", "total"):
        work = getattr(p.effort, name)
        decoded = f"decoded {work.decoded:,} ({tokens(work.decoded_tokens)})"
        yield name, f"{decoded}, reused {work.reused:,} ({tokens(work.reused_tokens)})"


_BESIDE = 62  # characters of the columns beside the first


def curve_tables(profile: ThresholdProfile, width: int) -> list[Table]:
    """Returns a table of all points for each part of the problems, at most `width` characters wide."""
    parts = [[p for p in profile.curve if p.source == source] for source in ("tuning", "certification")]
    return [
        _table(f"the curve on the {points[0].source} part{_bounds(points)}", profile, points, width)
        for points in parts
        if points
    ]


def _bounds(points: Sequence[CurvePoint]) -> str:
    individual = any(p.lower_bound is not None and not p.simultaneous for p in points)
    return ", individual bounds" if individual else ""


def front_table(profile: ThresholdProfile, width: int) -> Table | None:
    """Returns the points to choose among: those with simultaneous bounds, else the nondominated measured ones.

    At most `width` characters wide.

    None: there are neither.
    """
    points = front(profile)
    simultaneous = any(point.simultaneous for point in points)
    measured = "measured points that no other beats in retention and speed"
    title = "the front, simultaneous bounds" if simultaneous else measured
    return _table(title, profile, points, width) if points else None


def front(profile: ThresholdProfile) -> list[CurvePoint]:
    """Returns the points with simultaneous bounds, else the nondominated measured ones, the highest retention first."""
    bounded = [p for p in profile.curve if p.simultaneous]
    return sorted(bounded, key=lambda p: p.retention, reverse=True) or nondominated(corrected(profile.curve))


def nondominated(points: Sequence[CurvePoint]) -> list[CurvePoint]:
    """Returns the Pareto front of forecast speed and retention, the highest retention first.

    Points without a forecast are left out.
    """
    kept: list[CurvePoint] = []
    for point in sorted(points, key=lambda p: (-p.retention, -_speed(p))):
        if _speed(point) > max(map(_speed, kept), default=0.0):
            kept.append(point)
    return kept


def _speed(point: CurvePoint) -> float:
    return point.forecast or 0.0


def _table(title: str, profile: ThresholdProfile, points: Iterable[CurvePoint], width: int) -> Table:
    table = Table(title=literal(title, TITLE), box=box.SIMPLE_HEAD, title_justify="left", padding=0)
    table.add_column("rule")
    headings = ("L", "T", "accuracy", "retention", "≥", "tokens\n/round", "forecast\ntokens/s", "problems")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for point in points:
        forecast = None if was_timed(profile, point) else point.forecast
        shown = point.model_copy(update={"lower_bound": bound_of(profile, point)})
        table.add_row(*map(literal, _cells(shown, forecast, width - _BESIDE)))
    return table


def _arm(setting: Setting, width: int) -> Iterator[str]:
    """Rule, score, policy, shape of trees and draft: what distinguishes a row from others with the same L."""
    yield setting.rule
    if setting.threshold is not None:
        yield setting.score
    if setting.policy is not None:
        yield str(setting.policy)
    if setting.tree is not None or setting.width is not None:
        yield setting.shape.removeprefix(", ")
    if setting.draft is not None:
        yield f"with {breakable(PurePath(setting.draft).name, width)}"


def _cells(p: CurvePoint, forecast: float | None, width: int) -> tuple[str, ...]:
    return (
        " ".join(_arm(p.setting, width)), str(p.setting.draft_length), threshold(p.setting.threshold),
        percent(p.accuracy), percent(p.retention), bound(p.lower_bound), pace(p.tokens_per_round, 2),
        pace(forecast), f"{p.problems:,}",
    )  # fmt: skip
