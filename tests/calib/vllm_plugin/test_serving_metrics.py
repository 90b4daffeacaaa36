"""The plugin's metrics, wherever a front end of vLLM looks for metrics."""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from fsd_calib.vllm_plugin.telemetry.metrics import PATTERN, Counters, export_counters
from support.calibration.profiles import profile


def shown(name: str, *registry: Any) -> list[str]:
    return [line for line in generate_latest(*registry).decode().splitlines() if line.startswith(f"{name}{{")]


def latest() -> str:
    """The label of the engine that was configured last: tests share a process."""
    return f'order="{len(shown("fsd:profile_info")) - 1}"'


def count_exact(folder: str, tokens: int) -> None:
    Counters(Path(folder, PATTERN.format(0))).increase("exact", tokens)


def test_engines_of_a_process_are_shown_beside_each_other() -> None:
    folders, orders = [], []
    for task in ("one", "another"):
        folders.append(export_counters(profile({"task": task})))
        orders.append(latest())
    for folder, tokens in zip(folders, (3, 4), strict=True):
        count_exact(folder, tokens)
    for order, task, tokens in zip(orders, ("one", "another"), (3, 4), strict=True):
        assert sum(f'task="{task}"' in line for line in shown("fsd:profile_info") if order in line) == 1
        (line,) = (line for line in shown("fsd:drafted_tokens_total") if order in line and 'outcome="exact"' in line)
        assert 'engine="0"' in line
        assert float(line.split()[-1]) == tokens


def test_an_engine_that_fails_to_start_leaves_the_others_metrics() -> None:
    count_exact(export_counters(profile()), 5)
    order = latest()
    export_counters(profile())  # of an engine that never gets a worker
    (line,) = (line for line in shown("fsd:drafted_tokens_total") if order in line and 'outcome="exact"' in line)
    assert float(line.split()[-1]) == 5
    assert not [line for line in shown("fsd:drafted_tokens_total") if latest() in line]


def test_every_sample_has_labels_of_its_own() -> None:
    for _ in range(2):
        count_exact(export_counters(profile()), 1)
    lines = [line.rpartition(" ")[0] for line in generate_latest().decode().splitlines() if line.startswith("fsd:")]
    assert len(lines) == len(set(lines))


def test_they_are_beside_metrics_that_api_servers_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    export_counters(profile())
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    assert shown("fsd:profile_info", registry) == shown("fsd:profile_info")


_PROGRAM = """
from fsd_calib.vllm_plugin.telemetry.metrics import export_counters
from support.calibration.profiles import profile
print(export_counters(profile()))
"""


@pytest.mark.slow
def test_processes_of_one_server_share_a_folder_and_other_programs_do_not() -> None:
    folder = export_counters(profile())
    with get_context("spawn").Pool(1) as pool:
        assert pool.apply(export_counters, (profile(),)) == folder
    path = os.pathsep.join([*sys.path, os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert ran.stdout.strip() != folder
