"""Profiles for tests: one whole and consistent set of values, and parts of it replaced.

Knows the schema's fields. The numbers are made up and stand for no measurement.
"""

from __future__ import annotations

import copy
from typing import Any

from fsd_decoding.profile import ThresholdProfile

_MODEL = {"revision": None, "dtype": "float32", "vocab_size": 60}
_POINT = {"rule": "fsd-coupled", "divergence": "js", "draft_length": 5}
_COUNTS = {"both_right": 650, "lost": 3, "gained": 2, "both_wrong": 45}

VALUES: dict[str, Any] = {
    "schema_version": 1,
    "created": "2026-01-02T03:04:05Z",
    "task": "arithmetic",
    "data": {"source": "generated", "fingerprint": "d", "split": "content-hash", "tuning": 300,
             "certification": 700},
    "target": {"id": "big", "fingerprint": "b", **_MODEL},
    "draft": {"id": "small", "fingerprint": "s", **_MODEL},
    "tokenizer": "t",
    "rule": "fsd-coupled",
    "divergence": "js",
    "divergence_version": 1,
    "logits": "raw",
    "threshold": 0.0625,
    "draft_length": 5,
    "sampling": {"temperature": 0.0, "top_k": None, "top_p": None},
    "seed": 0,
    "lossy": True,
    "curve": [
        {**_POINT, "rule": "sd", "threshold": None, "accuracy": 0.93, "retention": 1.0, "lower_bound": None,
         "tokens_per_round": 4.5, "tokens_per_second": 50.0, "problems": 300, "source": "tuning"},
        {**_POINT, "threshold": 0.0625, "accuracy": 0.92, "retention": 0.99, "lower_bound": None,
         "tokens_per_round": 5.4, "tokens_per_second": 62.0, "problems": 300, "source": "tuning"},
        {**_POINT, "threshold": 0.25, "accuracy": 0.8, "retention": 0.86, "lower_bound": None,
         "tokens_per_round": 5.8, "tokens_per_second": 70.0, "problems": 300, "source": "tuning"},
        {**_POINT, "rule": "sd", "threshold": None, "accuracy": 653 / 700, "retention": 1.0, "lower_bound": None,
         "tokens_per_round": 4.51, "tokens_per_second": 51.0, "problems": 700, "source": "certification"},
        {**_POINT, "threshold": 0.0625, "accuracy": 652 / 700, "retention": 652 / 653, "lower_bound": 0.9899,
         "tokens_per_round": 5.41, "tokens_per_second": 61.5, "problems": 700, "source": "certification",
         "counts": _COUNTS},
    ],
    "certificate": {**_COUNTS, "certified": True, "wanted": 0.98, "retention": 652 / 653,
                    "lower_bound": 0.9899, "confidence": 0.95, "problems": 700,
                    "method": "paired-ratio score test"},
    "accuracy": {"target": 653 / 700, "chosen": 652 / 700},
    "tokens_per_round": {"sd": 4.51, "chosen": 5.41},
    "speed": {"target": 20.0, "sd": 51.0, "chosen": 61.5, "batch": 1, "timed": 50},
    "estimate": None,
    "device": "cpu",
    "dtype": "float32",
    "versions": {"torch": "2"},
}  # fmt: skip

UNCERTIFIED: dict[str, Any] = {
    "threshold": None,
    "lossy": False,
    "certificate.certified": False,
    "certificate.wanted": 0.995,
    "estimate": {"threshold": 0.0625, "retention": 652 / 653, "lower_bound": 0.9899},
}


def values(changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """`VALUES` with some replaced, each by its dotted path: {"certificate.wanted": 0.9}."""
    changed = copy.deepcopy(VALUES)
    for path, value in (changes or {}).items():
        *folders, last = path.split(".")
        place: Any = changed
        for step in folders:
            place = place[int(step) if step.isdigit() else step]
        place[last] = value
    return changed


def profile(changes: dict[str, Any] | None = None) -> ThresholdProfile:
    return ThresholdProfile.model_validate(values(changes))
