"""`fsd-profile vllm`: the command that it prints, as a shell reads it. tests/vllm has what vLLM makes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fsd_calib.cli import profile as profile_app
from fsd_calib.cli.console import run
from fsd_decoding.drafters.vllm_draft import VllmDraft
from fsd_decoding.policies.shapes import EntropyScaled
from fsd_decoding.profile.parts import PolicyInfo
from support.calibration.profiles import FRONT, UNCERTIFIED, UNTESTED, profile

SAMPLED = {"sampling": {"temperature": 0.6, "top_k": 20, "top_p": 0.95}}


def app(*arguments: str | Path) -> int:
    return run(profile_app.app, profile_app.NAME, ["vllm", *map(str, arguments)])


@pytest.fixture
def pasted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs what was printed in a shell, where `vllm` reports its environment and arguments."""
    script = tmp_path / "bin" / "vllm"
    script.parent.mkdir()
    script.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        "print(json.dumps([os.environ.get('VLLM_USE_V2_MODEL_RUNNER'), *sys.argv[1:]]))\n"
    )
    script.chmod(0o755)

    def paste() -> list[str]:
        path = f"{script.parent}{os.pathsep}{os.environ['PATH']}"
        ran = subprocess.run(["sh", "-c", capsys.readouterr().out], env={"PATH": path}, capture_output=True, text=True)
        assert (ran.returncode, ran.stderr) == (0, "")
        arguments: list[str] = json.loads(ran.stdout)
        return arguments

    return paste


def test_it_serves_the_models_at_the_draft_length_and_sampling_of_the_profile(tmp_path: Path, pasted: Any) -> None:
    profile().save(tmp_path / "profile.json")
    assert app(tmp_path / "profile.json") == 0
    runner, serve, target, *options = pasted()
    assert (runner, serve, target) == (None, "serve", "big")  # vLLM chooses its model runner
    given = dict(zip(options[::2], options[1::2], strict=True))
    assert given.pop("--dtype") == "float32"
    assert given.pop("--generation-config") == "vllm"
    assert given.pop("--chat-template-content-format") == "string"
    assert {name: json.loads(value) for name, value in given.items()} == {
        "--speculative-config": {
            "model": "small",
            "num_speculative_tokens": 5,
            "method": "draft_model",
            "draft_sample_method": "probabilistic",
        },
        "--override-generation-config": {"temperature": 0.0, "repetition_penalty": 1.0},
        "--default-chat-template-kwargs": {"enable_thinking": False},
        "--additional-config": {"fsd": {"profile": str(tmp_path / "profile.json")}},
    }


def test_what_drafts_in_vllm_is_served_as_it_was_calibrated(tmp_path: Path, pasted: Any) -> None:
    named = VllmDraft.of({"method": "dflash", "model": "head", "kv_cache_dtype": "fp8"})
    profile({"draft.kind": "vllm", "draft.id": repr(named)}).save(tmp_path / "profile.json")
    assert app(tmp_path) == 0
    length = {"num_speculative_tokens": 5, "draft_sample_method": "probabilistic"}
    assert settings(pasted(), "--speculative-config") == named.values | length


@pytest.mark.parametrize(("layer", "method"), [("midlayer.", "eagle3"), ("layers.0.", "eagle")])
def test_a_head_of_our_engine_is_served_by_its_kind(tmp_path: Path, pasted: Any, layer: str, method: str) -> None:
    head = tmp_path / "head"
    head.mkdir()
    (head / "config.json").write_text("{}")
    save_file({f"{layer}mlp.up_proj.weight": torch.zeros(1)}, head / "model.safetensors")
    profile({"draft.kind": "eagle", "draft.id": str(head), "draft.attention": None}).save(tmp_path / "profile.json")
    assert app(tmp_path) == 0
    given = settings(pasted(), "--speculative-config")
    assert (given["method"], given["model"]) == (method, str(head))


def test_prompts_that_a_server_dates_otherwise_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for dated in (False, True):
        profile({"prompt.clock": dated}).save(tmp_path / "profile.json")
        assert app(tmp_path) == 0
        assert ("a server writes today's" in capsys.readouterr().err) == dated


def settings(arguments: list[str], option: str) -> Any:
    return json.loads(arguments[arguments.index(option) + 1])


