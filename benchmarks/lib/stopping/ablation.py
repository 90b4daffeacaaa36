"""Ablation of the predictor: models trained without some of its features."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fsd_predictors.datasets.rows import Rows
from fsd_predictors.features.features import FEATURES
from fsd_predictors.models.base import AcceptanceModel
from fsd_predictors.models.calibration import fit_calibration
from fsd_predictors.models.registry import MODELS
from lib.common.paired_contest import Array
from lib.stopping.contestants import BeyondEnd, with_models
from lib.stopping.decode import Contestant
from lib.stopping.world import KINDS, World

_HISTORY = ("accepted_1_back", "accepted_2_back", "accepted_3_back", "spared", "refused")
_ENTROPIES = ("entropy", "varentropy", "previous_entropy", "earlier_entropy", "entropies")
_END = ("ends",)
_TOKENS = ("kind", "previous_kind", "probability", "previous_probability", "product")


@dataclass(frozen=True)
class Pair:
    """The acceptance models of a_j and of b_{j+1}."""

    accepting: AcceptanceModel
    next: AcceptanceModel


@lru_cache(1)
def ablations(world: World) -> dict[str, Contestant]:
    """Returns a contestant for each ablation, with a rate λ of its own."""
    costs = world.costs
    removed = {"no entropies": _ENTROPIES, "no history": _HISTORY, "nothing of tokens drawn but their end": _TOKENS}
    pairs = {name: train_without(world, features) for name, features in removed.items()}
    contestants = {name: with_models(world, name, pair.accepting, pair.next, costs) for name, pair in pairs.items()}
    name, endless = "no knowledge of EOS", train_without(world, _END)
    return contestants | {name: with_models(world, name, endless.accepting, endless.next, costs, BeyondEnd)}


def train_without(world: World, features: Collection[str]) -> Pair:
    """Trains models on rows where these features are always 0, so that no tree can split on them.

    Without the feature `ends`, rows after an end of text are left out: such a model must not learn what follows there.
    """
    fitting, calibrating = world.training_rows()
    removed = set(features)
    endless = "ends" in removed
    return Pair(
        fit(world, "accepting", _set_to_0(fitting.accepting, removed), fitting.accepted,
            _set_to_0(calibrating.accepting, removed), calibrating.accepted),
        fit(world, "next", *_next(fitting, removed, endless), *_next(calibrating, removed, endless)),
    )  # fmt: skip


def fit(
    world: World, role: str, rows: Array, accepted: Array, calibrating: Array, calibrating_accepted: Array
) -> AcceptanceModel:
    """Fits and calibrates a model as `train` does, with the hyperparameters that `train` chose."""
    parameters = world.predictors[KINDS[0]].facts.parameters[role]
    model = MODELS[KINDS[0]](share=0, **parameters).fit(rows, accepted)
    return fit_calibration(model, calibrating, calibrating_accepted)


def _next(rows: Rows, removed: Collection[str], endless: bool) -> tuple[Array, Array]:
    goes_on = rows.next[:, FEATURES.index("ends")] == 0 if endless else np.ones(len(rows.next), bool)
    return _set_to_0(rows.next[goes_on], removed), rows.next_accepted[goes_on]


def _set_to_0(rows: Array, removed: Collection[str]) -> Array:
    return np.where([name in removed for name in FEATURES], 0.0, rows)
