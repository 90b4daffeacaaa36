"""`fsd-inspect`: what it replies to bad input, and what it shows of texts by the bundled pair."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fsd_calib.cli import inspect as inspect_app
from fsd_calib.cli.console import run
from fsd_data import head_path, pair_paths
from fsd_decoding.loading import load_model, load_tokenizer
from fsd_decoding.models.fingerprint import tokenizer_fingerprint
from fsd_decoding.profile.parts import ModelInfo
from fsd_decoding.scores import SCORES_VERSION
from support.calibration.profiles import profile
from support.messages import error_line

QUESTION = (
    "Mia picks 4 apples from each of 6 trees. Mia gives 5 of them to a neighbor. How many apples does Mia have now?"
)
SHORT = ["--device", "cpu", "--max-new-tokens", "20", QUESTION]


def inspect(*arguments: str) -> int:
    return run(inspect_app.app, inspect_app.NAME, arguments)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "Missing argument"),
        (["x", *["--threshold", "0.1"] * 3], "--threshold is given 3 times; give one, or two to compare"),
        (["x", "--html", "a.html", "--table"], "--html and --table are both given"),
        (["x", "--json", "--table"], "--json and --table are both given"),
        (["x", "--raw", "--task", "gsm8k"], "--raw and --task are both given"),
        (["x", "--target", "a"], "--draft is missing; give both models, or a --profile"),
        (["x", "--draft", "a"], "--target is missing"),
        (["x", "--task", "poetry"], "unknown task 'poetry'"),
        (["x", "--draft-length", "0"], "Invalid value for '--draft-length'"),
        (["x", "--rule", "fuzzy"], "--rule is 'fuzzy'; it must be one of target, sd"),
        (["x", "--rule", "sd", "--threshold", "0.1"], "--rule 'sd' has no threshold; leave --threshold out"),
        (["x", "--profile", "no/such.json"], "cannot be read"),
        (["x", "--tree", "2"], "--tree is '2'; give TOP_K,NODES, such as 2,6"),
        (["x", "--tree", "2,six"], "--tree is '2,six'; give TOP_K,NODES, such as 2,6"),
        (["x", "--tree", "0,6"], "top_k is 0; it must be a whole number of at least 1"),
        (
            ["x", "--tree", "2,6", "--rule", "ensemble"],
            "and rule 'ensemble' judges chains alone",
        ),
        (["x", "--head", "a", "--draft", "b"], "--head and --draft are both given"),
        (["x", "--head", "no/such"], "EAGLE head 'no/such' is not a local folder"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect(*arguments) == 2
    line = error_line(capsys)
    assert line.startswith("fsd-inspect: error: ")
    assert complaint in line


def test_two_thresholds_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect("--threshold", "-1", "--threshold", "0.5", *SHORT) == 0
    first, second = capsys.readouterr().out.split("T = 0.5\n")
    assert first.startswith("T = -1\nfsd-coupled, D is js, L = 5\n")
    assert "fuzzy" not in first
    assert "Fuzzy tokens" in second
    for text in (first, second):
        assert "20 tokens in " in text
    assert "The texts part at token " in second


def test_trees_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect("--tree", "2,6", "--draft-length", "3", "--table", *SHORT) == 0
    shown = capsys.readouterr().out
    assert "fsd-coupled, D is js, L = 3, trees of 6 nodes, top 2" in shown
    assert "Drafted trees, by round (what was accepted is marked by parentheses):\nround 1\n├── " in shown
    assert inspect("--tree", "2,6", "--draft-length", "3", "--json", *SHORT) == 0
    (text,) = json.loads(capsys.readouterr().out)["result"]["texts"]
    assert len(text["trees"]) == text["rounds"]
    assert set(text["trees"][0][0]) == {"token", "name", "depth", "parent", "accepted"}


def test_an_eagle_head_may_draft(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for options in ([], ["--head", str(head_path())]):
        assert inspect("--rule", "coupled", *options, "--json", *SHORT) == 0
        texts.append(json.loads(capsys.readouterr().out)["result"]["texts"][0]["text"])
    assert texts[0] == texts[1]
    page = tmp_path / "page.html"
    assert inspect("--head", str(head_path()), "--tree", "2,6", "--html", str(page), *SHORT) == 0
    assert "EAGLE head pair/head" in page.read_text()


def test_a_result_for_programs_holds_every_token(capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect("--json", "--rule", "sd", *SHORT) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["command"] == "fsd-inspect"
    (text,) = told["result"]["texts"]
    assert told["result"]["page"] is None
    assert QUESTION in told["result"]["prompt"]
    assert "".join(token["text"] for token in text["tokens"]) == text["text"]
    assert {token["source"] for token in text["tokens"]} == {"exact", "fallback", "bonus"}


def test_a_page_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "texts.html"
    assert inspect("--html", str(path), "--raw", "--max-new-tokens", "8", "--device", "cpu", "<script>x</script>") == 0
    assert capsys.readouterr().out == f"{path}\n"
    page = path.read_text(encoding="utf-8")
    assert "&lt;script&gt;x" in page
    assert "<script>" not in page
    assert "pair/target with draft pair/draft on cpu in float32" in page


def test_a_profile_gives_models_task_and_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    infos = [ModelInfo.of(load_model(path, "cpu", None)).model_copy(update={"id": str(path)}) for path in pair_paths()]
    known = {
        "target": infos[0].model_dump(), "draft": infos[1].model_dump(), "scores_version": SCORES_VERSION,
        "tokenizer": tokenizer_fingerprint(load_tokenizer(pair_paths()[0])), "task": "arithmetic",
        "prompt.max_new_tokens": 20,
    }  # fmt: skip
    found = profile(known)
    found.save(tmp_path / "profile.json")
    assert inspect("--profile", str(tmp_path), "--table", *SHORT) == 0
    shown = capsys.readouterr()
    assert shown.err.startswith("fsd-inspect: following profile ")
    lines = shown.out.splitlines()
    assert lines[0] == f"T = {found.threshold:.4g}"
    assert lines[1].startswith(f"{found.rule}, D is {found.score}, L = {found.draft_length}")
    assert sum(line.split()[:1] == ["19"] for line in lines) == 1
