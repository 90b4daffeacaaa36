"""A collector that is killed at random moments and restarted loses no rows and doubles none.

Processes are forked, so that none spends its time on imports and moments fall into the work itself.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from fsd_calib import collect_traces, load_traces
from fsd_collectors.store.verifying import verify
from support.models.tiny_models import word_tokenizer
from support.models.tiny_pair import related
from support.models.tiny_task import tiny_task

WAYS: dict[str, dict[str, Any]] = {
    "along the target": {"temperature": 1.0},
    "on-policy": {"rule": "fsd-coupled", "threshold": 0.1, "draft_length": 3},
}
KILLS, PORTIONS = 20, 4


def collect(pair: tuple[Any, Any], out: Path, way: dict[str, Any]) -> None:
    torch.set_num_threads(1)  # a forked process has none of its parent's
    target, draft = pair
    task = tiny_task(32 * PORTIONS)
    collect_traces(task, target=target, draft=draft, tokenizer=word_tokenizer(), out=out, batch_size=2, **way)


def begun(pair: tuple[Any, Any], out: Path, way: dict[str, Any]) -> BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=collect, args=(pair, out, way))
    process.start()
    return process


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_twenty_kills_change_nothing(way: dict[str, Any], tmp_path: Path) -> None:
    pair, random = related(seed=1, spread=0.05), Random(0)
    started = time.perf_counter()
    whole = begun(pair, tmp_path / "whole", way)
    whole.join()
    assert whole.exitcode == 0
    a_portion = (time.perf_counter() - started) / PORTIONS
    expected = load_traces(tmp_path / "whole")
    kills, runs, out = 0, 0, tmp_path / "killed-0"
    while kills < KILLS:
        process = begun(pair, out, way)
        process.join(random.uniform(0.0, 2 * a_portion))
        process.kill()
        process.join()
        kills += process.exitcode == -signal.SIGKILL
        if process.exitcode == 0:  # it came to its end between two kills: begin another
            runs, out = runs + 1, tmp_path / f"killed-{runs + 1}"
    last = begun(pair, out, way)
    last.join()
    assert last.exitcode == 0
    for run in range(runs + 1):
        traces = load_traces(tmp_path / f"killed-{run}")
        assert verify(traces.path) == []
        assert traces.manifest == expected.manifest
        for table in ("tokens", "completions"):
            assert getattr(traces, table).to_table().equals(getattr(expected, table).to_table())