def test_a_sampled_profile_is_drafted_by_sampling(tmp_path: Path, pasted: Any) -> None:
    profile(SAMPLED).save(tmp_path / "profile.json")
    assert app(tmp_path) == 0
    arguments = pasted()
    assert settings(arguments, "--speculative-config")["draft_sample_method"] == "probabilistic"
    assert settings(arguments, "--override-generation-config") == SAMPLED["sampling"] | {"repetition_penalty": 1.0}


def test_without_a_threshold_the_draft_length_is_that_of_rival_and_a_warning_says_so(
    tmp_path: Path, pasted: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, changes in (("uncertified", UNCERTIFIED), ("front", FRONT)):
        profile(changes).save(tmp_path / name / "profile.json")
        assert app(tmp_path / name) == 0
        captured = capsys.readouterr()
        assert captured.err.startswith("fsd-profile: warning: the profile ")
        assert "decoding runs the lossless rule" in captured.err
        assert '"num_speculative_tokens": 4,' in captured.out


def test_doubts_of_the_profile_are_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile(UNTESTED).model_copy(update={"seed": 5}).save(tmp_path / "profile.json")
    assert app(tmp_path, "--allow-edited") == 0
    digest, untested, engine = capsys.readouterr().err.splitlines()
    assert "its certificate is not for this engine" in engine
    assert "was edited" in digest
    assert "was never tested" in untested


def test_paths_and_names_are_quoted_and_absolute(tmp_path: Path, pasted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / 'it\'s a $HOME; "folder"'
    profile({"target.id": "my target's", "draft.id": 'the "draft" \\ `x`'}).save(folder / "profile.json")
    monkeypatch.chdir(tmp_path)
    assert app(folder.name) == 0
    arguments = pasted()
    assert arguments[2] == "my target's"
    assert settings(arguments, "--speculative-config")["model"] == 'the "draft" \\ `x`'
    assert settings(arguments, "--additional-config") == {"fsd": {"profile": str(folder / "profile.json")}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rule": "fsd"}, "the profile's rule is 'fsd'; vLLM can follow fsd-sd and fsd-coupled"),
        ({"logits": "processed"}, "the profile's js is of processed logits"),
        ({"within_support": True}, "rejects tokens outside the target's support"),
        ({"sampling": {"temperature": 0.6, "top_k": None, "top_p": None, "min_p": 0.1}}, "samples with min_p 0.1"),
        (
            {"policy": PolicyInfo.of(str(EntropyScaled(0.0625, slope=1.0, of="last").identity)).model_dump()},
            "the profile's threshold policy is",
        ),
        (
            {"early_stop": {"predictor": "p", "fingerprint": "f", "draft_step": 0.1, "verify": 0.2, "position": 0.0,
                            "rates": {}}},
            "the profile ends drafts by a predictor",
        ),
    ],
    ids=["rule", "logits", "support", "min_p", "policy", "predictor"],
)  # fmt: skip
def test_what_vllm_cannot_follow_is_bad_input_in_one_line(
    changes: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile(changes).save(tmp_path / "profile.json")
    assert app(tmp_path) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("fsd-profile: error: the profile")
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_an_edited_profile_is_refused_unless_allowed(
    tmp_path: Path, pasted: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    profile().save(tmp_path / "profile.json")
    text = (tmp_path / "profile.json").read_text()
    (tmp_path / "profile.json").write_text(text.replace('"seed": 0', '"seed": 1'))
    assert app(tmp_path) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "was changed after the calibration that wrote it" in captured.err
    assert app(tmp_path, "--allow-edited") == 0
    assert "was edited" in capsys.readouterr().err
    assert app(tmp_path, "--allow-edited") == 0
    expected = {"profile": str(tmp_path / "profile.json"), "allow_edited": True}
    assert settings(pasted(), "--additional-config") == {"fsd": expected}


@pytest.mark.slow
def test_it_needs_no_vllm(tmp_path: Path) -> None:
    profile({"engine": {"name": "vllm", "version": "0.32.0"}}).save(tmp_path / "profile.json")
    code = "import sys; sys.modules['vllm'] = None\nfrom fsd_calib.cli.profile import main; main()"
    ran = subprocess.run([sys.executable, "-c", code, "vllm", str(tmp_path)], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
