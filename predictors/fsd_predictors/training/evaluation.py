"""Evaluation of a predictor on problems that neither fitted nor calibrated its models.

Three forecasts are evaluated (see docs/predictor.md): a, that a drafted token is accepted; b, that the next one would
be; S, the product of a draft's a, that all of its tokens so far are accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
from sklearn.metrics import roc_auc_score

from fsd_collectors.replay.blocks import Block, blocks
from fsd_collectors.replay.cases import Case, acceptance_levels, replayable
from fsd_collectors.store.reading import Traces
from fsd_common.errors import UsageError
from fsd_common.pages.charts import Chart, Spec, by_series, quantitative
from fsd_common.pages.pictures import png
from fsd_common.pages.themes import SERIES, SHAPES
from fsd_predictors.facts import Quality
from fsd_predictors.features import (
    COLUMNS,
    FEATURES,
    STATE,
    Array,
    Drafted,
    Forecast,
    RoundContext,
    TokenKinds,
    Value,
    drafted,
    feature_values,
    matrix,
    state_at,
    states_of,
)
from fsd_predictors.models.base import AcceptanceModel
from fsd_predictors.training.rows import Rows, problem_filter

BINS = 15
_ROUNDING = 1e-12  # error of a probability that is no fall


def auc(accepted: Array, score: Array) -> float:
    """Returns the probability that an accepted row has a higher score than a rejected one; both arguments (n,).

    Raises:
        UsageError: all rows are of one class.
    """
    if accepted.all() or not accepted.any():
        raise UsageError(f"all {len(accepted)} rows are of one class; AUC needs accepted and rejected rows")
    return float(roc_auc_score(accepted, score))


def bins(accepted: Array, forecast: Array, count: int = BINS, weights: Array | None = None) -> tuple[Array, Array]:
    """Returns the mean forecast and the share accepted in up to `count` bins of equally many rows, in rising order.

    Where rows have weights (n,), bins are of equal weight.

    Rows with equal forecasts always share a bin, so the result does not depend on the order of the rows.
    """
    return _binned(accepted, forecast, count, weights)[:2]


def calibration_error(accepted: Array, forecast: Array, count: int = BINS, weights: Array | None = None) -> float:
    """Returns the expected calibration error (Naeini et al. 2015) over bins as in `bins`.

    It is the mean |forecast − share accepted| over the bins. Perfect forecasts of n rows still have an error of about
    .8·sqrt(count·p(1−p)/n).
    """
    forecasts, outcomes, shares = _binned(accepted, forecast, count, weights)
    return float(np.abs(forecasts - outcomes) @ shares)


def falls(model: AcceptanceModel, rows: Array, shares: Array) -> int:
    """Counts the rows (n, features) whose probability falls anywhere as their share rises through `shares`."""
    probabilities = np.empty((len(rows), len(shares)))
    for place, share in enumerate(np.sort(shares)):
        changed = rows.copy()
        changed[:, model.share] = share
        probabilities[:, place] = model.predict_proba(changed)[:, 1]
    return int((np.diff(probabilities, axis=1) < -_ROUNDING).any(1).sum())


def _binned(accepted: Array, forecast: Array, count: int, weights: Array | None) -> tuple[Array, Array, Array]:
    """Returns the mean forecast, the share accepted and the share of weight of each bin."""
    weights = np.ones(len(forecast)) if weights is None else weights
    _, place = np.unique(forecast, return_inverse=True)
    rows = np.bincount(place, weights)
    ends = np.cumsum(rows)
    bin_of = ((ends - rows / 2) * count / ends[-1]).astype(int)[place]
    sizes, forecasts, outcomes = (
        np.bincount(bin_of, weights * each, minlength=count) for each in (1.0, forecast, accepted)
    )
    full = sizes > 0
    return forecasts[full] / sizes[full], outcomes[full] / sizes[full], sizes[full] / ends[-1]


_SIDE = 220  # pixels of a panel
_LOWEST, _HIGHEST = 0.005, 0.9995  # ends of the logit scale; most forecasts are near 1
_TICKS = (0.01, 0.1, 0.5, 0.9, 0.99, 0.999)


Curves = Mapping[str, tuple[Array, Array]]
"""Reliability curves by label: (bins,) mean forecasts and (bins,) shares accepted."""


def reliability(panels: Mapping[str, Curves]) -> bytes:
    """Returns a PNG with one panel for each heading; curves of the same label share a colour and a shape."""
    labels = list(dict.fromkeys(label for curves in panels.values() for label in curves))
    looks = by_series("color", "label", labels, SERIES) | by_series("shape", "label", labels, SHAPES)
    row = [_panel(heading, curves, looks) for heading, curves in panels.items()]
    return png(Chart("reliability", "", {"hconcat": row, "spacing": 28}))


def _panel(heading: str, curves: Curves, looks: Spec) -> Spec:
    values: list[dict[str, Any]] = [
        {"label": label, "forecast": _logit(f), "accepted": _logit(a)}
        for label, curve in curves.items() for f, a in zip(*curve, strict=True)
    ]  # fmt: skip
    x, y = _axis("forecast", "forecast"), _axis("accepted", "share accepted")
    ends = [{"forecast": _logit(end), "accepted": _logit(end)} for end in (_LOWEST, _HIGHEST)]
    layers: list[Spec] = [
        {"data": {"values": ends}, "mark": {"type": "line", "color": "@ink", "strokeDash": [5, 4], "strokeWidth": 1},
         "encoding": {"x": x, "y": y}},
        {"mark": {"type": "line", "strokeWidth": 1.3}, "encoding": {"x": x, "y": y, "color": looks["color"]}},
        {"mark": {"type": "point", "filled": True, "size": 32}, "encoding": {"x": x, "y": y, **looks}},
    ]  # fmt: skip
    return {"title": heading, "width": _SIDE, "height": _SIDE, "data": {"values": values}, "layer": layers}


def _axis(field: str, title: str) -> Spec:
    """The encoding of a probability that is drawn on a logit scale."""
    domain = [_logit(_LOWEST), _logit(_HIGHEST)]
    axis = {"values": [_logit(tick) for tick in _TICKS], "labelExpr": "format(1 / (1 + exp(-datum.value)), '.3~g')"}
    return quantitative(field, title, scale={"domain": domain, "nice": False}, axis=axis)


def _logit(share: float) -> float:
    clipped = float(np.clip(share, _LOWEST, _HIGHEST))
    return float(np.log(clipped / (1 - clipped)))


@dataclass(frozen=True)
class Texts:
    """Whole completions, stored one after another."""

    block: Block
    rule: str
    kinds: TokenKinds

    @classmethod
    def of(
        cls, traces: Traces, rule: str, scores: Sequence[str], kinds: TokenKinds, problems: Sequence[int],
        hidden: bool = False,
    ) -> Self:  # fmt: skip
        """Loads the completions of the problems; with `hidden`, also the draft's hidden states."""
        exact = replayable(rule).exact
        columns = ["problem", "same_token", *COLUMNS, *scores, *([exact] if exact else [])]
        columns += [STATE] if hidden else []
        (block,) = blocks(traces, columns, problem_filter(problems), rows=1 << 62)
        return cls(block, rule, kinds)

    @cached_property
    def _start(self) -> dict[int, int]:
        starts = self.block.starts
        return dict(zip(self.block.columns["problem"][starts].tolist(), starts.tolist(), strict=True))

    def rows(self, problem: Array, position: Array) -> Array:
        """Returns the rows (r,) of positions (r,) in the texts of problems (r,)."""
        return np.array([self._start[each] for each in problem.tolist()]) + position.astype(np.int64)

    def ends(self, rows: Array) -> Array:
        """Returns, for each row (r,), the row after the last one of its text."""
        return np.asarray(self.block.ends[np.searchsorted(self.block.ends, rows, side="right")])

    def drafted(self, rows: Array) -> Drafted:
        return drafted(self.block.columns, rows, self.kinds)

    def state(self, rows: Array) -> tuple[Value, ...]:
        """Returns the hidden states at the rows, which models read after the features; see `state_at`."""
        return state_at(self._states, rows)

    @cached_property
    def _states(self) -> Array | None:
        return states_of(self.block.columns)

    def accepted(self, score: str, threshold: float) -> Array:
        """Returns a mask (n,) of the rows whose drafted token is accepted at this threshold."""
        case = Case(self.rule, score, np.array([threshold]))
        return ~acceptance_levels(case, self.block).rejected(0)


