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

from fsd_calib.vllm_plugin.telemetry.metrics import export_counters
from support.calibration.profiles import profile


def shown(*registry: Any) -> list[str]:
    return [line for line in generate_latest(*registry).decode().splitlines() if line.startswith("fsd:profile_info{")]


def test_the_latest_engine_is_shown_once(tmp_path: Path) -> None:
    export_counters(profile())
    export_counters(profile({"task": "another"}))
    (line,) = shown()
    assert 'task="another"' in line


def test_they_are_beside_metrics_that_api_servers_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    export_counters(profile())
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    assert len(shown(registry)) == 1


_PROGRAM = """
from fsd_calib.vllm_plugin.telemetry.metrics import export_counters
from support.calibration.profiles import profile
print(export_counters(profile()))
"""


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
