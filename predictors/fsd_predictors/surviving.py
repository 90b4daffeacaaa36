"""S_j, the chance that all of a draft's first j tokens are accepted, as the stopping rule multiplies it up.

Knows features of rounds. A round goes on here behind its first rejected token too, as drafting does, which cannot know:
with what the draft says along the target's text, since no such trace knows what it would have gone on to. So S is
judged where the rule reads it, rejected drafts included.
"""

from __future__ import annotations

import numpy as np

from fsd_predictors.evaluating import Judged, Point
from fsd_predictors.features import FEATURES, Array, Drafted, Place, known, matrix
from fsd_predictors.models import AcceptanceModel
from fsd_predictors.texts import Texts


def survival(model: AcceptanceModel, first: Array, problem: Array, point: Point, texts: Texts, steps: int) -> Judged:
    """S at every step of r rounds, by the features of their first tokens (r, features) and their problems (r,).

    Beside it, for probability and entropy, stand the product and the sum of theirs. A round ends with its text, behind
    a token that ends one, or after so many steps.
    """
    base = texts.rows(problem, _column(first, "position"))
    place, end, accepted = _place(first), texts.ends(base), texts.accepted(*point)
    going, alive = np.ones(len(base), bool), np.ones(len(base), bool)
    chance, probability, entropy = np.ones(len(base)), np.ones(len(base)), np.zeros(len(base))
    drafted: list[Drafted] = []
    told: list[tuple[Array, ...]] = []
    for step in range(steps):
        going &= base + step < end
        rows = np.minimum(base + step, end - 1)
        drafted.append(now := texts.drafted(rows))
        values = matrix([*known(drafted, place), *texts.state(rows)])
        chance = chance * model.predict_proba(values)[:, 1]
        probability, entropy = probability * now.probability, entropy + now.entropy
        alive &= accepted[rows]
        told.append(tuple(each[going] for each in (chance, alive, np.full(len(base), step + 1), probability, entropy)))
        going &= now.ends == 0
    return Judged(*(np.concatenate(column) for column in zip(*told, strict=True)))


def _place(first: Array) -> Place:
    share, divergence, position, spared, refused = (
        _column(first, name) for name in ("share", "divergence", "position", "spared", "refused")
    )
    back = tuple(_column(first, f"accepted_{number}_back") for number in (1, 2, 3))
    return Place(position, share, divergence, back, spared, refused)


def _column(first: Array, name: str) -> Array:
    return np.asarray(first[:, FEATURES.index(name)])
