"""Quality of the predictors' forecasts on the test problems, compared with numbers of q on the same rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fsd_predictors.datasets.rows import Rows, training_rows
from fsd_predictors.datasets.texts import Texts
from fsd_predictors.features.features import FEATURES
from fsd_predictors.features.share_scale import MOST, NEVER
from fsd_predictors.models.metrics import falls
from fsd_predictors.training.evaluation import evaluate, make_forecasts
from lib.stopping.world import DIVERGENCE, KINDS, RULE, World

_SHARES = 40  # thresholds at which each random row is forecast


def forecast_quality(world: World, threshold: float) -> dict[str, Any]:
    """Returns for each kind of predictor AUC and calibration at this T, and violations of monotonicity in T."""
    traces = world.traces("test")
    ids = tuple(problem.id for problem in world.sets.test.problems)
    point = (DIVERGENCE, threshold)
    rows = training_rows(
        traces, RULE, world.scale, world.kinds, problems=ids, thresholds={DIVERGENCE: [threshold]}, seed=0
    )
    rows = _without_ends(rows)
    texts = Texts.of(traces, RULE, (DIVERGENCE,), world.kinds, ids)
    quality: dict[str, Any] = {}
    for kind in KINDS:
        predictor = world.predictors[kind]
        reached = evaluate(make_forecasts(predictor.accepting, predictor.next, {point: rows}, texts)).reached
        quality[kind] = {
            "reached": [measures.model_dump() for measures in reached],
            "violations": _violations(predictor.accepting, rows.accepting, world.size.random_rows)
            + _violations(predictor.next, rows.next, world.size.random_rows),
        }
    return quality


def _without_ends(rows: Rows) -> Rows:
    """Drops rows after a drafted end of text, where b is certain and q is not comparable."""
    on = rows.next[:, FEATURES.index("ends")] == 0
    return replace(rows, next=rows.next[on], next_accepted=rows.next_accepted[on], next_problem=rows.next_problem[on])


def _violations(model: Any, rows: Any, count: int) -> int:
    """Counts rows, drawn column by column from given ones, whose forecast falls while T rises."""
    random = np.random.default_rng(0)
    drawn = np.column_stack([random.choice(column, count) for column in rows.T])
    return falls(model, drawn, random.uniform(NEVER, MOST, _SHARES))
