"""Profiles for tests: one complete and consistent set of values, and variants with some of them replaced.

The numbers are invented.
"""

from __future__ import annotations

import copy
import hashlib
from typing import Any

from fsd_data.tokenizer import CHAT_TEMPLATE
from fsd_decoding.profile.threshold_profile import ThresholdProfile

_MODEL = {"revision": None, "dtype": "float32", "vocab_size": 60, "quantization": None, "attention": "sdpa",
          "kind": "model"}  # fmt: skip
_SETTING = {"rule": "fsd-coupled", "score": "js", "draft_length": 5}
_COUNTS = {"both_right": 650, "lost": 3, "gained": 2, "both_wrong": 45}
NO_COUNTS = dict.fromkeys(_COUNTS, 0)

VALUES: dict[str, Any] = {
    "schema_version": 1,
    "digest": None,
    "created": "2026-01-02T03:04:05Z",
    "outcome": "certified-faster",
    "task": "arithmetic",
    "prompt": {"digest": "0" * 64, "form": {"messages": [{"role": "user", "content": "{{ question }}"}]},
               "template": hashlib.sha256(CHAT_TEMPLATE.encode()).hexdigest(),
               "template_arguments": {"enable_thinking": False}, "special_tokens": False, "max_new_tokens": 160},
    "data": {"source": "generated", "fingerprint": "d", "split": "content-hash", "tuning": 300,
             "certification": 700},
    "target": {"id": "big", "fingerprint": "b", **_MODEL},
    "draft": {"id": "small", "fingerprint": "s", **_MODEL},
    "tokenizer": "t",
    "rule": "fsd-coupled",
    "score": "js",
    "scores_version": 1,
    "logits": "raw",
    "threshold": 0.0625,
    "draft_length": 5,
    "lossless": {**_SETTING, "rule": "sd", "draft_length": 4},
    "sampling": {"temperature": 0.0, "top_k": None, "top_p": None},
    "seed": 0,
    "seeds": 1,
    "lossy": True,
    "curve": [
        {"setting": {**_SETTING, "rule": "sd"}, "accuracy": 0.93, "retention": 1.0, "lower_bound": None,
         "tokens_per_round": 4.5, "forecast": 50.0, "problems": 300, "source": "tuning"},
        {"setting": {**_SETTING, "threshold": 0.0625}, "accuracy": 0.92, "retention": 0.99, "lower_bound": None,
         "tokens_per_round": 5.4, "forecast": 62.0, "problems": 300, "source": "tuning"},
        {"setting": {**_SETTING, "threshold": 0.25}, "accuracy": 0.8, "retention": 0.86, "lower_bound": None,
         "tokens_per_round": 5.8, "forecast": 70.0, "problems": 300, "source": "tuning"},
        {"setting": {**_SETTING, "rule": "sd"}, "accuracy": 653 / 700, "retention": 1.0, "lower_bound": None,
         "tokens_per_round": 4.51, "forecast": 51.0, "problems": 700, "source": "certification"},
        {"setting": {**_SETTING, "threshold": 0.0625}, "accuracy": 652 / 700, "retention": 652 / 653,
         "lower_bound": 0.9899, "tokens_per_round": 5.41, "forecast": 61.5, "problems": 700, "source": "certification",
         "counts": _COUNTS},
    ],
    "certificate": {"counts": _COUNTS, "certified": True, "wanted": 0.98, "retention": 652 / 653,
                    "lower_bound": 0.9899, "confidence": 0.95, "problems": 700,
                    "method": "paired-ratio score test", "acc": "retention", "guarantee": "population",
                    "attempt": 1, "delta": 0.045, "seeds": 1,
                    "history": {
                        "asked": 1, "passed": 0, "attempts": 1, "since": "2026-11-28T12:00:00Z", "first": True,
                    },
                    "accuracy": 652 / 700, "accuracy_lower_bound": 0.9117},
    "accuracy": {"target": 653 / 700, "chosen": 652 / 700},
    "tokens_per_round": {"lossless": 4.51, "chosen": 5.41},
    "speed": {"target": 20.0, "lossless": 51.0, "chosen": 61.5, "batch": 1, "timed": 50,
              "forecast": {"target": 21.0, "lossless": 51.0, "chosen": 61.5},
              "intervals": {"target": [19.5, 20.5], "lossless": [50.1, 51.9], "chosen": [60.2, 62.8],
                            "over_lossless": [1.18, 1.23], "over_target": [2.98, 3.17], "confidence": 0.95}},
    "estimate": None,
    "costs": {"draft_step": 0.001, "verify": 0.004, "position": 0.0002, "batch": 1},
    "numerical_churn": {"problems": 700, "texts_changed": 1, "outcomes_flipped": 0},
    "acceptance": {"texts": 700, "mean": 0.88, "deviation": 0.07},
    "effort": {
        "baseline": {"decoded": 2000, "decoded_tokens": 120_000, "reused": 0, "reused_tokens": 0},
        "search": {"decoded": 712, "decoded_tokens": 42_000, "reused": 9000, "reused_tokens": 540_000},
        "certification": {"decoded": 700, "decoded_tokens": 48_000, "reused": 120, "reused_tokens": 7_200},
        "trials": 32,
    },
    "device": "cpu",
    "dtype": "float32",
    "versions": {"torch": "2"},
}  # fmt: skip

