"""Designs of a judge, trained at several budgets and on several samples of the labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

from fsd_calib import SpeculativeDecoder
from fsd_common.errors import UsageError
from fsd_decoding.judging.features import FEATURES, PAST, TABLE
from fsd_decoding.judging.known import register
from fsd_decoding.judging.token_classes import token_classes
from fsd_decoding.models.fingerprint import model_fingerprint, tokenizer_fingerprint
from fsd_decoding.models.runner import vocabulary_size
from fsd_predictors.judging.card import RANKERS
from fsd_predictors.judging.models import KINDS
from fsd_predictors.judging.training import SHOWN, Origin, Trained, train_judge
from lib.judge.labels import within


class Design(NamedTuple):
    """What a judge may read, and the kinds of models that Optuna chooses from."""

    features: Sequence[str]
    kinds: Sequence[str] = tuple(KINDS)


_NUMBERS = [name for name in SHOWN if not TABLE[name].classed]
USUAL = "usual"
DESIGNS: Mapping[str, Design] = {
    USUAL: Design(SHOWN), "logistic": Design(SHOWN, ["logistic"]), "boosted": Design(SHOWN, ["boosted"]),
    "numbers": Design(_NUMBERS), "context": Design([name for name in FEATURES if name not in PAST]),
}  # fmt: skip
"""What `--judge auto` trains; each kind of model alone; without the classes of tokens; and with the token before x and
the place of x."""
_SEEDS = 2  # samples of the labels, where they are of different ones
TRIALS = 8


@dataclass(frozen=True)
class Made:
    """A trained judge.

    Args:
        design, budget, seed: what it was trained with.
        score: its name.
        auc: on labels of problems that it was not trained on; None: there are no others.
        crossed: its AUC by cross-fitting.
    """

    design: str
    budget: int
    seed: int
    score: str
    kind: str
    features: int
    auc: float | None
    crossed: float

    def __str__(self) -> str:
        return f"judge of {self.design}, {self.budget:,} labels, sample {self.seed}"


def made(labels: pd.DataFrame, decoder: SpeculativeDecoder, quick: bool, budgets: Sequence[int]) -> Iterator[Made]:
    """Yields the judges: the usual design at every budget and on several samples, the others at the middle budget.

    UsageError: there are fewer labels than a budget.
    """
    if max(budgets) > len(labels):
        raise UsageError(f"there are {len(labels)} labels, and a budget is {max(budgets)}; label more, or give smaller")
    asked = [(USUAL, budget, seed) for budget in budgets for seed in range(_SEEDS if budget < len(labels) / 2 else 1)]
    middle = budgets[len(budgets) // 2]
    asked += [(design, middle, 0) for design in DESIGNS if design != USUAL]
    origin = origin_of(decoder)
    for design, budget, seed in asked[:1] if quick else asked:
        chosen = within(labels, budget, seed)
        trained = train_judge(chosen, origin, *DESIGNS[design], trials=0 if quick else TRIALS, seed=seed)
        others = labels[~labels["problem"].isin(chosen["problem"].unique())]
        auc = _auc(others, _forecast(trained, others)) if others["harmful"].nunique() == 2 else None
        crossed = _auc(chosen, trained.unseen)
        judge = trained.judge
        yield Made(design, budget, seed, register(judge), judge.kind, len(judge.features), auc, crossed)


def of_scores(labels: pd.DataFrame) -> dict[str, float]:
    """Returns the AUC of every divergence and margin on all labels."""
    return {name: _auc(labels, labels[name].to_numpy()) for name in RANKERS}


def _forecast(trained: Trained, labels: pd.DataFrame) -> np.ndarray:
    return trained.fitted.logits(labels[list(FEATURES)].to_numpy(np.float64))


def _auc(labels: pd.DataFrame, scores: np.ndarray) -> float:
    return float(roc_auc_score(labels["harmful"], scores, sample_weight=1 / labels["probability"]))


def origin_of(decoder: SpeculativeDecoder) -> Origin:
    """Returns what judges of a decoder are learned for."""
    target, draft = (model_fingerprint(model) for model in (decoder.target, decoder.draft))
    vocabulary = max(vocabulary_size(model) for model in (decoder.target, decoder.draft))
    return Origin(
        target, draft, tokenizer_fingerprint(decoder.tokenizer), decoder.sampling, "arithmetic",
        token_classes(decoder.tokenizer, vocabulary),
    )  # fmt: skip
