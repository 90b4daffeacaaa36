"""Judges of some stories on problems of other ones, as on another task of the same pair."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from fsd_predictors.judging.card import elsewhere, rankings
from fsd_predictors.judging.training import Origin, train_judge


def across(labels: pd.DataFrame, stories: Mapping[int, str], origin: Origin, trials: int) -> Iterator[dict[str, Any]]:
    """Yields, for each half of the stories, how a judge of the other half ranks its mismatches, and what else does.

    Args:
        stories: the story of each problem, by its id.
        trials: see `train_judge`.
    """
    told = labels["problem"].map(stories)
    names = sorted(set(stories.values()))
    halves = [labels[told.isin(names[begin::2])] for begin in range(2)]
    trained = [train_judge(half, origin, trials=trials) for half in halves]
    for own, other, half in zip(trained, trained[::-1], halves, strict=True):
        found, at_home = elsewhere(other.judge, half), rankings(own)
        best = max((name for name in found if name != "judge"), key=lambda name: found[name])
        yield {
            "labels": len(half), "of_other_stories": found["judge"], "of_these": at_home["judge"], "best": best,
            "of_the_best": found[best],
        }  # fmt: skip
