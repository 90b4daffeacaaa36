"""Judges with weights made by hand, of no models or of the tiny pair."""

from __future__ import annotations

from typing import Any

import torch

from fsd_common.packed_ids import pack_ids
from fsd_decoding.judging.model import JudgeModel
from fsd_decoding.judging.on_device import packed_classes
from fsd_decoding.models.fingerprint import model_fingerprint, tokenizer_fingerprint
from support.models.tiny_models import word_tokenizer

_FARTHEST = 1e30
_LINE = {"column": [0, 1, 1], "low": [-_FARTHEST, 0.0, 0.5], "high": [_FARTHEST, 0.5, 1.0], "weight": [-0.3, 1.0, 2.0]}
_TREES = {"column": [[0, 1, 2]], "threshold": [[-2.0, 0.5, 0.5]], "leaf": [[0.1, 0.4, -0.2, -0.1]]}


def judge(**changes: Any) -> JudgeModel:
    """Returns a judge of line and trees that reads log p(x), the margin and whether x is letters."""
    values = {
        "features": ["log_p_x", "margin", "x_letters"], "offset": -2.0, "line": _LINE, "trees": _TREES,
        "classes": packed_classes(torch.arange(64, dtype=torch.uint8) % 5), "kind": "boosted", "target": "t",
        "draft": "d", "tokenizer": "k", "temperature": 0.0, "task": "arithmetic",
        "labels": 500, "trained": pack_ids([3, 1, 2]),
    }  # fmt: skip
    return JudgeModel.model_validate(values | changes)


def judge_of(pair: tuple[Any, Any], **changes: Any) -> JudgeModel:
    """Returns the same of models with the word tokenizer."""
    target, draft = map(model_fingerprint, pair)
    own = {"target": target, "draft": draft, "tokenizer": tokenizer_fingerprint(word_tokenizer())}
    return judge(**own | changes)