UNCERTIFIED: dict[str, Any] = {
    "outcome": "not-certified",
    "threshold": None,
    "lossy": False,
    "certificate.certified": False,
    "certificate.wanted": 0.995,
    "estimate": {"threshold": 0.0625, "retention": 652 / 653, "lower_bound": 0.9899},
}

_NOTHING_CHOSEN: dict[str, Any] = {
    "threshold": None, "lossy": False, "certificate.certified": False, "certificate.wanted": None,
}  # fmt: skip
TOO_SLOW = {**_NOTHING_CHOSEN, "outcome": "too-slow", "speed.wanted": 90.0}
FAST_ENOUGH = {**_NOTHING_CHOSEN, "outcome": "lossless", "speed.wanted": 50.0}
LOSSLESS = {**_NOTHING_CHOSEN, "outcome": "lossless", "certificate.wanted": 0.98}
UNKNOWN = {"outcome": "certified-speed-unknown", "speed.intervals.over_lossless": [0.97, 1.48]}
NOT_TIMED = {"outcome": "certified-speed-unknown", "speed.timed": 0, "speed.intervals": None}
SLOWER: dict[str, Any] = {
    "outcome": "certified-slower", "threshold": None, "lossy": False, "estimate": UNCERTIFIED["estimate"],
    "speed.chosen": 43.0, "speed.intervals.chosen": [42.0, 44.0], "speed.intervals.over_lossless": [0.82, 0.87],
}  # fmt: skip
ANSWERS: dict[str, Any] = {
    "speed.answer": {"target": 3.5, "lossless": 1.37, "chosen": 1.152}, "lengths": {"target": 70.0, "chosen": 70.7},
    "repetition": {"texts": 700, "target": 0, "chosen": 14},
}  # fmt: skip
UNTESTED: dict[str, Any] = {
    "outcome": "untested",
    "curve": VALUES["curve"][:3],
    "certificate": {"certified": False, "wanted": 0.98, "retention": None, "lower_bound": None, "confidence": 0.95,
                    "counts": NO_COUNTS, "problems": 0, "method": "none",
                    "guarantee": "none"},
}  # fmt: skip


def at(place: int, **changes: Any) -> dict[str, Any]:
    """Returns a point of the curve with its setting changed."""
    point: dict[str, Any] = VALUES["curve"][place]
    return {**point, "setting": point["setting"] | changes}


def simultaneous(threshold: float, retention: float, bound: float, speed: float) -> dict[str, Any]:
    return {"setting": {**_SETTING, "threshold": threshold}, "accuracy": 0.9, "retention": retention,
            "lower_bound": bound, "tokens_per_round": speed / 11, "forecast": speed, "problems": 700,
            "source": "certification", "simultaneous": True}  # fmt: skip


FRONT: dict[str, Any] = {
    **_NOTHING_CHOSEN,
    "outcome": "front",
    "curve": [*VALUES["curve"][:4], simultaneous(0.03, 1.0, 0.985, 57.0), simultaneous(0.0625, 0.99, 0.97, 61.5),
              simultaneous(0.25, 0.9, 0.86, 70.0)],
}  # fmt: skip


def values(changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """Returns `VALUES` with some replaced, each by its dotted path: {"certificate.wanted": 0.9}."""
    changed = copy.deepcopy(VALUES)
    for path, value in (changes or {}).items():
        *folders, last = path.split(".")
        place: Any = changed
        for step in folders:
            place = place[int(step) if step.isdigit() else step]
        place[last] = copy.deepcopy(value)
    return changed


def profile(changes: dict[str, Any] | None = None) -> ThresholdProfile:
    """Returns the profile of `values(changes)`, as a calibration would have exported it."""
    return ThresholdProfile.model_validate(values(changes)).sealed()
