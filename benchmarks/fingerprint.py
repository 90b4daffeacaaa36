"""Seconds per GB of weights that a fingerprint takes, and a second call of it: `python benchmarks/fingerprint.py`."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from fsd_decoding.models.fingerprint import model_fingerprint
from fsd_decoding.models.weights_digest import tensor_digest
from lib.common.machine import machine_facts
from lib.common.results import write_and_print

_DTYPES = (torch.bfloat16, torch.float32, torch.int8)
_LAYERS = 80  # of a model with as many tensors as one of 70B parameters


@dataclass(frozen=True)
class Reading:
    """One dtype on one device. cpu_seconds: of all threads, which other work on the machine does not change."""

    device: str
    threads: int
    dtype: str
    seconds_per_gb: float
    cpu_seconds_per_gb: float


@dataclass(frozen=True)
class Called:
    """A model of many small tensors. first, again: seconds of the first call and of each later one."""

    tensors: int
    first: float
    again: float


def reading(device: str, threads: int, dtype: torch.dtype, gb: float, repeats: int) -> Reading:
    torch.set_num_threads(threads)
    size = int(gb * 1e9) // dtype.itemsize
    values = torch.randint(-128, 128, (size,), dtype=torch.int8).to(dtype).to(device)
    tensor_digest(values[: 1 << 20])
    measured = [_clocks(lambda: tensor_digest(values)) for _ in range(repeats)]
    wall, cpu = (min(clock) / gb for clock in zip(*measured, strict=True))
    return Reading(device, threads, str(dtype).removeprefix("torch."), wall, cpu)


def called() -> Called:
    shape: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "vocab_size": 300}
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=_LAYERS, **shape)).eval()
    first, *again = [_clocks(lambda: model_fingerprint(model))[1] for _ in range(11)]
    return Called(len(model.state_dict()), first, sorted(again)[len(again) // 2])


def _clocks(work: Callable[[], object]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def table(readings: Sequence[Reading], calls: Called) -> str:
    head = ["| device | threads | dtype | s per GB | CPU s per GB |", "| --- | --- | --- | --- | --- |"]
    rows = [
        f"| {r.device} | {r.threads} | {r.dtype} | {r.seconds_per_gb:.2f} | {r.cpu_seconds_per_gb:.2f} |"
        for r in readings
    ]
    again = f"{calls.tensors} tensors: first call {calls.first * 1e3:.0f} ms, later calls {calls.again * 1e3:.1f} ms"
    return "\n".join([*head, *rows, "", again])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=0.5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "fingerprint.json")
    options = parser.parse_args()
    machine, began = machine_facts(), time.perf_counter()
    places = [("cpu", threads) for threads in sorted({1, len(os.sched_getaffinity(0))})]
    places += [("cuda", 1)] if torch.cuda.is_available() else []
    readings = [reading(*place, dtype, options.gb, options.repeats) for place in places for dtype in _DTYPES]
    calls = called()
    results = {"machine": machine, "gb": options.gb, "readings": [asdict(r) for r in readings],
               "calls": asdict(calls), "seconds": time.perf_counter() - began}  # fmt: skip
    write_and_print(results, options.out, table(readings, calls))


if __name__ == "__main__":
    main()
