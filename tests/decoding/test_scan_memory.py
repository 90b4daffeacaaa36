"""Memory that scans of recurrent layers hold in a pass: estimated on the meta device, and what torch allocates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM

from fsd_decoding import memory
from fsd_decoding.memory import ModelSize
from fsd_decoding.models import runner as runners
from fsd_decoding.models.runner import ModelRunner
from support.models.ragged import DRAFT, ROWS
from support.models.recurrent_models import RECURRENT
from support.models.tiny_models import VOCABULARY

CHUNK = 64


def allocated(run: Callable[[], Any]) -> int:
    """The most bytes at once that torch's allocator gives out meanwhile."""
    with torch.inference_mode(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        run()
    assert seen.profiler is not None
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda each: each.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


@pytest.mark.parametrize("case", RECURRENT)
def test_what_passes_hold_is_estimated(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (memory, runners):
        monkeypatch.setattr(module, "PREFILL_CHUNK", CHUNK)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(RECURRENT[case], dtype=torch.float32).eval()
    size = ModelSize.of(model, None)
    runner = ModelRunner(model, ROWS, CHUNK, VOCABULARY, rolled_back=DRAFT + 1)

    def run(length: int) -> None:
        at = torch.arange(length).expand(ROWS, -1)
        runner.logits(torch.zeros_like(at), at, CHUNK, keep=1)

    with torch.inference_mode():
        run(1)  # allocates what stays
    prompt, told = allocated(lambda: run(CHUNK)) / ROWS, allocated(lambda: run(DRAFT + 1)) / ROWS / (DRAFT + 1)
    most = 1.3 if case.endswith("of experts") else 1.1  # what experts hold beside the scans is left out
    assert 0.9 * size.scan <= prompt <= most * size.scan
    assert 0.5 * size.told <= told <= 1.1 * size.told  # that of the shortest pass, which holds the most of each
