"""card.md, the model card of a predictor: its training data, its quality and the importance of its features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fsd_collectors.manifest import Manifest
from fsd_collectors.report.tables import model_line, number, sampling_line
from fsd_common.pages.blocks import Sheet
from fsd_common.pages.markdown import table
from fsd_predictors.facts import Facts, Quality
from fsd_predictors.training.evaluation import Evaluation, StepQuality
from fsd_predictors.training.importances import Importance
from fsd_predictors.training.reliability import reliability

PICTURE = "reliability.png"
_NONE = "–"
_FORECASTS = {
    "a": "a: this token is accepted",
    "b": "b: the next one would be",
    "S": "S: the whole draft is",
}


def card(
    facts: Facts, manifest: Manifest, evaluation: Evaluation, importances: Mapping[str, Importance]
) -> dict[str, bytes]:
    """Returns the card's files by name: Markdown and a picture.

    Args:
        manifest: manifest of the traces the predictor was trained on.
        importances: feature importances by role of the model.
    """
    sheets = [
        _data(facts, manifest), by_threshold(facts), _by_step(evaluation.steps),
        *(_importances(role, each) for role, each in importances.items()), _parameters(facts),
    ]  # fmt: skip
    text = _TEXT.format(
        kind=facts.kind, rule=facts.rule, divergences=", ".join(facts.divergences), falling=facts.falling,
        picture=PICTURE, sheets="\n".join(map(_markdown, sheets)),
    )  # fmt: skip
    curves = {_FORECASTS[forecast]: each for forecast, each in evaluation.curves.items()}
    return {"card.md": text.encode(), PICTURE: reliability(curves)}


_TEXT = """# Predictor of acceptance: {kind}, for {rule} by {divergences}

Forecasts, while a draft is being written, which of its tokens will be accepted, so that drafting can stop in time.
The figures below are of problems that were used neither to fit nor to calibrate it.

![Share accepted against forecast]({picture})

A curve along the dashed line means calibrated forecasts. Each point is a fifteenth of the rows. For S, the tokens
drafted after a rejected one are taken from the target's text: traces along the target do not hold the draft's own
continuation.

Forecasts that fall as T rises, of 10,000 random rows for each model: {falling}.

The AUCs beside the forecasts' own are those of q(x) and of q's entropy, each read, row by row of the table, in the
direction (high or low) that is better.

{sheets}"""


def by_threshold(facts: Facts) -> Sheet:
    """Returns the table of the forecasts' quality by divergence and threshold."""
    return Sheet(
        "Quality by T",
        ("forecast", "D", "T", "rows", "accepted", "AUC", "of q(x)", "of entropy", "error"),
        tuple(_quality(each) for each in facts.reached),
        "AUC: share of pairs of an accepted and a rejected row that the forecast ranks correctly; beside it the AUC of "
        "q(x) and of q's entropy on the same rows (for S, of their product and sum), in the direction, high or low, "
        "that is better. Error: calibration error, the mean distance between forecast and share accepted, in 15 bins "
        "of equally many rows. T below 0 is lossless.",
        names=2,
    )


def _quality(each: Quality) -> tuple[str, ...]:
    aucs = (_auc(value) for value in (each.auc, each.probability_auc, each.entropy_auc))
    return (each.forecast, each.divergence, _threshold(each.threshold), f"{each.rows:,}", f"{each.accepted:.1%}",
            *aucs, f"{each.error:.2%}")  # fmt: skip


def _data(facts: Facts, manifest: Manifest) -> Sheet:
    problems, rows = facts.problems, facts.rows
    entries = {
        "target": model_line(manifest.target),
        "draft": model_line(manifest.draft),
        "task": f"{manifest.task.name}, from {manifest.task.source}",
        "traces": f"run {facts.traces}, tuning part",
        "sampling": sampling_line(manifest),
        "divergences": f"{', '.join(facts.divergences)}, of {facts.on} logits",
        "problems": (
            f"{problems.training:,} training, {problems.calibration:,} calibration, {problems.evaluation:,} evaluation"
        ),
        "training rows": f"{rows['accepting']:,} for a, {rows['next']:,} for b",
        "seed": str(facts.seed),
        "versions": ", ".join(f"{name} {version}" for name, version in facts.versions.items()),
    }
    return Sheet("Data", (), tuple(entries.items()))


def _by_step(steps: Sequence[StepQuality]) -> Sheet:
    return Sheet(
        "Quality by step of the draft",
        ("forecast", "step", "rows", "accepted", "forecast mean", "AUC", "calibration error"),
        tuple(
            (each.forecast, str(each.step), f"{each.rows:,}", f"{each.accepted:.1%}", f"{each.mean:.1%}",
             _auc(each.auc), f"{each.error:.2%}")
            for each in steps
        ),
        "Pooled over the thresholds above.",
        names=2,
    )  # fmt: skip


def _importances(role: str, importance: Importance) -> Sheet:
    ranked = sorted(zip(importance.names, importance.shares, strict=True), key=lambda each: -each[1])
    return Sheet(
        f"Feature importance of the model {role!r}",
        ("feature", "share"),
        tuple((name, f"{share:.1%}") for name, share in ranked),
        f"{importance.meaning[0].upper()}{importance.meaning[1:]}.",
    )


def _parameters(facts: Facts) -> Sheet:
    parameters = facts.parameters.items()
    rows = ((role, ", ".join(f"{n} {_plain(v)}" for n, v in each.items())) for role, each in parameters)
    return Sheet("Parameters found by Optuna", (), tuple(rows))


def _markdown(sheet: Sheet) -> str:
    note = f"\n{sheet.note}\n" if sheet.note else ""
    return f"## {sheet.title}\n\n{table(sheet)}\n{note}"


def _auc(value: float | None) -> str:
    return _NONE if value is None else f"{value:.3f}"


def _threshold(value: float) -> str:
    return "< 0" if value < 0 else number(value)


def _plain(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
