"""The predictor with something taken away: what each part of it is worth.

Knows which features hold what, and how models are fitted anew without them. Knows no clock.
"""

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
from lib.stopping.decode import Array, Contestant
from lib.stopping.predicted import BeyondEnd, by_models
from lib.stopping.world import KINDS, World

_HISTORY = ("accepted_1_back", "accepted_2_back", "accepted_3_back", "spared", "refused")
_ENTROPIES = ("entropy", "varentropy", "previous_entropy", "earlier_entropy", "entropies")
_END = ("ends",)
_TOKENS = ("kind", "previous_kind", "probability", "previous_probability", "product")


@dataclass(frozen=True)
class Pair:
    """Models of a_j and b_{j+1}."""

    accepting: AcceptanceModel
    next: AcceptanceModel


@lru_cache(1)
def ablations(world: World) -> dict[str, Contestant]:
    """Each with a λ of its own."""
    costs = world.costs
    blind = {"no entropies": _ENTROPIES, "no history": _HISTORY, "nothing of tokens drawn but their end": _TOKENS}
    pairs, endless = {name: without(world, features) for name, features in blind.items()}, without(world, _END)
    found = {name: by_models(world, name, pair.accepting, pair.next, costs) for name, pair in pairs.items()}
    name = "no knowledge of EOS"
    return found | {name: by_models(world, name, endless.accepting, endless.next, costs, BeyondEnd)}


def without(world: World, features: Collection[str]) -> Pair:
    """Trained where these are always 0: no tree asks for what never differs.

    Who does not know that a text ended was never taught what follows: such rows are left out.
    """
    fitting, mending = world.training_rows()
    blank = set(features)
    endless = "ends" in blank
    return Pair(
        fitted(world, "accepting", _blanked(fitting.accepting, blank), fitting.accepted,
               _blanked(mending.accepting, blank), mending.accepted),
        fitted(world, "next", *_next(fitting, blank, endless), *_next(mending, blank, endless)),
    )  # fmt: skip


def fitted(world: World, role: str, rows: Array, accepted: Array, mending: Array, mended: Array) -> AcceptanceModel:
    """As `train` does it, with the settings that it found."""
    parameters = world.predictors[KINDS[0]].facts.parameters[role]
    return fit_calibration(MODELS[KINDS[0]](share=0, **parameters).fit(rows, accepted), mending, mended)


def _next(rows: Rows, blank: Collection[str], endless: bool) -> tuple[Array, Array]:
    goes_on = rows.next[:, FEATURES.index("ends")] == 0 if endless else np.ones(len(rows.next), bool)
    return _blanked(rows.next[goes_on], blank), rows.next_accepted[goes_on]


def _blanked(rows: Array, blank: Collection[str]) -> Array:
    return np.where([name in blank for name in FEATURES], 0.0, rows)
