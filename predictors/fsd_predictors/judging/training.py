"""`train_judge`: learns from labelled mismatches which of them change the outcome.

Settings are chosen by Optuna on the log loss of problems that were not fitted, and the logits that calibrate the judge
are of such problems too. Its card is of problems that settings, fit and calibration have not seen: each fold of them is
judged by a judge that was made of the others in the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
import pandas as pd
from scipy.special import expit
from sklearn.metrics import log_loss
from torch import Tensor

from fsd_common.errors import UsageError
from fsd_common.packed_ids import pack_ids
from fsd_decoding.judging.features import FEATURES, TABLE
from fsd_decoding.judging.model import JudgeModel
from fsd_decoding.judging.on_device import packed_classes
from fsd_decoding.sampling import SETTINGS, Sampling
from fsd_predictors.judging.models import KINDS, Examples, Fitted
from fsd_predictors.models.base import Array
from fsd_predictors.models.monotone import fit_weights
from fsd_predictors.training.tuning import best_settings

FOLDS = 5  # of problems, each judged by a model of the others
TRIALS = 12
_INNER = 3  # folds of a trial, and of a calibration
_LEAST = 10  # harmful mismatches, and harmless ones
_PLATT = 1e-3  # L2 penalty on the distance of the calibration from the identity
SHOWN = tuple(name for name in FEATURES if not TABLE[name].context)
"""Features that do not depend on the text before, which vLLM does not show."""
_GROUPS = {"all": 1.02, "likelihoods": 1.0}  # by what their log loss counts: all take twice as long in decoding
_LIKELIHOODS = ("log_p_x", "log_p_y", "log_q_x", "log_q_y", "relaxed", "margin")


@dataclass(frozen=True)
class Origin:
    """What a judge is learned for. All but `classes`, of tokens, are as in `JudgeModel`."""

    target: str
    draft: str
    tokenizer: str
    sampling: Sampling
    task: str
    classes: Tensor  # (V,) uint8, see `token_classes`
    phase: tuple[str | int, str | int] | None = None


@dataclass(frozen=True)
class Trained:
    """A judge, and what its card is made of.

    Args:
        examples: what it was trained on.
        unseen: (n,) for each of them P(harmful) by a judge that was trained and calibrated on other problems.
        settings: what Optuna chose.
    """

    judge: JudgeModel
    fitted: Fitted
    examples: Examples
    unseen: Array
    settings: Mapping[str, Any]


def examples_of(labels: pd.DataFrame) -> Examples:
    """Returns labels as examples. UsageError: they are not of outcomes, or too few are harmful, or harmless."""
    if "harmful" not in labels:
        raise UsageError(
            "the labels are changes of a likelihood (mode self), and a judge learns from outcomes; collect labels "
            "with mode outcome"
        )
    harmful = labels["harmful"].to_numpy(bool)
    for count, what in ((harmful.sum(), "harmful"), ((~harmful).sum(), "harmless")):
        if count < _LEAST:
            raise UsageError(
                f"{count} of {len(harmful)} labelled mismatches are {what}; a judge needs at least {_LEAST}: label "
                "more, or do without a judge if hardly any changes the outcome"
            )
    counts = 1.0 / labels["probability"].to_numpy(np.float64)
    return Examples(labels[list(FEATURES)].to_numpy(np.float64), harmful, counts, labels["problem"].to_numpy())


def train_judge(
    labels: pd.DataFrame,
    origin: Origin,
    features: Sequence[str] = SHOWN,
    kinds: Sequence[str] = tuple(KINDS),
    trials: int = TRIALS,
    seed: int = 0,
    read: Collection[int] = (),
) -> Trained:
    """Returns a judge of these labels.

    Args:
        labels: as `read_labels` returns them: a row for each mismatch, with its features, `harmful` and `probability`.
        features: those that may be read; by default those that every engine shows.
        kinds: kinds of models to choose from, keys of `KINDS`.
        trials: of Optuna, for each fold; 0 takes the usual settings.
        seed: of the folds and of Optuna.
        read: problems that were read for labels, also those that have none, as the target's answer is wrong. They count
            as trained on: without them, what is left would be another kind of problems.

    Raises:
        UsageError: the labels are not of outcomes, or too few mismatches are harmful, or harmless, or they are of fewer
            problems than folds.
    """
    examples, unseen = examples_of(labels), np.zeros(len(labels))
    columns = _columns(features)
    for inside, outside in _folds(examples.problem, FOLDS, seed):
        fitted, _ = _learned(examples.at(inside), columns, kinds, trials, seed)
        unseen[outside] = fitted.logits(examples.values[outside])
    fitted, settings = _learned(examples, columns, kinds, trials, seed)
    judge = _judge(fitted, origin, examples, settings["kind"], read)
    return Trained(judge, fitted, examples, expit(unseen), settings)


def _learned(
    examples: Examples, columns: Mapping[str, Sequence[int]], kinds: Sequence[str], trials: int, seed: int
) -> tuple[Fitted, Mapping[str, Any]]:
    """The calibrated model of examples, and its settings."""
    settings = _chosen(examples, columns, kinds, trials, seed)
    logits = _crossed(examples, settings, columns, seed)
    return _fit(examples, settings, columns).calibrated(*_platt(logits, examples)), settings


def _crossed(examples: Examples, settings: Mapping[str, Any], columns: Mapping[str, Sequence[int]], seed: int) -> Array:
    """The logits (n,) of examples, each by a model that was fitted to other problems."""
    logits = np.zeros(len(examples.harmful))
    for inside, outside in _folds(examples.problem, _INNER, seed):
        logits[outside] = _fit(examples.at(inside), settings, columns).logits(examples.values[outside])
    return logits


def _columns(features: Sequence[str]) -> Mapping[str, Sequence[int]]:
    """The columns of each group of features."""
    every = [place for place, name in enumerate(FEATURES) if name in features]
    few = [place for place in every if FEATURES[place] in _LIKELIHOODS or TABLE[FEATURES[place]].classed]
    return {"all": every, "likelihoods": few}


def _folds(problem: Array, count: int, seed: int) -> Iterator[tuple[Array, Array]]:
    """Yields the rows of all problems but a fold's, and the fold's: masks (n,)."""
    ids, number = np.unique(problem, return_inverse=True)
    if len(ids) < count:
        raise UsageError(
            f"the labelled mismatches are of {len(ids)} problems; a judge needs at least {count}: label more"
        )
    fold = (np.random.default_rng(seed).permutation(len(ids)) % count)[number]
    for each in range(count):
        yield fold != each, fold == each


def _chosen(
    examples: Examples, columns: Mapping[str, Sequence[int]], kinds: Sequence[str], trials: int, seed: int
) -> Mapping[str, Any]:
    """The kind, group of features and settings with the least log loss on held-out problems of these, see `_GROUPS`."""
    usual = {"kind": kinds[0], "features": "all", **KINDS[kinds[0]].usual}
    if not trials:
        return usual

    def loss(trial: optuna.Trial) -> float:
        kind = trial.suggest_categorical("kind", kinds)
        group = trial.suggest_categorical("features", [*_GROUPS])
        logits = _crossed(examples, {"kind": kind, "features": group, **KINDS[kind].space(trial)}, columns, seed)
        counts, outcomes = examples.counts, [False, True]
        loss = log_loss(examples.harmful, expit(logits), sample_weight=counts, labels=outcomes)
        return float(_GROUPS[group] * loss)

    return best_settings(loss, trials, seed, usual)


def _fit(examples: Examples, settings: Mapping[str, Any], columns: Mapping[str, Sequence[int]]) -> Fitted:
    return KINDS[settings["kind"]].fit(examples, columns[settings["features"]], settings)


def _platt(logits: Array, examples: Examples) -> tuple[float, float]:
    """The slope, which is not negative, and the offset that calibrate logits (n,) of unseen problems (Platt 1999)."""
    rows = np.column_stack([logits, np.ones(len(logits))])
    centre, lowest = np.array([1.0, 0.0]), np.array([0.0, -np.inf])
    slope, offset = fit_weights(rows, examples.harmful, centre, lowest, _PLATT, examples.counts).tolist()
    return slope, offset


def _judge(fitted: Fitted, origin: Origin, examples: Examples, kind: str, read: Collection[int]) -> JudgeModel:
    classed = any(TABLE[name].classed for name in fitted.features)
    phase = origin.phase if "phase" in fitted.features else None
    drawn = {name: getattr(origin.sampling, name) for name in SETTINGS}
    return JudgeModel(
        features=fitted.features, offset=fitted.offset, line=fitted.line, trees=fitted.trees, kind=kind,
        target=origin.target, draft=origin.draft, tokenizer=origin.tokenizer, task=origin.task,
        labels=len(examples.harmful), trained=pack_ids({*examples.problem.tolist(), *read}),
        classes=packed_classes(origin.classes) if classed else "", phase=phase, **drawn,
    )  # fmt: skip
