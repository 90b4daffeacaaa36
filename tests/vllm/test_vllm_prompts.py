"""A server of vLLM, started as `fsd-profile vllm` says and asked as it says, reads the calibration's prompts."""

from __future__ import annotations

import asyncio
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.launchers.render.app_state import init_render_app_state
from vllm.utils.argparse_utils import FlexibleArgumentParser

from fsd_calib.cli import profile as profile_app
from fsd_calib.cli.console import run
from fsd_decoding.text import prompt_tokens
from support.calibration.prompt_cases import CASES, PromptCase


def server(command: str) -> TestClient:
    """vLLM's own server with these arguments, without its engine: it renders requests, and does not decode."""
    words = shlex.split(command.replace("\\\n", ""))
    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args(words[words.index("serve") + 1 :])
    arguments.model = arguments.model_tag
    config = VllmConfig(model_config=AsyncEngineArgs.from_cli_args(arguments).create_model_config())
    app = build_app(arguments, ("render",))
    asyncio.run(init_render_app_state(config, app.state, arguments))
    return TestClient(app)


def asked(printed: str, question: str) -> tuple[str, Any]:
    """The path and the body of the request that the comments show, with a question in them."""
    first, _, last = [line.removeprefix("# ") for line in printed.splitlines() if line.startswith("# ")][-3:]
    (path,) = [word for word in first.split() if word.startswith("/v1/")]
    return path, json.loads(last.replace("{{ question }}", json.dumps(question)[1:-1]))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_server_reads_the_prompts_of_the_calibration(
    case: PromptCase, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case.profile(tmp_path).save(tmp_path / "profile.json")
    problem, tokenizer = case.task(tmp_path).problems[0], case.tokenizer(tmp_path)
    capsys.readouterr()
    assert run(profile_app.app, profile_app.NAME, ["vllm", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    path, body = asked(printed, problem.question)
    answer = server("\n".join(line for line in printed.splitlines() if not line.startswith("#"))).post(
        f"{path}/render", json={"model": str(case.target(tmp_path)), **body}
    )
    assert answer.status_code == 200, answer.text
    found = answer.json()
    read = (found if isinstance(found, dict) else found[0])["token_ids"]
    assert tokenizer.decode(read) == problem.prompt
    assert read == prompt_tokens(tokenizer, problem.prompt)
