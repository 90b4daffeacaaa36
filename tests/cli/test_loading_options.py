"""The options of how models are loaded, which three commands have: mistakes, and what reaches the models."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fsd_calib import load_traces
from fsd_calib.cli import calibrate, collect, generate
from fsd_calib.cli.console import run
from support.messages import error_line

SMALL = ["--task", "arithmetic", "--limit", "4"]


@pytest.mark.parametrize("command", [calibrate, collect, generate], ids=lambda command: str(command.NAME))
def test_help_lists_the_options_among_those_of_models(command: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command.app, command.NAME, ["--help"]) == 0  # type: ignore[attr-defined]
    panel = re.split("╭─ ", capsys.readouterr().out)
    (models,) = (text for text in panel if text.startswith("Models"))
    for name in ("revision", "device-map", "quantization", "attn", "model-kwargs"):
        assert f"--{name} " in models
        assert f"--draft-{name} " in models


def test_help_says_what_a_profile_decides(capsys: pytest.CaptureFixture[str]) -> None:
    texts = {}
    for command in (calibrate, generate):
        assert run(command.app, command.NAME, ["--help"]) == 0
        texts[command] = " ".join(re.sub("[│╭╮╰╯─]", " ", capsys.readouterr().out).split())
    assert texts[calibrate].count("By default its main branch.") == 2
    assert "the profile records" not in texts[calibrate]
    assert "By default its main branch." not in texts[generate]
    assert texts[generate].count("By default the commit that the profile records") == 2
    assert texts[generate].count("By default each as the profile records it.") == 2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--attn", "flash_attention_2"], "attn is 'flash_attention_2'; it must be sdpa or eager"),
        (["--quantization", "int2"], "quantization is 'int2'; it must be one of bnb-4bit"),
        (["--model-kwargs", "{"], "--model-kwargs is '{', which is not JSON: "),
        (["--draft-model-kwargs", "[1]"], "--draft-model-kwargs is '[1]'; it must be a JSON object"),
        (["--device-map", "{1}"], "--device-map is '{1}', which is not JSON"),
        (["--model-kwargs", '{"dtype": "float16"}'], "model_kwargs sets 'dtype'"),
        (["--attn", "eager", "--model-kwargs", '{"attn_implementation": "sdpa"}'],
         "--model-kwargs sets 'attn_implementation', and so does --attn; leave one of them out"),
        (["--draft-revision", "a", "--draft-model-kwargs", '{"revision": "b"}'],
         "--draft-model-kwargs sets 'revision', and so does --draft-revision"),
        (["--device", "cpu", "--device-map", "auto"], "leave one of the two out"),
        (["--revision", "v1"], "the target's revision is 'v1', but"),
    ],
)  # fmt: skip
def test_mistakes_are_told_in_one_line(
    arguments: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("fsd_decoding.decoder.load_model", lambda *given: pytest.fail("weights are loaded"))
    for command, more in ((calibrate, ["--min-acc", "0.9"]), (collect, [])):
        given = [*SMALL, *more, "--out", str(tmp_path / command.NAME), *arguments]
        assert run(command.app, command.NAME, given) == 2
        assert complaint in error_line(capsys)


@pytest.mark.slow
def test_target_and_draft_are_loaded_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--attn", "eager", "--draft-attn", "sdpa", "--model-kwargs", '{"rms_norm_eps": 0.001}']
    assert run(collect.app, collect.NAME, [*SMALL, "--device", "cpu", "--out", str(tmp_path / "a"), *options]) == 0
    assert run(collect.app, collect.NAME, [*SMALL, "--device", "cpu", "--out", str(tmp_path / "b")]) == 0
    apart, plain = (load_traces(tmp_path / name).manifest for name in ("a", "b"))
    assert (apart.target.attention, apart.draft.attention) == ("eager", "sdpa")
    assert apart.target.fingerprint != plain.target.fingerprint
    assert apart.draft.fingerprint != plain.draft.fingerprint
    capsys.readouterr()
    assert run(collect.app, collect.NAME, [*SMALL, "--device", "cpu", "--out", str(tmp_path / "b"), *options]) == 2
    assert "target.fingerprint" in capsys.readouterr().err
