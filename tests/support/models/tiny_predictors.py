"""Predictors that were trained on a few random rows, for tests of their files."""

from __future__ import annotations

from typing import Any

import numpy as np

from fsd_common.packed_ids import pack_ids
from fsd_decoding.models.fingerprint import tokenizer_fingerprint
from fsd_decoding.profile.parts import ModelInfo
from fsd_predictors.facts import PredictorFacts, Problems, Quality, facts_of_manifest
from fsd_predictors.features import FEATURES, ROLES, Array
from fsd_predictors.models.registry import MODELS, Calibrated
from fsd_predictors.predictor import Predictor
from fsd_predictors.share_scale import Knots, ShareScale
from support.models.tiny_models import word_tokenizer
from support.models.tiny_pair import related
from support.traces.rows import manifest

MODELS_IN_HAND = related(seed=1, spread=0.05)
TOKENIZER = word_tokenizer()
QUICK = {"head": {"steps": 5}, "boosted": {"trees": 10}}  # what it learns does not matter here
SCALE = ShareScale({"js": Knots(np.array([0.01, 0.2]), np.array([-1.0, 3.0]))})


def rows(features: int, seed: int = 0) -> tuple[Array, Array]:
    random = np.random.default_rng(seed)
    values = random.normal(size=(400, features))
    return values, values[:, 0] + values[:, 1] + random.normal(size=400) > 0


def facts(**changes: Any) -> PredictorFacts:
    target, draft = (ModelInfo.of(model) for model in MODELS_IN_HAND)
    values: dict[str, Any] = {
        **facts_of_manifest(manifest(target=target, draft=draft, tokenizer=tokenizer_fingerprint(TOKENIZER))),
        "kind": "boosted", "rule": "fsd-coupled", "scores": ("js",), "seed": 0, "rows": {"accepting": 400},
        "problems": Problems(training=30, calibration=10, evaluation=10), "trained": pack_ids(range(50)),
        "features": dict.fromkeys(ROLES, FEATURES),
        "parameters": {"accepting": {"trees": 7}}, "versions": {"python": "3"}, "falling": 0,
        "reached": (Quality(forecast="a", score="js", threshold=-1.0, rows=9, accepted=0.5, auc=None,
                            probability_auc=0.1, entropy_auc=None, error=1 / 3),),
    }  # fmt: skip
    return PredictorFacts(**values | changes)


def predictor(kind: str = "boosted", **changes: Any) -> Predictor:
    accepting, following = (
        Calibrated(MODELS[kind](**QUICK.get(kind, {})).fit(*rows(len(FEATURES)))).fit(*rows(len(FEATURES), seed=seed))
        for seed in (1, 3)
    )
    return Predictor(accepting, following, SCALE, facts(kind=kind, **changes))
