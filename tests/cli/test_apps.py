"""The two commands: what they reply to bad input, and what they do with tiny models.

Everything runs through `main`'s own path, so exit codes and lines on stderr are what a shell would see.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from fsd_calib.certification.attempt_ledger import AttemptLedger
from fsd_calib.certification.marking import LEDGER
from fsd_calib.cli import calibrate as calibrate_app
from fsd_calib.cli import generate as generate_app
from fsd_calib.cli.console import run
from fsd_calib.tasks.base import Example, problem_of
from fsd_common.user_folders import default_state
from fsd_data.tokenizer import build_tokenizer
from fsd_decoding.divergence import DIVERGENCES
from fsd_decoding.loading import load_model, load_tokenizer
from fsd_decoding.models.fingerprint import family_id, tokenizer_fingerprint
from fsd_decoding.profile.parts import ModelInfo
from fsd_decoding.rules import RULES
from fsd_decoding.scores import SCORES_VERSION
from support.calibration.profiles import UNCERTIFIED, profile
from support.messages import error_line

GOOD = ["--task", "arithmetic", "--min-acc", "0.98"]


def calibrate(*arguments: str) -> int:
    return run(calibrate_app.app, calibrate_app.NAME, arguments)


def generate(*arguments: str) -> int:
    return run(generate_app.app, generate_app.NAME, arguments)


# Help


def test_help_tells_options_defaults_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrate("--help-all") == 0
    text = " ".join(capsys.readouterr().out.split())
    for expected in ("--min-acc", "--min-speed", "--show-prompt", "arithmetic, csqa, gsm8k", "Examples: fsd ",
                     "--plan", "--pareto", "--storage", "--cache", "--state",
                     "0 goal met", "2 bad input", "3 could not be certified", "130 interrupted"):  # fmt: skip
        assert expected in text
    assert ", ".join(DIVERGENCES) in text
    assert ", ".join(name for name, rule in RULES.items() if rule.bounds_score) in text


def test_generate_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("--help") == 0
    assert "--max-new-tokens" in capsys.readouterr().out


# Bad input


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "Missing option '--task'"),
        (
            ["--task", "poetry", "--min-acc", "0.9"],
            "unknown task 'poetry': the known tasks are agreement, arithmetic, csqa",
        ),
        (["--task", "arithmetic"], "give exactly one of --min-acc, --min-speed and --pareto"),
        ([*GOOD, "--min-speed", "60"], "give exactly one of --min-acc, --min-speed and --pareto"),
        ([*GOOD, "--pareto"], "give exactly one of --min-acc, --min-speed and --pareto"),
        ([*GOOD, "--acc", "plain"], "--acc is 'plain'; it must be one of retention, absolute"),
        (["--task", "gsm8k", "--min-acc", "1.1", "--acc", "absolute"], "above 0 and at most 1 (0.98"),
        ([*GOOD, "--guarantee", "all"], "--guarantee is 'all'; it must be one of population, dataset"),
        ([*GOOD, "--looks", "0"], "--looks is 0; it must be from 1 to 100"),
        ([*GOOD, "--serve-batch", "0"], "--serve-batch is 0"),
        ([*GOOD, "--seeds", "0"], "--seeds is 0"),
        (["--task", "gsm8k", "--min-acc", "0"], "--min-acc is 0.0; it must be above 0 and at most 1.2"),
        (["--task", "gsm8k", "--min-acc", "1.21"], "--min-acc is 1.21"),
        (["--task", "gsm8k", "--min-acc", "nan"], "--min-acc is nan"),
        (["--task", "gsm8k", "--min-acc", "much"], "Invalid value for '--min-acc'"),
        (["--task", "gsm8k", "--min-speed", "0"], "--min-speed is 0.0"),
        (["--task", "gsm8k", "--min-speed", "inf"], "--min-speed is inf"),
        (["--task", "gsm8k", "--min-speed", "nan"], "--min-speed is nan"),
        ([*GOOD, "--confidence", "1"], "--confidence is 1.0"),
        ([*GOOD, "--confidence", "nan"], "--confidence is nan"),
        ([*GOOD, "--limit", "0"], "--limit is 0"),
        ([*GOOD, "--draft-length", "0"], "--draft-length is '0'; it must be a number from 1 to 1000"),
        ([*GOOD, "--draft-length", "8-2"], "--draft-length is '8-2'"),
        ([*GOOD, "--draft-length", "2,,4"], "--draft-length is '2,,4'"),
        ([*GOOD, "--score", "js,"], "--score is 'js,'"),
        ([*GOOD, "--batch-size", "-1"], "--batch-size is -1"),
        ([*GOOD, "--no-timing"], "No such option: --no-timing"),
        (["--certify", "x.json", "--rule", "fsd"], "own setting and searches nothing; leave --rule out"),
        (["--certify", "x.json"], "'x.json' cannot be read"),
        ([*GOOD, "--surprise"], "No such option: --surprise"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrate(*arguments) == 2
    line = error_line(capsys)
    assert line.startswith("fsd-calibrate: error: ")
    assert complaint in line


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--score", "kl"], "--score is 'kl'; it must be one of auto, js, ag"),
        (["--rule", "fuzzy"], "--rule is 'fuzzy'; it must be one of fsd, fsd-sd, fsd-coupled"),
        (["--rule", "sd"], "--rule is 'sd'; it must be one of fsd, fsd-sd, fsd-coupled"),
        (["--compile", "fast"], "--compile is 'fast'; it must be one of auto, off, capture, on"),
        (["--engine", "tgi"], "--engine is 'tgi'; it must be one of fsd-calib, vllm"),
        (["--engine", "fsd-calib,vllm"], "engines are fsd-calib and vllm, which can certify one setting in turn"),
        (["--timing", "twice"], "--timing is 'twice'; it must be one of run, careful, none"),
        (
            ["--threshold-policy", "poetry"],
            "--threshold-policy is 'poetry'; it must be one of constant, schedule, entropy, per-prompt",
        ),
        (
            ["--threshold-policy", "constant,schedule", "--predictor", "auto"],
            "policy constant, schedule judges them by another",
        ),
        (["--tree", "wide"], "--tree is 'wide'; give TOP_K,NODES, such as 2,6"),
        (["--tree", "0,6"], "top_k is 0"),
        (["--tree", "2,6", "--predictor", "auto"], "tree is given, and a predictor ends chains of draft models early"),
        (["--temperature", "-1"], "--temperature is -1"),
        (["--top-k", "0"], "--top-k is 0"),
        (["--top-p", "1.5"], "--top-p is 1.5"),
        (["--device", "abacus"], "--device is 'abacus'; it must be cpu, cuda or another kind of device"),
        (["--dtype", "int8", "--target", "x", "--draft", "x"], "dtype is 'int8'"),
        (["--target", "./no/such/folder", "--draft", "x"], "give an id, or the path of a local folder"),
    ],
)
def test_bad_settings_are_one_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert calibrate(*GOOD, "--out", str(tmp_path), *arguments) == 2
    assert complaint in error_line(capsys)


QUICK = {
    "--score": "kl", "--rule": "fuzzy", "--tree": "wide", "--threshold-policy": "poetry", "--engine": "tgi",
    "--dtype": "int8", "--temperature": "-1", "--top-k": "0", "--target": "mine", "--drafter": "poet", "--limit": "0",
    "--min-acc": "3", "--draft-length": "0", "--model-kwargs": "[", "--state": "", "--min-p": "2", "--task": "poetry",
}  # fmt: skip


def test_bad_input_is_answered_before_anything_heavy_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "out"
    bad = [["--out", str(folder)], *([option, value] for option, value in QUICK.items())]
    code = f"""
