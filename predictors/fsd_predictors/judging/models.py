"""The models that a judge is made of: piecewise linear logistic regression, and boosted trees of few levels.

Both are monotone in the features that have a sign, and end as the plain numbers that decoding evaluates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import lightgbm
import numpy as np
import optuna
import torch

from fsd_decoding.judging.features import FEATURES, TABLE
from fsd_decoding.judging.model import Line, Trees
from fsd_decoding.judging.on_device import OnDevice
from fsd_predictors.models.base import Array
from fsd_predictors.models.monotone import Encoding, fit_weights

_NO_LINE, _NO_TREES = Line(column=(), low=(), high=(), weight=()), Trees(column=(), threshold=(), leaf=())


class Examples(NamedTuple):
    """n labelled mismatches."""

    values: Array  # (n, F) features, in the order of `FEATURES`
    harmful: Array  # (n,) bool
    counts: Array  # (n,) how much each one counts
    problem: Array  # (n,) ids

    def at(self, chosen: Array) -> Examples:
        """The examples of a mask or of indices."""
        return Examples(*(each[chosen] for each in self))


@dataclass(frozen=True)
class Fitted:
    """A fitted model: the logit that its mismatches are harmful.

    Args:
        columns: the features that it reads, by their place among `FEATURES`.
        offset, line, trees: see `fsd_decoding.judging.model.JudgeModel`; columns there are places among these.
    """

    columns: tuple[int, ...]
    offset: float
    line: Line = _NO_LINE
    trees: Trees = _NO_TREES

    def logits(self, values: Array) -> Array:
        """Returns the logits (n,) of features (n, F), as decoding computes them."""
        numbers = OnDevice.of(self.offset, self.line, self.trees, torch.device("cpu"))
        found: Array = numbers.logit(torch.from_numpy(values[:, self.columns]).float()).double().numpy()
        return found

    @property
    def features(self) -> tuple[str, ...]:
        """The names of what it reads."""
        return tuple(FEATURES[column] for column in self.columns)

    def calibrated(self, slope: float, offset: float) -> Fitted:
        """The model with the logit slope * logit + offset."""
        line = self.line.model_copy(update={"weight": tuple(slope * each for each in self.line.weight)})
        leaf = tuple(tuple(slope * each for each in tree) for tree in self.trees.leaf)
        trees = self.trees.model_copy(update={"leaf": leaf})
        return replace(self, offset=slope * self.offset + offset, line=line, trees=trees)

    def lean(self) -> Fitted:
        """The same model, which computes no feature that moves nothing."""
        pieces = [place for place, weight in enumerate(self.line.weight) if weight != 0]
        used = sorted({*(self.line.column[each] for each in pieces), *(c for t in self.trees.column for c in t)}) or [0]
        place = {column: new for new, column in enumerate(used)}
        line = Line(
            column=tuple(place[self.line.column[each]] for each in pieces),
            low=tuple(self.line.low[each] for each in pieces), high=tuple(self.line.high[each] for each in pieces),
            weight=tuple(self.line.weight[each] for each in pieces),
        )  # fmt: skip
        trees = self.trees.model_copy(
            update={"column": tuple(tuple(place[each] for each in tree) for tree in self.trees.column)}
        )
        return replace(self, columns=tuple(self.columns[each] for each in used), line=line, trees=trees)


Fit = Callable[[Examples, Sequence[int], Mapping[str, Any]], Fitted]


def signs_of(columns: Sequence[int]) -> Array:
    """Returns the sign of each column's effect: 1, -1, or 0 where it is free."""
    return np.array([TABLE[FEATURES[column]].sign for column in columns])


def fit_logistic(examples: Examples, columns: Sequence[int], settings: Mapping[str, Any]) -> Fitted:
    """Fits a logistic regression on piecewise linear functions of the columns, each bounded to its sign.

    They are flat beyond what the examples hold.

    Args:
        settings: knots of each function, and the L2 penalty `l2` on the weights of standardised pieces.
    """
    encoding = Encoding.of(examples.values, columns, settings["knots"])
    seen = examples.values[:, encoding.column]  # beyond which an end piece, of few rows and any slope, says nothing
    encoding = replace(encoding, low=np.maximum(encoding.low, seen.min(0)), high=np.minimum(encoding.high, seen.max(0)))
    signs = signs_of(encoding.column.tolist())
    turned = np.where(signs < 0, -1.0, 1.0)  # so that all bounds are from below
    rows = np.column_stack([np.ones(len(examples.values)), encoding(examples.values) * turned])
    lowest = np.append(-np.inf, np.where(signs == 0, -np.inf, 0.0))
    weights = fit_weights(rows, examples.harmful, np.zeros(len(lowest)), lowest, settings["l2"], examples.counts)
    slopes = weights[1:] * turned / encoding.spread
    place = {column: new for new, column in enumerate(columns)}
    line = Line(
        column=tuple(place[int(column)] for column in encoding.column),
        low=tuple(encoding.low.tolist()), high=tuple(encoding.high.tolist()), weight=tuple(slopes.tolist()),
    )  # fmt: skip
    return Fitted(tuple(columns), float(weights[0] - slopes @ encoding.mean), line).lean()


