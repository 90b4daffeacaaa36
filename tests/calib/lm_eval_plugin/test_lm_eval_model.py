"""lm-evaluation-harness evaluates our decoder: the same texts, graded the same, in batches, from its command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import lm_eval
import pytest

from fsd_calib.lm_eval_plugin.model import FsdLM
from fsd_calib.tasks import load_task
from fsd_data import pair_paths
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.errors import UsageError
from support.calibration.harness_tasks import write_task
from support.messages import usage_error
from support.models.profile_decoders import bundled_profile

TARGET, DRAFT = map(str, pair_paths())
PAIR = {"target": TARGET, "draft": DRAFT}
LOSSY = {"threshold": 0.3, "draft_length": 8, "divergence": "js"}


def evaluated(path: Path, model_args: dict[str, Any], **options: Any) -> dict[str, Any]:
    usual = {"model": "fsd", "bootstrap_iters": 0, "batch_size": 4, "device": "cpu", "apply_chat_template": True}
    found: dict[str, Any] = lm_eval.simple_evaluate(
        tasks=[str(path)], model_args={**PAIR, **model_args}, **{**usual, **options}
    )
    return found
