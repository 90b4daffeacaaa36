"""What a measurement was taken on. Knows the machine and the versions, nothing of what is measured."""

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
)


def facts() -> dict[str, Any]:
    return {
        "processor": _processor(),
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "load_before": os.getloadavg()[0],  # others who were busy here
        "revision": _revision(),
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _revision() -> str:
    """The commit that was measured, with a + where files differ from it."""
    here = Path(__file__).parent
    command = ["git", "describe", "--always", "--dirty=+"]
    try:
        described = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:  # no git
        described = ""
    return described.strip() or "unknown"


def _processor() -> str:
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    return next((line.split(": ", 1)[1] for line in lines if line.startswith("model name")), platform.processor())
