"""llama.cpp's server with the bundled pair: it drafts exactly, and with made-up acceptance it does not."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml

from fsd_calib.cli.check import app
from fsd_calib.cli.console import run
from fsd_calib.options.server import ServerDescription
from fsd_calib.servers.answers import Acceptance
from fsd_calib.servers.client import Client
from fsd_calib.servers.counters import between, counted
from fsd_calib.servers.load import Load, send
from fsd_calib.servers.served import Way
from fsd_data import pair_paths
from support.ports import free_port, wait_for

PROGRAM = shutil.which("llama-server")
pytest.importorskip("gguf", reason="the package gguf, which writes llama.cpp's files, is not installed")
pytestmark = [
    pytest.mark.slow, pytest.mark.skipif(PROGRAM is None, reason="llama.cpp's program llama-server is not installed"),
]  # fmt: skip


@contextmanager
def serving(*options: str) -> Iterator[str]:
    """Runs the server, and yields its address."""
    port = free_port()
    given = [str(PROGRAM), "--host", "127.0.0.1", "--port", str(port), "-c", "2048", "-np", "4", "-t", "1"]
    given += ["--alias", "model", *options]
    process = subprocess.Popen(given, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(port, process)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Addresses of the target alone, of its drafting, and of drafting whose acceptance is made up."""
    from support.servers.gguf_pair import write_gguf

    folder = tmp_path_factory.mktemp("gguf")
    target, draft = (str(write_gguf(str(model), folder / f"{model.name}.gguf")) for model in pair_paths())
    drafting = ["-m", target, "-md", draft, "--spec-type", "draft-simple", "--spec-draft-n-max", "5"]
    ways = {
        "alone": ["-m", target],
        "drafting": [*drafting, "--metrics"],
        "made up": [*drafting, "--spec-synth-len", "4"],
    }
    with ExitStack() as running:
        yield {name: running.enter_context(serving(*options)) for name, options in ways.items()}


def described(url: str, reference: str | None = None) -> ServerDescription:
    other = {} if reference is None else {"reference": {"url": reference}}
    return ServerDescription.model_validate({"url": url, "model": "model", "endpoint": "completions", **other})


@pytest.mark.parametrize(("way", "code"), [("drafting", 0), ("made up", 3)])
def test_drafting_is_lossless_and_made_up_acceptance_is_not(
    urls: dict[str, str], way: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "server.yaml"
    server = described(urls[way], urls["alone"]).model_dump(mode="json", exclude_unset=True)
    file.write_text(yaml.safe_dump({"task": "arithmetic", "server": server}))
    assert run(app, "fsd-check", ["--config", str(file), "--prompts", "20", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["result"]["lossless"] == (code == 0)


def test_acceptance_is_the_same_by_answers_and_by_counters(urls: dict[str, str]) -> None:
    bodies = [{"prompt": f"Question: What is {n} + 3?\nAnswer:", "max_tokens": 30, "temperature": 0} for n in range(8)]
    with Client(described(urls["drafting"])) as client:
        before = client.run(counted(client))
        told = send(Way(client, {}), bodies, Load(2), 0).acceptance
        seen = between(before, client.run(counted(client)))
    assert isinstance(told, Acceptance)
    assert seen is not None
    assert (told.drafted, told.accepted) == (seen.drafted, seen.accepted)
    assert abs(told.rounds - seen.rounds) <= len(bodies)  # a text's last token may need no draft
