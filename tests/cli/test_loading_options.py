"""Options of how models are loaded, and of what drafts."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer

from fsd_calib import Eagle, NGram, load_traces
from fsd_calib.calibration.run_file import read_run_file
from fsd_calib.cli import calibrate, collect, generate
from fsd_calib.cli.calibrate import app
from fsd_calib.cli.console import run
from fsd_calib.cli.drafters import Drafters, given
from fsd_calib.cli.request import Request
from fsd_calib.options.common import RECURRENT
from fsd_common.errors import UsageError
from fsd_data import head_path, pair_paths, recurrent_path
from fsd_decoding.drafters.vllm_draft import VllmDraft
from support.messages import error_line, usage_error

SMALL = ["--task", "arithmetic", "--limit", "4"]


@pytest.mark.parametrize("command", [calibrate, collect, generate], ids=lambda command: str(command.NAME))
def test_help_lists_the_options_among_those_of_models(command: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command.app, command.NAME, ["--help-all"]) == 0  # type: ignore[attr-defined]
    (models,) = (text for text in re.split(r"\n\n(?=\w)", capsys.readouterr().out) if text.startswith("Models:"))
    for name in ("revision", "device-map", "quantization", "attn", "model-kwargs"):
        assert f"--{name} " in models
        assert f"--draft-{name} " in models


def test_help_says_what_a_profile_decides(capsys: pytest.CaptureFixture[str]) -> None:
    texts = {}
    for command in (calibrate, generate):
        assert run(command.app, command.NAME, ["--help-all"]) == 0
        texts[command] = " ".join(capsys.readouterr().out.split())
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


DRAFT, HEAD = str(pair_paths()[1]), Eagle(str(head_path()))


@pytest.mark.parametrize(
    ("models", "heads", "named", "drafts"),
    [
        ([], [], [], [DRAFT]),
        (["a", "a"], [], [], ["a"]),
        ([], ["h"], [], [Eagle("h")]),
        (["a"], ["h", "i"], [], ["a", Eagle("h"), Eagle("i")]),
        ([], [], ["ngram"], [NGram()]),
        ([], [], ["ngram", "model"], [DRAFT, NGram()]),
        ([], [], ["eagle"], [HEAD]),
        ([], [], ["auto"], [DRAFT, HEAD, NGram()]),
        (["a"], ["h"], ["auto"], ["a", Eagle("h"), NGram()]),
    ],
)
def test_drafts_of_the_bundled_target(
    models: Sequence[str], heads: Sequence[str], named: Sequence[str], drafts: list[Any]
) -> None:
    target = "mine" if models else None
    assert Drafters(models, heads, named).with_target("arithmetic", target)[1] == drafts


def test_the_bundled_recurrent_draft_has_a_name_and_goes_with_the_bundled_target() -> None:
    target, folder = str(pair_paths()[0]), str(recurrent_path())
    assert Drafters([RECURRENT], [], []).with_target("arithmetic", None) == (target, [folder])
    assert Drafters([RECURRENT, "a"], [], []).with_target("arithmetic", "mine") == ("mine", [folder, "a"])
    assert given(RECURRENT, None, None) == folder
    message = usage_error(lambda: Drafters([RECURRENT], [], []).with_target("gsm8k", None))
    assert message.startswith("--draft is 'bundled-recurrent', and --target is missing; give both")


def test_the_bundled_head_is_for_its_target_alone() -> None:
    assert Drafters(["a"], [], ["auto"]).with_target("arithmetic", "mine") == ("mine", ["a", NGram()])
    message = usage_error(lambda: Drafters([], [], ["eagle"]).with_target("arithmetic", "mine"))
    assert message == "--drafter eagle needs a head of mine; give --head, or train one with fsd-train-eagle"


@pytest.mark.parametrize(
    ("target", "models", "said"),
    [
        ("mine", [], "--target is 'mine', and --draft is missing; give both, or neither for the default pair of task "),
        (None, ["small"], "--draft is 'small', and --target is missing; give both, or neither for the default pair"),
    ],
)
def test_a_model_without_the_other_is_refused_by_the_default_pairs_name(
    target: str | None, models: list[str], said: str
) -> None:
    message = usage_error(lambda: Drafters(models, [], []).with_target("gsm8k", target))
    assert message.startswith(said)
    assert message.endswith("task gsm8k, Qwen/Qwen2.5-7B-Instruct with Qwen/Qwen2.5-0.5B-Instruct")


def test_a_target_without_a_draft_model_does_for_other_drafts() -> None:
    assert Drafters([], ["h"], []).with_target("gsm8k", "mine") == ("mine", [Eagle("h")])
    assert Drafters([], [], ["ngram"]).with_target("gsm8k", "mine") == ("mine", [NGram()])


@pytest.mark.parametrize(
    ("models", "heads", "named", "message"),
    [
        ([], [], ["tree"], "--drafter is 'tree'; it must be one of model, eagle, ngram, auto"),
        ([], [], ["auto", "model"], "--drafter is 'auto,model'; auto is all of them, give it alone"),
        (["a"], [], ["eagle"], "--draft and --drafter eagle are both given, which leaves model out"),
        ([], ["h"], ["model", "ngram"], "--head and --drafter model,ngram are both given, which leaves eagle out"),
    ],
)
def test_contradictions_are_refused(
    models: Sequence[str], heads: Sequence[str], named: Sequence[str], message: str
) -> None:
    assert usage_error(lambda: Drafters(models, heads, named)).startswith(message)


OF_VLLM = {"method": "eagle3", "model": "v"}


def test_a_drafter_of_vllm_is_the_only_one() -> None:
    of_vllm = VllmDraft.of(OF_VLLM)
    assert Drafters([], [], [], of_vllm=of_vllm).with_target("gsm8k", "mine") == ("mine", [of_vllm])
    for name, option in (("models", "--draft"), ("heads", "--head"), ("named", "--drafter")):
        given: dict[str, Any] = {"models": [], "heads": [], "named": [], name: ["ngram"], "of_vllm": of_vllm}
        message = usage_error(partial(Drafters, **given))
        assert message.startswith(f"--speculative-config and {option} are both given")


@pytest.mark.parametrize(
    ("asked", "drafts"),
    [
        ([], ["m", Eagle("h")]),
        (["--drafter", "ngram"], [NGram()]),
        (["--drafter", "model"], ["m"]),
        (["--drafter", "auto"], ["m", Eagle("h"), NGram()]),
        (["--draft", "d"], ["d"]),
        (["--head", "i"], [Eagle("i")]),
        (["--engine", "vllm", "--speculative-config", json.dumps(OF_VLLM)], [VllmDraft.of(OF_VLLM)]),
    ],
    ids=str,
)
def test_drafts_that_are_given_go_in_place_of_a_files(
    asked: list[str], drafts: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.yaml").write_text("{task: gsm8k, target: t, draft: m, head: h, goal: {min_acc: 0.9}}")
    seen: list[Any] = []

    def kept(asked: Request, progress: Any) -> Any:
        seen.append(asked.target_and_drafts)
        raise UsageError("seen")

    monkeypatch.setattr("fsd_calib.cli.in_turn.calibration_of", kept)
    arguments = ["--config", str(tmp_path), "--out", str(tmp_path / "out"), *asked]
    assert usage_error(lambda: typer.main.get_command(app).main(arguments, standalone_mode=False)) == "seen"
    assert seen == [("t", drafts)]


@pytest.mark.parametrize("other", [["--predictor", "auto"], ["--threshold-policy", "entropy"]])
def test_auto_goes_with_nothing_that_is_of_chains_of_models(other: list[str]) -> None:
    command = ["--task", "arithmetic", "--min-acc", "0.9", "--drafter", "auto", *other]
    message = usage_error(lambda: typer.main.get_command(app).main(command, standalone_mode=False))
    assert message.startswith(f"--drafter auto and {other[0]} are both given")


def test_a_file_that_certifies_names_no_drafter(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("{certify: profile.json, drafter: ngram}")
    assert "certify takes the profile's own draft" in usage_error(lambda: read_run_file(tmp_path))


def test_the_default_target_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    arguments = ["--task", "gsm8k", "--min-acc", "0.9", "--plan"]
    assert run(app, calibrate.NAME, arguments) == 2
    assert "no --target is given, so the target is Qwen/Qwen2.5-7B-Instruct\n" in capsys.readouterr().err
    assert run(app, calibrate.NAME, [*arguments, "--quiet"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