Name = Literal["a", "b", "S"]
Point = tuple[str, float]  # a score and a threshold on it

STEPS = 8  # draft positions that are reported one by one


@dataclass(frozen=True)
class Forecasts:
    """n forecasts at one point, and the outcomes they are compared with.

    Args:
        forecast: (n,) forecast probability of acceptance.
        accepted: (n,) bool, the outcome.
        step: (n,) position of the token in its draft, from 1.
        probability: (n,) q of the token; for S the product over the draft.
        entropy: (n,) entropy of q, in nats; for S the sum over the draft.
    """

    forecast: Array
    accepted: Array
    step: Array
    probability: Array
    entropy: Array

    def where(self, mask: Array) -> Forecasts:
        return Forecasts(*(getattr(self, field.name)[mask] for field in fields(self)))


@dataclass(frozen=True)
class StepQuality:
    """Quality of a forecast at one position of the draft, over all points; `mean` is the mean forecast."""

    forecast: Name
    step: int
    rows: int
    accepted: float
    mean: float
    auc: float | None
    error: float


@dataclass(frozen=True)
class Evaluation:
    """Quality by forecast and threshold, by forecast and draft position, and reliability curves by forecast."""

    reached: tuple[Quality, ...]
    steps: tuple[StepQuality, ...]
    curves: Mapping[Name, Curves]


def make_forecasts(
    accepting: AcceptanceModel, following: AcceptanceModel, rows: Mapping[Point, Mapping[Forecast, Rows]], texts: Texts
) -> dict[Name, dict[Point, Forecasts]]:
    """Returns the forecasts a (by `accepting`), b (by `following`) and S on the rows of each point."""
    return {
        "a": {point: _forecasts(accepting, each["accepting"], 0) for point, each in rows.items()},
        "b": {point: _forecasts(following, each["next"], 1) for point, each in rows.items()},
        "S": {
            point: survival_forecasts(accepting, each["accepting"], point, texts, STEPS) for point, each in rows.items()
        },
    }


