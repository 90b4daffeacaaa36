"""What vLLM makes of the command that `fsd-profile vllm` prints: a server whose requests are decoded as calibrated."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.utils.argparse_utils import FlexibleArgumentParser

from fsd_calib.vllm_plugin.command import serve_command
from fsd_calib.vllm_plugin.running_requests import describe
from support.paths import DOCS
from support.ports import free_port
from support.vllm_engine import TARGET, arithmetic, bundled_profile, saved
from support.vllm_server import Server, running

_SHOWN: dict[str, Any] = {}  # names of the page's blocks: an engine that is deleted takes what others share with it
_SMALL = f"--enforce-eager --kv-cache-memory-bytes {128 << 20} --max-model-len 400 --host 127.0.0.1"


def _program(folder: Path, port: int) -> Path:
    """Returns a folder with the program `vllm`, which the CPU build lacks: a small server on a port of its own."""
    program = folder / "bin" / "vllm"
    program.parent.mkdir()
    serve = f"{shlex.quote(sys.executable)} -m vllm.entrypoints.openai.api_server"
    program.write_text(f'#!/bin/sh\ntarget=$2\nshift 2\nexec {serve} --model "$target" "$@" {_SMALL} --port {port}\n')
    program.chmod(0o755)
    return program.parent


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("it's served")
    followed = bundled_profile({"score": "doubt", "threshold": 0.65, "draft_length": 8})
    followed.save(folder / "profile.json")
    port = free_port()
    path = f"{_program(folder, port)}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}  # as for users: a worker has its own process
    with running(["sh", "-c", serve_command(followed, folder)], port, folder / "server.log", environment) as started:
        yield started


def test_the_command_starts_a_server_that_says_what_it_follows(server: Server) -> None:
    (line,) = [line for line in server.log.splitlines() if "fsd: following" in line]
    assert "LOSSY, drafted tokens with doubt <= 0.65 are accepted; certified to keep retention of at least" in line


def test_a_request_that_sets_nothing_is_decoded_as_calibrated(server: Server) -> None:
    def texts(options: dict[str, Any] | None = None, **sampling: Any) -> list[str]:
        return [server.complete(p.prompt, options, **sampling).choices[0].text for p in arithmetic(8).problems]

    plain = texts(temperature=openai.omit)
    # Of texts that are decoded as calibrated only.
    assert server.metric('fsd:acceptance_rate_mean{engine="0",order="0"}') > 0
    assert server.metric('fsd:drafted_tokens_total{engine="0",order="0",outcome="fuzzy"}') > 0
    assert "fsd: requests are served with another" not in server.log
    assert plain == texts(temperature=0)
    assert plain != texts({"fsd": "off"})


@pytest.mark.parametrize(
    "sampling",
    [{"temperature": 0.0, "top_k": None, "top_p": None}, {"temperature": 0.6, "top_k": None, "top_p": 0.9},
     {"temperature": 1.0, "top_k": 7, "top_p": None, "repetition_penalty": 1.2}],
    ids=["greedy", "top_p", "top_k"],
)  # fmt: skip
def test_defaults_of_requests_are_the_sampling_of_the_profile_and_not_the_model_s_own(
    sampling: dict[str, Any], tmp_path: Path
) -> None:
    shutil.copytree(TARGET, tmp_path / "target")
    own = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05}
    (tmp_path / "target" / "generation_config.json").write_text(json.dumps(own))
    followed = bundled_profile({"target.id": str(tmp_path / "target"), "sampling": sampling})
    words = shlex.split(serve_command(followed, tmp_path).replace("\\\n", ""))
    given = make_arg_parser(FlexibleArgumentParser()).parse_args(words[words.index("serve") + 1 :])
    given.model = given.model_tag
    defaults = AsyncEngineArgs.from_cli_args(given).create_model_config().get_diff_sampling_param()
    chat = ChatCompletionRequest(messages=[{"role": "user", "content": "?"}])
    for request in (CompletionRequest(prompt="?"), chat):
        assert describe(request.to_sampling_params(10, defaults), followed).departures == ()


def test_what_the_page_on_vllm_shows_runs(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    page = (DOCS / "vllm.md").read_text(encoding="utf-8").replace("http://localhost:8000", server.address)
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(blocks) == 2
    monkeypatch.chdir(tmp_path)
    saved(tmp_path)
    for block in blocks:
        exec(compile(block, "vllm.md", "exec"), _SHOWN)
    texts = capfd.readouterr().out
    assert texts.count("#### 19") == 4
    (curl,) = re.findall(r"```sh\n# needs a server\n(curl .*?)```", page, flags=re.DOTALL)
    ran = subprocess.run(["sh", "-c", curl.replace("TARGET", TARGET)], capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout)["usage"]["completion_tokens"] > 0
