"""`fsd-check` of servers of other projects that decode exactly: transformers' own, which runs in this environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from fsd_calib.cli.check import app
from fsd_calib.cli.console import run
from support.ports import free_port, wait_for
from support.vllm_engine import DRAFT, TARGET


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of `transformers serve`."""
    port = free_port()
    command = [str(Path(sys.executable).with_name("transformers")), "serve", "--port", str(port), "--device", "cpu"]
    process = subprocess.Popen(command, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    try:
        wait_for(port, process)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait()


@pytest.mark.parametrize(("reference", "code"), [(TARGET, 0), (DRAFT, 3)])
def test_transformers_own_server_is_told_lossless_and_another_model_is_not(
    url: str, reference: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has no list of models where no hub is reachable, and no version."""
    server = {"url": url, "model": TARGET, "reference": {"request": {"model": reference}}, "at_once": 4}
    file = tmp_path / "server.yaml"
    file.write_text(yaml.safe_dump({"task": "arithmetic", "server": server}))
    assert run(app, "fsd-check", ["--config", str(file), "--prompts", "4", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["result"]["lossless"] == (code == 0)
