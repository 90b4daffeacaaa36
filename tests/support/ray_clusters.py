"""A Ray cluster on this machine, for tests; they are skipped where Ray is not installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def local_cluster(cpus: int) -> Iterator[Any]:
    """Yields the module `ray`, connected to a cluster of one node whose processes find our modules."""
    ray: Any = pytest.importorskip("ray", reason="Ray is not installed (extra 'ray')")
    try:
        _start(ray, cpus)
    except Exception:  # a busy machine may take longer than Ray waits for its node
        ray.shutdown()
        _start(ray, cpus)
    try:
        yield ray
    finally:
        ray.shutdown()


def _start(ray: Any, cpus: int) -> None:
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    ray.init(
        address="local", num_cpus=cpus, num_gpus=0, include_dashboard=False, log_to_driver=False,
        logging_level="ERROR", object_store_memory=100 << 20, runtime_env={"env_vars": {"PYTHONPATH": paths}},
    )  # fmt: skip
