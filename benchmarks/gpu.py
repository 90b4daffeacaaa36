"""All measurements that need a GPU, in one call of about eight minutes: `python benchmarks/gpu.py`.

It needs torch, transformers, triton and platformdirs with their dependencies, and no network. `--dry-run` runs every
part but training on a CPU, at toy sizes with interpreted kernels; its numbers mean nothing. Each part has a time, after
which it begins no further step, and none fails another. Results are written as JSON after every step, so that an
interrupted call leaves what it has measured. The exit code is 1 where a part failed.

Nothing that this script imports may import pydantic, optuna, lightgbm, pandas or datasets, which need not be installed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from lib.common.claims import Claim, claims_table
from lib.common.results import RESULTS, machine_facts, write_json
from lib.gpu.claims import gpu_claims
from lib.gpu.parts import OPTIONAL, PARTS, TOTAL, Part, progress
from lib.gpu.plan import DRY, FULL, Plan


def main() -> int:
    known = {part.name: part for part in PARTS + OPTIONAL}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="toy sizes on a CPU; its numbers mean nothing")
    optional = " and ".join(part.name for part in OPTIONAL)
    parser.add_argument("--parts", nargs="+", choices=known, help=f"by default all but {optional}")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu.json")
    options = parser.parse_args()
    if options.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is first imported
        from fsd_decoding import tensors
        from fsd_decoding.engine import cache_pool
        from lib.gpu.tape import Tape

        warnings.filterwarnings("ignore", category=RuntimeWarning, module="triton")  # NumPy's, about infinities
        tensors.INTERPRETED = True
        cache_pool.CAPTURES["cpu"] = Tape
    elif not torch.cuda.is_available():
        parser.error("torch finds no GPU on this machine; use --dry-run to try every part on a CPU")
    parts = PARTS if options.parts is None else [known[name] for name in options.parts]
    return measure(DRY if options.dry_run else FULL, parts, options.out)


def measure(plan: Plan, parts: Sequence[Part], out: Path) -> int:
    """Measures parts in their order, writes and prints what they found, and returns the exit code."""
    measured: dict[str, Any] = {}
    results: dict[str, Any] = {
        "machine": machine_facts() | {"gpu": torch.cuda.get_device_name() if plan.device == "cuda" else None},
        "command": sys.argv, "plan": asdict(plan), "parts": measured,
    }  # fmt: skip
    began = time.perf_counter()
    for part in parts:
        for record in progress(part, plan, TOTAL - (time.perf_counter() - began)):
            measured[part.name] = record
            write_json(results | {"claims": list(_claims(measured))}, out)
        print(part.name, _ended(record), flush=True)
    print(claims_table(_claims(measured)))
    return 1 if any(record["failed"] for record in measured.values()) else 0


def _claims(measured: dict[str, Any]) -> list[Claim]:
    """What is claimed of parts, one by one, so that rows that nobody foresaw end neither the others nor the script."""
    try:
        return list(gpu_claims(measured))
    except Exception as error:
        print(f"no claims: {type(error).__name__}: {error}", flush=True)
        return []


def _ended(record: dict[str, Any]) -> str:
    told = f"{record['seconds']:.0f} s, {len(record['rows'])} steps"
    if record["capped"]:
        told += ", stopped as its time was over"
    if failed := record["failed"]:
        told += f", FAILED: {failed['type']}: {failed['message'][:300]} ({', '.join(failed['frames'])})"
    return told


if __name__ == "__main__":
    sys.exit(main())
