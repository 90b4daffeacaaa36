"""The card of a judge: how well it ranks harmful mismatches, beside every divergence and margin, and what it reads."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from scipy.special import expit
from sklearn.metrics import log_loss, roc_auc_score

from fsd_common.pages.blocks import Sheet
from fsd_decoding.divergence import DIVERGENCES
from fsd_decoding.judging.features import FEATURES, TABLE
from fsd_decoding.judging.model import JudgeModel
from fsd_decoding.judging.on_device import OnDevice
from fsd_decoding.sampling import SETTINGS
from fsd_predictors.judging.models import Examples
from fsd_predictors.judging.training import FOLDS, Trained, examples_of
from fsd_predictors.models.base import Array
from fsd_predictors.training.card import MOST_ROWS, PERMUTATION, markdown, permuted
from fsd_predictors.training.evaluation import bins, calibration_error

RANKERS = (*DIVERGENCES, "margin", "relaxed")
"""Scores that a judge is compared with."""
_BINS = 8  # of the table of calibration
_TEXT = """# Judge {name}: {kind}, of {task}

Says of a drafted token that the target would not have written how likely it is that keeping it changes the outcome.
The figures of the first two tables are of problems on which neither the judge that is evaluated was fitted nor its
settings or calibration were chosen: the judges of {folds} folds. A mismatch counts as many times as its probability
to be labelled goes into 1.

{sheets}"""


def rankings(trained: Trained) -> Mapping[str, float]:
    """Returns the AUC of the judge on unseen problems, and of each divergence and margin on the same mismatches: the
    chance that a harmful one has the larger score."""
    return _rankings(trained.examples, trained.unseen)


def elsewhere(judge: JudgeModel, labels: pd.DataFrame) -> Mapping[str, float]:
    """Returns the same of labels that are of another task, or of problems that the judge was not trained on.

    UsageError: as `examples_of` raises it.
    """
    examples = examples_of(labels)
    numbers = OnDevice.of(judge.offset, judge.line, judge.trees, torch.device("cpu"))
    read = torch.tensor(labels[list(judge.features)].to_numpy(np.float32))
    return _rankings(examples, numbers.logit(read).numpy())


def card_of(trained: Trained, seed: int = 0) -> str:
    """Returns the card in Markdown; `seed` is of the permutations."""
    judge = trained.judge
    sheets = [_ranked(trained), _calibrated(trained), _read(trained, seed), _data(trained)]
    return _TEXT.format(
        name=judge.name, kind=judge.kind, task=judge.task, folds=FOLDS, sheets="\n".join(map(markdown, sheets))
    )


def card_elsewhere(judge: JudgeModel, others: Mapping[str, pd.DataFrame]) -> str:
    """Returns what follows in the card, in Markdown: how a judge ranks labels of other tasks, by their names.

    They must be of the same models and sampling. UsageError: as `examples_of` raises it.
    """
    rows = []
    for task, labels in others.items():
        judged, *rest = elsewhere(judge, labels).items()
        best, auc = max(rest, key=lambda each: each[1])
        rows.append((task, f"{len(labels):,}", f"{judged[1]:.3f}", f"{auc:.3f} ({best})"))
    return markdown(Sheet(
        "Other tasks", ("task", "labels", "AUC of the judge", "best of the others"), tuple(rows),
        "By the judge that is kept, which was trained on none of them; a certificate says what it keeps there.",
    ))  # fmt: skip


def _rankings(examples: Examples, judged: Array) -> Mapping[str, float]:
    columns = {name: examples.values[:, FEATURES.index(name)] for name in RANKERS}
    return {name: _auc(examples, scores) for name, scores in {"judge": judged, **columns}.items()}


def _auc(examples: Examples, scores: Array) -> float:
    return float(roc_auc_score(examples.harmful, scores, sample_weight=examples.counts))


def _ranked(trained: Trained) -> Sheet:
    found = sorted(rankings(trained).items(), key=lambda each: -each[1])
    return Sheet(
        "Ranking of harmful mismatches", ("score", "AUC"), tuple((name, f"{auc:.3f}") for name, auc in found),
        "AUC: the chance that a harmful mismatch has a larger score than a harmless one.",
    )  # fmt: skip


def _calibrated(trained: Trained) -> Sheet:
    harmful, forecast = trained.examples.harmful, trained.unseen
    weights = trained.examples.counts
    rows = zip(*bins(harmful, forecast, _BINS, weights), strict=True)
    error = calibration_error(harmful, forecast, _BINS, weights)
    return Sheet(
        "Calibration", ("forecast", "harmful"), tuple((f"{one:.2%}", f"{other:.2%}") for one, other in rows),
        f"Mean forecast and share harmful, in bins of equal weight; the mean distance is {error:.2%}.",
    )  # fmt: skip


def _read(trained: Trained, seed: int) -> Sheet:
    random, examples, fitted = np.random.default_rng(seed), trained.examples, trained.fitted
    chosen = examples.at(random.permutation(len(examples.harmful))[:MOST_ROWS])

    def loss(rows: Array) -> float:
        forecast = expit(fitted.logits(rows))
        return float(log_loss(chosen.harmful, forecast, sample_weight=chosen.counts, labels=[False, True]))

    sizes = permuted(loss, [slice(each, each + 1) for each in fitted.columns], chosen.values, random)
    shares = sizes / max(sizes.sum(), np.finfo(float).tiny)
    ranked = sorted(zip(fitted.features, shares, strict=True), key=lambda each: -each[1])
    return Sheet(
        "Importance of features", ("feature", "is", "share"),
        tuple((name, TABLE[name].meaning, f"{share:.1%}") for name, share in ranked),
        f"{PERMUTATION[0].upper()}{PERMUTATION[1:]}.", names=2,
    )  # fmt: skip


def _data(trained: Trained) -> Sheet:
    examples, judge = trained.examples, trained.judge
    drawn = judge.model_dump(include={*SETTINGS})
    settings = ", ".join(f"{n} {v:.3g}" if isinstance(v, float) else f"{n} {v}" for n, v in trained.settings.items())
    entries = {
        "labelled mismatches": f"{judge.labels:,}, of {len(np.unique(examples.problem)):,} problems",
        "problems read": f"{len(judge.trained_ids):,}",
        "harmful": f"{np.average(examples.harmful, weights=examples.counts):.1%}",
        "settings": settings,
        "sampling": ", ".join(f"{name} {drawn[name]:g}" for name in SETTINGS if drawn[name] is not None),
    }
    return Sheet("Data", (), tuple(entries.items()))
