"""How good the forecasts are on the problems to test on, beside q's own numbers on the same rows.

Knows which rows are asked for. The measures are `fsd_predictors.training.evaluation`'s.
"""

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

_SHARES = 40  # T at each random row


def forecast_quality(world: World, threshold: float) -> dict[str, Any]:
    """Of each kind of predictor: AUC and calibration at this T, and where T's monotonicity is violated."""
    traces = world.traces("test")
    ids = tuple(problem.id for problem in world.sets.test.problems)
    point = (DIVERGENCE, threshold)
    rows = training_rows(
        traces, RULE, world.scale, world.kinds, problems=ids, thresholds={DIVERGENCE: [threshold]}, seed=0
    )
    rows = _of_texts_that_go_on(rows)
    texts = Texts.of(traces, RULE, (DIVERGENCE,), world.kinds, ids)
    found: dict[str, Any] = {}
    for kind in KINDS:
        predictor = world.predictors[kind]
        reached = evaluate(make_forecasts(predictor.accepting, predictor.next, {point: rows}, texts)).reached
        found[kind] = {
            "reached": [quality.model_dump() for quality in reached],
            "violations": _violations(predictor.accepting, rows.accepting, world.size.random_rows)
            + _violations(predictor.next, rows.next, world.size.random_rows),
        }
    return found


def _of_texts_that_go_on(rows: Rows) -> Rows:
    """Behind a drafted end nothing counts, which b is sure of and q does not say: no place to compare them."""
    on = rows.next[:, FEATURES.index("ends")] == 0
    return replace(rows, next=rows.next[on], next_accepted=rows.next_accepted[on], next_problem=rows.next_problem[on])


def _violations(model: Any, seen: Any, count: int) -> int:
    """Of rows whose every value was seen somewhere, those whose forecast falls where T rises."""
    random = np.random.default_rng(0)
    drawn = np.column_stack([random.choice(column, count) for column in seen.T])
    return falls(model, drawn, random.uniform(NEVER, MOST, _SHARES))