import sys
from fsd_calib.cli.calibrate import app
from fsd_calib.cli.console import run
assert {{run(app, "fsd-calibrate", [*{GOOD!r}, *arguments]) for arguments in {bad!r}}} == {{2}}
assert not {{"torch", "transformers", "optuna", "datasets", "pandas"}} & set(sys.modules)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stderr.splitlines()
    assert lines[0] == (
        f"fsd-calibrate: error: --out {str(folder)!r} cannot be written: Not a directory; choose another folder"
    )
    assert len(lines) == len(bad)


def test_bad_input_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert calibrate(*GOOD, "--out", "deep/new", "--score", "kl") == 2
    assert calibrate(*GOOD, "--score", "kl") == 2
    assert calibrate(*GOOD, "--limit", "20", "--cache", "c", "--state", "s") == 2
    assert not (tmp_path / "deep").exists()
    assert not (tmp_path / "fsd-profile").exists()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(None, "cannot be read"), ("{", "is not JSON"), ("{}", "schema_version is None")],
)
def test_generate_refuses_a_bad_profile(
    content: str | None, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "profile.json"
    if content is not None:
        path.write_text(content)
    assert generate("--profile", str(path), "Hello") == 2
    assert complaint in error_line(capsys)


def test_generate_needs_a_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("--profile", "x") == 2
    assert "there is no prompt; give one or more in quotes, - for standard input, or --file" in error_line(capsys)


# Tiny real models: random, so they solve nothing


@pytest.fixture(scope="module")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    tokenizer = build_tokenizer(["How many apples does Ann have now? She has 12."], vocab_size=300)
    for name, seed in (("target", 0), ("draft", 1)):
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=300, hidden_size=16, intermediate_size=16, num_hidden_layers=1, eos_token_id=1,
            num_attention_heads=2, num_key_value_heads=2, bos_token_id=None, pad_token_id=0,
            max_position_embeddings=1024,
        )  # fmt: skip
        LlamaForCausalLM(config).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder / "target", folder / "draft"