def evaluate(forecasts: Mapping[Name, Mapping[Point, Forecasts]]) -> Evaluation:
    """Evaluates the forecasts by threshold, by draft position, and as reliability curves."""
    return Evaluation(
        tuple(_quality(name, point, each) for name, points in forecasts.items() for point, each in points.items()),
        tuple(quality for name, points in forecasts.items() for quality in _by_step(name, list(points.values()))),
        {
            name: {_label(point): bins(each.accepted, each.forecast) for point, each in points.items()}
            for name, points in forecasts.items()
        },
    )


def survival_forecasts(model: AcceptanceModel, rows: Rows, point: Point, texts: Texts, steps: int) -> Forecasts:
    """Forecasts S at every step of the r rounds whose first tokens are among the rows.

    As in decoding, a draft goes on past its first rejected token, which drafting cannot know. What it would draft
    there is taken from the target's text: traces along the target hold nothing else. So S is evaluated wherever the
    stopping rule reads it, rejected drafts included. A round ends with its text, at a token that ends the text, or
    after `steps` tokens.

    Args:
        model: forecasts a.
        rows: examples of a.
        steps: tokens of a round, at most.
    """
    begins = _column(rows.values, "step") == 1
    first, problem = rows.values[begins], rows.problem[begins]
    base = texts.rows(problem, _column(first, "position"))
    context, end, accepted = _context(first), texts.ends(base), texts.accepted(*point)
    going, alive = np.ones(len(base), bool), np.ones(len(base), bool)
    chance, probability, entropy = np.ones(len(base)), np.ones(len(base)), np.zeros(len(base))
    drafted: list[Drafted] = []
    parts: list[tuple[Array, ...]] = []
    for step in range(steps):
        going &= base + step < end
        at = np.minimum(base + step, end - 1)
        drafted.append(now := texts.drafted(at))
        values = matrix([*feature_values(drafted, context), *texts.state(at)])
        chance = chance * model.predict_proba(values)[:, 1]
        probability, entropy = probability * now.probability, entropy + now.entropy
        alive &= accepted[at]
        columns = (chance, alive, np.full(len(base), step + 1), probability, entropy)
        parts.append(tuple(column[going] for column in columns))
        going &= now.ends == 0
    return Forecasts(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _forecasts(model: AcceptanceModel, rows: Rows, ahead: int) -> Forecasts:
    """Returns forecasts about the token `ahead` of the last drafted one."""
    values = rows.values
    probability, entropy = _column(values, "probability"), _column(values, "entropy")
    step = _column(values, "step") + ahead
    return Forecasts(model.predict_proba(values)[:, 1], rows.accepted, step, probability, entropy)


def _context(first: Array) -> RoundContext:
    """Reads the rounds' context back from the features of their first tokens."""
    share, score, position, largest_accepted, smallest_rejected = (
        _column(first, name) for name in ("share", "score", "position", "spared", "refused")
    )
    back = tuple(_column(first, f"accepted_{number}_back") for number in (1, 2, 3))
    return RoundContext(position, share, score, back, largest_accepted, smallest_rejected)


def _column(values: Array, name: str) -> Array:
    return np.asarray(values[:, FEATURES.index(name)])


def _quality(name: Name, point: Point, each: Forecasts) -> Quality:
    return Quality(
        forecast=name, score=point[0], threshold=point[1], rows=len(each.forecast),
        accepted=float(each.accepted.mean()), auc=_auc(each.accepted, each.forecast),
        probability_auc=_best_auc(each.accepted, each.probability),
        entropy_auc=_best_auc(each.accepted, each.entropy),
        error=calibration_error(each.accepted, each.forecast),
    )  # fmt: skip


def _by_step(name: Name, forecasts: Sequence[Forecasts]) -> Iterator[StepQuality]:
    columns = ([getattr(each, field.name) for each in forecasts] for field in fields(Forecasts))
    pooled = Forecasts(*map(np.concatenate, columns))
    for step in np.unique(pooled.step[pooled.step <= STEPS]).tolist():
        part = pooled.where(pooled.step == step)
        yield StepQuality(
            name, int(step), len(part.forecast), float(part.accepted.mean()), float(part.forecast.mean()),
            _auc(part.accepted, part.forecast), calibration_error(part.accepted, part.forecast),
        )  # fmt: skip


def _label(point: Point) -> str:
    name, threshold = point
    return f"{name}, lossless" if threshold < 0 else f"{name} ≤ {threshold:.3g}"


def _auc(accepted: Array, score: Array) -> float | None:
    """Returns None where all rows are of one class."""
    return None if accepted.all() or not accepted.any() else auc(accepted, score)


def _best_auc(accepted: Array, score: Array) -> float | None:
    """Returns the AUC of a rival in the direction, high or low, that is better on these very rows."""
    high = _auc(accepted, score)
    return None if high is None else max(high, 1 - high)
