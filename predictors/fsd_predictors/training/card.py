"""card.md, the model card of a predictor: its training data, its quality and the importance of its features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from sklearn.metrics import log_loss

from fsd_collectors.manifest import Manifest
from fsd_collectors.report.description import model_line, number, sampling_line
from fsd_common.pages.blocks import Sheet
from fsd_common.pages.markdown import table
from fsd_predictors.facts import PredictorFacts, Quality
from fsd_predictors.features import Array, Forecast
from fsd_predictors.models.base import AcceptanceModel
from fsd_predictors.models.boosted import Boosted
from fsd_predictors.models.registry import Calibrated
from fsd_predictors.training.evaluation import Evaluation, StepQuality, reliability

MOST_ROWS = 4000  # a random sample of so many rows is used


CONTRIBUTIONS = (
    "mean absolute contribution of a feature to the logit (LightGBM's pred_contrib, Tree SHAP of Lundberg et al. "
    "2020), as a share of the total"
)
PERMUTATION = (
    "increase of the log loss when the feature's values are permuted (Breiman 2001), as a share of the total; "
    "correlated features share their importance"
)


def importance(model: AcceptanceModel, count: int, rows: Array, accepted: Array, seed: int) -> tuple[Array, str]:
    """Returns the importance of each feature, and what was measured, in words.

    Args:
        model: fitted model, calibrated or not.
        count: number of features; the last one stands for all remaining columns together.
        rows: (n, columns).
        accepted: (n,) bool.
        seed: of the sample of rows, and of permutations.

    Returns:
        (count,) shares, which add up to 1, or are all 0 where no feature moves the forecast; and their meaning.
    """
    random = np.random.default_rng(seed)
    chosen = random.permutation(len(rows))[:MOST_ROWS]
    inner = model.model if isinstance(model, Calibrated) else model
    if isinstance(inner, Boosted):
        sizes, meaning = _contributions(inner, rows[chosen]), CONTRIBUTIONS
    else:
        parts = [*(slice(column, column + 1) for column in range(count - 1)), slice(count - 1, None)]
        loss = partial(_loss, model, accepted[chosen])
        sizes, meaning = permuted(loss, parts, rows[chosen], random), PERMUTATION
    return sizes / max(sizes.sum(), np.finfo(float).tiny), meaning


def _contributions(model: Boosted, rows: Array) -> Array:
    contributions = np.asarray(model.booster_.predict(rows, pred_contrib=True))
    sizes: Array = np.abs(contributions[:, :-1]).mean(0)  # the last column is the expected value, equal in all rows
    return sizes


def _loss(model: AcceptanceModel, accepted: Array, rows: Array) -> float:
    return float(log_loss(accepted, model.predict_proba(rows)[:, 1], labels=[False, True]))


def permuted(loss: Callable[[Array], float], parts: Sequence[slice], rows: Array, random: np.random.Generator) -> Array:
    """Returns by how much the loss of the rows rises where a part of their columns is permuted: (parts,)."""
    before = loss(rows)
    return np.array([max(0.0, loss(_shuffled(rows, part, random)) - before) for part in parts])


def _shuffled(rows: Array, columns: slice, random: np.random.Generator) -> Array:
    other = rows.copy()
    other[:, columns] = random.permutation(rows[:, columns])
    return other


PICTURE = "reliability.png"
_NONE = "–"
_FORECASTS = {"a": "a: this token is accepted", "b": "b: the next one would be", "S": "S: the whole draft is"}


def card(
    facts: PredictorFacts, manifest: Manifest, evaluation: Evaluation, importances: Mapping[Forecast, tuple[Array, str]]
) -> dict[str, bytes]:
    """Returns the card's files by name: Markdown and a picture.

    Args:
        manifest: manifest of the traces the predictor was trained on.
        importances: what `importance` returned, by role of the model.
    """
    sheets = [
        _data(facts, manifest), by_threshold(facts), _by_step(evaluation.steps),
        *(_importances(role, facts.features[role], *each) for role, each in importances.items()), _parameters(facts),
    ]  # fmt: skip
    text = _TEXT.format(
        kind=facts.kind, rule=facts.rule, scores=", ".join(facts.scores), falling=facts.falling,
        picture=PICTURE, sheets="\n".join(map(markdown, sheets)),
    )  # fmt: skip
    curves = {_FORECASTS[forecast]: each for forecast, each in evaluation.curves.items()}
    return {"card.md": text.encode(), PICTURE: reliability(curves)}


_TEXT = """# Predictor of acceptance: {kind}, for {rule} by {scores}

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


def by_threshold(facts: PredictorFacts) -> Sheet:
    """Returns the table of the forecasts' quality by score and threshold."""
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
    threshold = "< 0" if each.threshold < 0 else number(each.threshold)
    return (each.forecast, each.score, threshold, f"{each.rows:,}", f"{each.accepted:.1%}",
            *aucs, f"{each.error:.2%}")  # fmt: skip


def _data(facts: PredictorFacts, manifest: Manifest) -> Sheet:
    problems, rows = facts.problems, facts.rows
    entries = {
        "target": model_line(manifest.target),
        "draft": model_line(manifest.draft),
        "task": f"{manifest.task.name}, from {manifest.task.source}",
        "traces": f"run {facts.traces}, tuning part",
        "sampling": sampling_line(manifest),
        "scores": f"{', '.join(facts.scores)}, of {facts.on} logits",
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


def _importances(role: str, names: Sequence[str], shares: Array, meaning: str) -> Sheet:
    ranked = sorted(zip(names, shares, strict=True), key=lambda each: -each[1])
    return Sheet(
        f"Feature importance of the model {role!r}",
        ("feature", "share"),
        tuple((name, f"{share:.1%}") for name, share in ranked),
        f"{meaning[0].upper()}{meaning[1:]}.",
    )


def _parameters(facts: PredictorFacts) -> Sheet:
    parameters = facts.parameters.items()
    rows = ((role, ", ".join(f"{n} {_plain(v)}" for n, v in each.items())) for role, each in parameters)
    return Sheet("Parameters found by Optuna", (), tuple(rows))


def markdown(sheet: Sheet) -> str:
    """Returns a table under its title."""
    note = f"\n{sheet.note}\n" if sheet.note else ""
    return f"## {sheet.title}\n\n{table(sheet)}\n{note}"


def _auc(value: float | None) -> str:
    return _NONE if value is None else f"{value:.3f}"


def _plain(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