@pytest.fixture(scope="module")
def tiny_profile(tiny_pair: tuple[Path, Path]) -> dict[str, Any]:
    """The changes that make the made-up profile one of the tiny pair."""
    infos = [ModelInfo.of(load_model(path, "cpu", None)) for path in tiny_pair]
    return {
        "target": infos[0].model_copy(update={"id": str(tiny_pair[0])}).model_dump(),
        "draft": infos[1].model_copy(update={"id": str(tiny_pair[1])}).model_dump(),
        "tokenizer": tokenizer_fingerprint(load_tokenizer(tiny_pair[0])),
        "scores_version": SCORES_VERSION,
        "prompt.max_new_tokens": 10,
    }


def test_generate_prints_texts_and_a_summary(
    tiny_profile: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "profile.json"
    profile(tiny_profile).save(path)
    common = ["--profile", str(path), "--device", "cpu"]
    assert generate(*common, "How many apples?") == 0
    captured = capsys.readouterr()
    assert captured.out.strip()
    summary = captured.err.splitlines()[-1]
    assert re.fullmatch(
        r"fsd-generate: \d+ tokens in \d+ rounds, \d\.\d\d per round; \d+% of \d+ drafted tokens accepted; "
        r"\d+\.\d tokens/s",
        summary,
    )
    assert generate(*common, "How many apples?", "What now?") == 0
    assert capsys.readouterr().out.startswith(captured.out.strip("\n") + "\n\n")


def test_generate_puts_prompts_in_the_chat_template_unless_raw(
    tiny_profile: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "profile.json"
    profile(tiny_profile).save(path)
    common = ["--profile", str(path), "--max-new-tokens", "10", "--device", "cpu"]
    texts = []
    for prompt in (["How many?"], ["--raw", "Question: How many?\nAnswer:"]):
        assert generate(*common, *prompt) == 0
        texts.append(capsys.readouterr().out)
    with pytest.warns(UserWarning, match="^prompts are not made as in the calibration: the certificate"):
        assert generate(*common, "--raw", "How many?") == 0
    assert texts[0] == texts[1]
    assert texts[0] != capsys.readouterr().out


def test_generate_says_where_texts_end_otherwise_than_in_the_calibration(
    tiny_profile: dict[str, Any], tmp_path: Path
) -> None:
    profile(tiny_profile | {"prompt.stop": ["."]}).save(tmp_path / "profile.json")
    common = ["--profile", str(tmp_path), "--device", "cpu", "How many?"]
    assert generate(*common) == 0
    with pytest.warns(UserWarning, match=r"^max_new_tokens is 7 instead of 10: the certificate .* does not apply"):
        assert generate(*common, "--max-new-tokens", "7") == 0
    with pytest.warns(UserWarning, match=r"max_new_tokens is 256 instead of 10, stop is \(\) instead of \('\.',\): "):
        assert generate(*common, "--raw") == 0


def test_generate_with_a_threshold_is_fuzzy_even_without_a_certificate(
    tiny_profile: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "profile.json"
    profile(tiny_profile | UNCERTIFIED).save(path)
    common = ["--profile", str(path), "--max-new-tokens", "10", "--device", "cpu", "How many?"]
    with pytest.warns(UserWarning, match="lossless"):
        assert generate(*common) == 0
    assert "100% of" not in capsys.readouterr().err
    assert not (default_state() / LEDGER).exists()
    with pytest.warns(UserWarning, match="threshold is 0.7 .* certifies no threshold, so nothing is known"):
        assert generate(*common, "--threshold", "0.7") == 0  # js never exceeds ln 2: all is accepted
    assert "100% of" in capsys.readouterr().err
    asked = [problem_of(Example(text, ""), text) for text in ("How many?", "How few?")]
    with AttemptLedger(default_state() / LEDGER) as ledger:  # it may certify nothing any more
        family = family_id(load_model(tiny_profile["target"]["id"], "cpu", None))
        assert ledger.usable(family, asked, "run").tolist() == [False, True]
    row = {"prompt": "Say how few.", "answer": "3"}
    (tmp_path / "prompts.jsonl").write_text(json.dumps(row))
    with pytest.warns(UserWarning, match="threshold is 0.7"):
        assert generate(*common, "--threshold", "0.7", "--file", str(tmp_path / "prompts.jsonl")) == 0
    with AttemptLedger(default_state() / LEDGER) as ledger:
        assert not ledger.usable(family, [problem_of(Example("How few?", "", source=row), "")], "run").any()
    (default_state() / LEDGER).write_text("damaged")
    with pytest.warns(UserWarning, match="is damaged .* so these problems are not recorded as looked at"):
        assert generate(*common, "--threshold", "0.7") == 0


def test_generate_follows_an_edited_profile_only_where_that_is_allowed(
    tiny_profile: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile(tiny_profile).save(tmp_path / "profile.json")
    content = json.loads((tmp_path / "profile.json").read_text())
    (tmp_path / "profile.json").write_text(json.dumps(content | {"threshold": 0.7}))
    common = ["--profile", str(tmp_path), "--max-new-tokens", "10", "--device", "cpu", "How many?"]
    assert generate(*common) == 2
    assert "was changed after the calibration" in error_line(capsys)
    with pytest.warns(UserWarning, match="its certificate does not cover"):
        assert generate(*common, "--allow-edited") == 0
    assert "drafted tokens accepted" in capsys.readouterr().err


def test_generate_drafts_chains_or_another_tree_than_the_profile(
    tiny_profile: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile(tiny_profile | {"tree": {"top_k": 2, "nodes": 6}}).save(tmp_path / "profile.json")
    common = ["--profile", str(tmp_path), "--max-new-tokens", "10", "--device", "cpu", "How many?"]
    assert generate(*common) == 0
    for given, shown in (("chain", "'chain'"), ("3,4", r"TreeShape\(top_k=3, nodes=4\)")):
        with pytest.warns(
            UserWarning, match=rf"^tree is {shown} instead of TreeShape.* certificate .* does not apply$"
        ):
            assert generate(*common, "--tree", given) == 0
    capsys.readouterr()
    assert generate(*common, "--tree", "twigs") == 2
    assert "--tree is 'twigs'; give TOP_K,NODES, such as 2,6, or chain" in capsys.readouterr().err


def test_generate_says_where_a_threshold_leaves_the_certificate(tiny_profile: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    profile(tiny_profile).save(path)
    common = ["--profile", str(path), "--max-new-tokens", "10", "--device", "cpu", "How many?"]
    with pytest.warns(UserWarning, match=r"^threshold is 0\.5 instead of .*: the certificate .* does not apply$"):
        assert generate(*common, "--threshold", "0.5") == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for same in (str(profile(tiny_profile).threshold), "-1"):  # the profile's own, and a lossless one
            assert generate(*common, "--threshold", same) == 0


def test_generate_says_what_it_follows(
    tiny_profile: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile(tiny_profile).save(tmp_path / "profile.json")
    common = ["--profile", str(tmp_path), "--max-new-tokens", "10", "--device", "cpu", "How many?"]
    whose = f"following profile {str(tmp_path / 'profile.json')!r} of task {tiny_profile.get('task', 'arithmetic')!r}"
    for more, line in (([], f"{whose}: LOSSY, drafted tokens"), (["--threshold", "-1"], f"lossless: {whose}, with")):
        assert generate(*common, *more) == 0
        assert f"fsd-generate: {line}" in capsys.readouterr().err
    assert generate(*common, "--quiet") == 0
    assert capsys.readouterr().err == ""


def test_generate_refuses_other_models(
    tiny_profile: dict[str, Any], tiny_pair: tuple[Path, Path], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = tmp_path / "profile.json"
    profile(tiny_profile).save(path)
    assert generate("--profile", str(path), "--target", str(tiny_pair[1]), "Hello") == 2
    assert "fsd-generate: error: the profile's target is" in capsys.readouterr().err


def test_show_prompt_prints_what_the_model_is_given(
    tiny_pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"question": "How many?", "answer": "Five. #### 5"}) + "\n")
    arguments = ["--task", "gsm8k", "--data", str(data), "--target", str(tiny_pair[0]), "--show-prompt"]
    assert calibrate(*arguments) == 2
    assert "leaves out or changes the system message 'Solve the problem step by step." in capsys.readouterr().err
    assert calibrate(*arguments, "--system", "") == 0
    assert capsys.readouterr().out == "Question: How many?\nAnswer:\n"


def test_a_target_that_solves_nothing_is_refused(
    tiny_pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = ["--target", str(tiny_pair[0]), "--draft", str(tiny_pair[1]), "--device", "cpu"]
    modest = ["--task", "arithmetic", "--min-acc", "0.5", "--limit", "30"]
    assert calibrate(*modest, *models, "--out", str(tmp_path)) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("fsd-calibrate: error: ")
    assert "solves none" in last


def test_tokenizers_that_differ_are_refused(
    tiny_pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    LlamaForCausalLM.from_pretrained(tiny_pair[1]).save_pretrained(other)
    build_tokenizer(["something else entirely"], vocab_size=290).save_pretrained(other)
    models = ["--target", str(tiny_pair[0]), "--draft", str(other), "--device", "cpu"]
    assert calibrate(*GOOD, *models, "--out", str(tmp_path / "out")) == 2
    assert re.search(r"tokenizers differ: id \d+ is ", capsys.readouterr().err)
