"""Labels do not depend on workers, nor on how often the run was killed. Tiny models in float64; real processes."""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from fsd_calib import load_traces
from fsd_collectors.judging.labels import read_labels
from fsd_collectors.store.verifying import verify
from support.models.tiny_pair import related, saved
from support.models.tiny_task import tiny_task
from support.traces.labelling import labelled

TABLES = ("labels", "completions")
BUDGET = 300  # of some 340: it ends within the last of three portions


def same(one: Path, other: Path) -> None:
    assert verify(other) == []
    traces = [load_traces(folder) for folder in (one, other)]
    assert traces[0].manifest == traces[1].manifest
    for table in TABLES:
        assert traces[0].to_pandas(table=table).equals(traces[1].to_pandas(table=table)), table


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"temperature": 1.0}, {"mode": "self"}], ids=str)
def test_labels_do_not_depend_on_workers(tmp_path: Path, settings: dict[str, Any]) -> None:
    pair = saved(tmp_path)
    for workers in (1, 3):
        labelled(
            tmp_path / str(workers), pair, tiny_task(450), budget=BUDGET, workers=workers, device="cpu",
            dtype="float64", tokenizer=None, **settings,
        )  # fmt: skip
    same(tmp_path / "1", tmp_path / "3")
    assert len(load_traces(tmp_path / "1").shards) > 1


def label(pair: tuple[Any, Any], out: Path) -> None:
    torch.set_num_threads(1)  # a forked process has none of its parent's
    labelled(out, pair, tiny_task(450), budget=BUDGET, batch_size=2)


def begun(pair: tuple[Any, Any], out: Path) -> BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=label, args=(pair, out))
    process.start()
    return process


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
def test_kills_change_nothing(tmp_path: Path) -> None:
    """A process is killed after its first portion, then at random moments until it has survived."""
    pair, random = related(seed=1, spread=0.05), Random(0)
    started = time.perf_counter()
    whole = begun(pair, tmp_path / "whole")
    whole.join()
    assert whole.exitcode == 0
    took, listing = time.perf_counter() - started, tmp_path / "killed" / "shards.jsonl"
    first = begun(pair, listing.parent)
    while not listing.exists() or not listing.read_bytes():
        assert first.is_alive()
        time.sleep(0.005)
    first.kill()
    first.join()
    assert 0 < len(read_labels(listing.parent)) < len(read_labels(tmp_path / "whole"))
    for _ in range(4):
        process = begun(pair, listing.parent)
        process.join(random.uniform(0.0, took / 2))
        process.kill()
        process.join()
    last = begun(pair, listing.parent)
    last.join()
    assert last.exitcode == 0
    same(tmp_path / "whole", listing.parent)
