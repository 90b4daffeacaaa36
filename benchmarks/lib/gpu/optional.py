"""Parts that are measured only where they are named."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from fsd_decoding.observers.round_log import Recorder
from lib.gpu.decoding import Imposed, timed
from lib.gpu.models import random_prompts
from lib.gpu.plan import Plan
from lib.gpu.rounds import large_decoder

_LONGEST = 120.0  # seconds of training


def waiting(plan: Plan) -> Iterator[dict[str, Any]]:
    """Yields how often the host waits for the GPU in a round of one text, by what reads the rounds; 0 on a CPU."""
    for reader, observer in {"nobody": None, "a recorder": Recorder(["js"])}.items():
        prompts = random_prompts(plan.target, plan.contexts[0], 1)
        # Nothing is accepted, so that the text grows by a token a round and the graphs stay the same.
        going = large_decoder(plan, "capture").rounds(
            prompts, plan.rounds, plan.draft_length, Imposed(0.0), observer=observer
        )
        timed(going, plan.rounds // 2)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            _warn_of_waits(plan.device, "warn")
            try:
                rounds = len(timed(going, plan.rounds // 4))
            finally:
                _warn_of_waits(plan.device, "default")
        waits = sum("called a synchronizing" in str(warning.message) for warning in caught)
        yield {"reader": reader, "waits": waits / rounds}


def _warn_of_waits(device: str, mode: str) -> None:
    if device == "cuda":
        torch.cuda.set_sync_debug_mode(mode)


def training(plan: Plan) -> Iterator[dict[str, float]]:
    """Yields the seconds in which the bundled pair's two models are trained from scratch; not on a CPU."""
    if plan.device == "cpu":
        return
    torch.cuda.empty_cache()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "fsd_data.train", "--out", out, "--device", plan.device]
        subprocess.run(command, check=True, timeout=_LONGEST)
    yield {"seconds": time.perf_counter() - began}