def fit_boosted(examples: Examples, columns: Sequence[int], settings: Mapping[str, Any]) -> Fitted:
    """Fits boosted trees by LightGBM (Ke et al. 2017), with monotone constraints.

    Args:
        settings: number of `trees`, their `depth`, `learning_rate`, `rows_a_leaf` and `l2`.
    """
    parameters = {
        "objective": "binary", "num_leaves": 1 << settings["depth"], "max_depth": settings["depth"],
        "learning_rate": settings["learning_rate"], "min_data_in_leaf": settings["rows_a_leaf"],
        "lambda_l2": settings["l2"], "monotone_constraints": signs_of(columns).tolist(),
        "monotone_constraints_method": "basic", "deterministic": True, "force_row_wise": True, "num_threads": 1,
        "verbose": -1,
    }  # fmt: skip
    counts = examples.counts / examples.counts.mean()
    data = lightgbm.Dataset(examples.values[:, list(columns)], examples.harmful, weight=counts)
    dumped = lightgbm.train(parameters, data, settings["trees"]).dump_model()["tree_info"]
    complete = [_completed(tree["tree_structure"], settings["depth"]) for tree in dumped]
    split, threshold, leaf = (tuple(parts) for parts in zip(*complete, strict=True))
    return Fitted(tuple(columns), 0.0, trees=Trees(column=split, threshold=threshold, leaf=leaf)).lean()


def _completed(tree: Mapping[str, Any], depth: int) -> tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...]]:
    """A tree of LightGBM as a complete one: columns and thresholds of inner nodes, and leaves, by level.

    Thresholds are rounded to the next fp32 number at or below, so that fp32 features are compared alike.
    """
    level, columns, thresholds = [tree], [0] * 0, [0.0] * 0
    for _ in range(depth):
        following: list[Mapping[str, Any]] = []
        for node in level:
            split = "split_feature" in node
            columns.append(node["split_feature"] if split else 0)
            thresholds.append(_rounded_down(node["threshold"]) if split else 0.0)
            following += [node["left_child"], node["right_child"]] if split else [node, node]
        level = following
    return tuple(columns), tuple(thresholds), tuple(float(node["leaf_value"]) for node in level)


def _rounded_down(value: float) -> float:
    rounded = np.float32(value)
    return float(rounded if rounded <= value else np.nextafter(rounded, np.float32(-np.inf)))


def _logistic(trial: optuna.Trial) -> dict[str, Any]:
    return {"knots": trial.suggest_int("knots", 0, 6), "l2": trial.suggest_float("l2", 1e-4, 1e-1, log=True)}


def _boosted(trial: optuna.Trial) -> dict[str, Any]:
    return {
        "trees": trial.suggest_int("trees", 20, 80),
        "depth": trial.suggest_int("depth", 2, 4),
        "learning_rate": trial.suggest_float("learning_rate", 0.03, 0.3, log=True),
        "rows_a_leaf": trial.suggest_int("rows_a_leaf", 5, 100, log=True),
        "l2": trial.suggest_float("l2", 0.1, 30.0, log=True),
    }


class Kind(NamedTuple):
    """A kind of model: how it is fitted, and the settings that Optuna chooses from, with those to begin with."""

    fit: Fit
    space: Callable[[optuna.Trial], dict[str, Any]]
    usual: Mapping[str, Any]


KINDS: Mapping[str, Kind] = {
    "logistic": Kind(fit_logistic, _logistic, {"knots": 3, "l2": 1e-2}),
    "boosted": Kind(
        fit_boosted, _boosted, {"trees": 40, "depth": 3, "learning_rate": 0.1, "rows_a_leaf": 20, "l2": 5.0}
    ),
}
