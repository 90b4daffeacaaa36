"""The predictor with something taken away: what each part of it is worth.

Knows which features hold what, and how models are fitted anew without them. Knows no clock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fsd_predictors.features import ACCEPTING, NEXT
from fsd_predictors.models import MODELS, AcceptanceModel, calibrated
from fsd_predictors.rows import Rows
from stopping_decode import Array, Contestant
from stopping_predicted import BeyondEnd, NeverWithholds, by_models
from stopping_world import KINDS, World

_HISTORY = ("accepted_1_back", "accepted_2_back", "accepted_3_back", "spared", "refused")
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
    whole, costs = world.predictors[KINDS[0]], world.costs
    blind = {"no history": _HISTORY, "nothing of tokens drawn but their end": _TOKENS}
    found = {name: without(world, features) for name, features in blind.items()}
    endless = without(world, _END)
    return {
        "no withholding": by_models(
            world, "no withholding", whole.accepting, whole.next, costs, NeverWithholds
        ),
        "no knowledge of EOS": by_models(
            world, "no knowledge of EOS", endless.accepting, endless.next, costs, BeyondEnd
        ),
    } | {name: by_models(world, name, pair.accepting, pair.next, costs) for name, pair in found.items()}  # fmt: skip


def without(world: World, features: Collection[str]) -> Pair:
    """Trained where these are always 0: no tree asks for what never differs.

    Who does not know that a text ended was never taught what follows: such rows are left out.
    """
    fitting, mending = world.training_rows()
    blank = set(features)
    endless = "ends" in blank
    return Pair(
        fitted(world, "accepting", _blanked(fitting.accepting, ACCEPTING, blank), fitting.accepted,
               _blanked(mending.accepting, ACCEPTING, blank), mending.accepted),
        fitted(world, "next", *_next(fitting, blank, endless), *_next(mending, blank, endless)),
    )  # fmt: skip


def fitted(world: World, role: str, rows: Array, accepted: Array, mending: Array, mended: Array) -> AcceptanceModel:
    """As `train` does it, with the settings that it found."""
    parameters = world.predictors[KINDS[0]].facts.parameters[role]
    return calibrated(MODELS[KINDS[0]](share=0, **parameters).fit(rows, accepted), mending, mended)


def _next(rows: Rows, blank: Collection[str], endless: bool) -> tuple[Array, Array]:
    goes_on = rows.next[:, NEXT.index("ends")] == 0 if endless else np.ones(len(rows.next), bool)
    return _blanked(rows.next[goes_on], NEXT, blank), rows.next_accepted[goes_on]


def _blanked(rows: Array, names: tuple[str, ...], blank: Collection[str]) -> Array:
    return np.where([name in blank for name in names] + [False] * (rows.shape[1] - len(names)), 0.0, rows)
