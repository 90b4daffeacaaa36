"""Commands and a hub that fails: one line says what happened, without a library's line for every try."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fsd_data import pair_paths
from support.hub_server import COMMIT, Answer, running_hub

TARGET, DRAFT = pair_paths()
COLLECT = """
import time
from fsd_calib.cli.collect import main
time.sleep = lambda seconds: None  # pauses between tries
main()
"""


def cut_short(answer: Answer) -> bool:
    """Announces the whole weights, and sends their beginning."""
    if not answer.route.endswith("model.safetensors"):
        return False
    body = (TARGET / "model.safetensors").read_bytes()
    return answer.reply(200, body[:1000], announced=len(body), ETag='"0"', X_Repo_Commit=COMMIT)


@pytest.mark.slow
@pytest.mark.parametrize("verbosity", [None, "warning"])
def test_a_download_that_breaks_off_is_said_once(verbosity: str | None, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    if verbosity is not None:
        environment["HF_HUB_VERBOSITY"] = verbosity
    with running_hub({"acme/target": TARGET}, cut_short) as hub:
        process = subprocess.run(
            [sys.executable, "-c", COLLECT, "--task", "arithmetic", "--limit", "5", "--target", "acme/target",
             "--draft", str(DRAFT)],
            env=environment | {"HF_HOME": str(tmp_path), "HF_ENDPOINT": hub.address},
            cwd=tmp_path, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
    assert process.returncode == 2
    *others, line = process.stderr.splitlines()
    assert line.startswith("fsd-collect: error: model 'acme/target' is not a local folder")
    assert "the download broke off" in line
    progress = ("Fetching ", "loading libraries")
    told = [other for other in others if other.strip() and not other.startswith(progress)]
    assert bool(told) == (verbosity is not None), told
