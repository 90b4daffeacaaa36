"""All measurements that need a GPU, in one call of at most eight minutes: `python benchmarks/gpu.py`.

It needs torch, transformers, triton and pydantic with their dependencies, and no network. `--dry-run` runs every part
but training on a CPU, at toy sizes with interpreted kernels; its numbers mean nothing. Results are written as JSON
after every part, so that an interrupted call leaves what it has measured.

Nothing that this script imports may import optuna, lightgbm, pandas or datasets, which need not be installed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from lib.common.claims import claims_table
from lib.common.results import RESULTS, machine_facts, write_json
from lib.gpu.plan import DRY, FULL, SHAPES, Plan

_PARTS = ("kernels", "attention", "equality", "waiting", "rounds", "stopping", "recording", "training", "compiled")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="toy sizes on a CPU; its numbers mean nothing")
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=_PARTS)
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu.json")
    options = parser.parse_args()
    if options.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is first imported
        from fsd_decoding import tensors
        from fsd_decoding.engine import cache_pool
        from lib.gpu.tape import Tape

        tensors.INTERPRETED = True
        cache_pool.CAPTURES["cpu"] = Tape
    elif not torch.cuda.is_available():
        parser.error("torch finds no GPU on this machine; use --dry-run to try every part on a CPU")
    run(DRY if options.dry_run else FULL, options.parts, options.out)


def run(plan: Plan, names: list[str], out: Path) -> None:
    """Measures the named parts, each by the function of its name."""
    from lib.gpu import kernels, rounds
    from lib.gpu.claims import gpu_claims

    parts = vars(kernels) | vars(rounds)
    results: dict[str, Any] = {
        "machine": machine_facts() | {"gpu": torch.cuda.get_device_name() if plan.device == "cuda" else None},
        "command": sys.argv, "plan": asdict(plan), "shapes": SHAPES, "seconds": {},
    }  # fmt: skip
    for name in names:
        began = time.perf_counter()
        measured = parts[name](plan)
        for results[name] in measured if isinstance(measured, Iterator) else [measured]:
            results["seconds"][name] = time.perf_counter() - began
            write_json(results | {"claims": list(gpu_claims(results))}, out)
        print(f"{name}: {results['seconds'][name]:.0f} s", flush=True)
    print(claims_table(gpu_claims(results)))


if __name__ == "__main__":
    main()
