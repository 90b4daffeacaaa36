"""Recurrent models are distilled from the bundled target, and the bundled one drafts for it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from fsd_calib import SpeculativeDecoder, ThresholdProfile, load_task
from fsd_calib.cli import calibrate
from fsd_calib.cli.console import run
from fsd_data import pair_paths, recurrent_path
from fsd_data.distil_recurrent import STUDENTS, distil, lessons, linearised
from fsd_data.problems import part_of


@pytest.fixture(scope="module")
def target() -> Any:
    return AutoModelForCausalLM.from_pretrained(pair_paths()[0]).eval()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(pair_paths()[0])


@torch.inference_mode()
def test_a_lesson_is_the_targets_own_text_with_its_own_probabilities(target: Any, tokenizer: Any) -> None:
    """Texts of unequal prompts are written in one batch; each is read again by itself."""
    for prompt, solution, wanted in lessons(target, tokenizer, 3):
        assert part_of(tokenizer.decode(prompt).removeprefix("Question: ").removesuffix("\nAnswer:")) == "train"
        assert solution[-1] == tokenizer.eos_token_id
        assert wanted.shape == (len(solution), len(tokenizer))
        logits = target(torch.tensor([prompt + solution])).logits[0, len(prompt) - 1 : -1]
        torch.testing.assert_close(wanted.float(), logits.softmax(-1), atol=1e-3, rtol=0)


@torch.inference_mode()
def test_a_target_whose_attention_all_stays_is_the_target(target: Any, tokenizer: Any) -> None:
    ids = torch.arange(2, 60)[None]
    layers = frozenset(range(target.config.num_hidden_layers))
    torch.testing.assert_close(linearised(target, tokenizer, layers).eval()(ids).logits, target(ids).logits)
    fewer = linearised(target, tokenizer)
    assert "linear_attention" in fewer.config.layer_types
    assert (fewer.eval()(ids).logits - target(ids).logits).abs().max() > 1  # what took no part is missed


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDENTS)
def test_a_student_learns_and_is_saved_so_that_it_decodes(
    name: str, target: Any, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsd_data.train.accuracy", lambda *args, **kwargs: 0.0)  # it writes 200 texts
    few = dataclasses.replace(STUDENTS[name].training, steps=60, batch=4)
    student = dataclasses.replace(STUDENTS[name], training=few)
    model = distil(name, student, target, tokenizer, lessons(target, tokenizer, 16), tmp_path)
    rows = [json.loads(line) for line in (tmp_path / name / "training.jsonl").read_text().splitlines()]
    assert rows[-1]["loss"] < 0.8 * rows[1]["loss"]
    pair = (tmp_path / name, pair_paths()[1]) if name.endswith("target") else (target, tmp_path / name)
    decoder = SpeculativeDecoder.from_pretrained(*pair, tokenizer=tokenizer)
    assert model.num_parameters() in (decoder.target.num_parameters(), decoder.draft.num_parameters())
    prompt = load_task("arithmetic", limit=1).problems[0].prompt
    alone, drafted = (decoder.generate([prompt], 12, rule=rule)[0] for rule in ("target", "sd"))
    assert alone.tokens == drafted.tokens


def test_the_bundled_student_is_small_and_as_its_recipe_says() -> None:
    folder = recurrent_path()
    assert sum(file.stat().st_size for file in folder.iterdir()) < 1e6
    rows = [json.loads(line) for line in (folder / "training.jsonl").read_text().splitlines()]
    assert rows[0]["recipe"] == dataclasses.asdict(STUDENTS["recurrent-draft"].training)
    assert rows[-1]["step"] == STUDENTS["recurrent-draft"].training.steps


@pytest.mark.parametrize("temperature", [0.0, pytest.param(1.0, marks=pytest.mark.slow)])
def test_texts_with_the_bundled_student_are_the_targets_own(temperature: float) -> None:
    """In float64, where rounding decides nothing; rows of different lengths roll back by themselves."""
    decoder = SpeculativeDecoder.from_pretrained(pair_paths()[0], recurrent_path(), dtype=torch.float64)
    prompts = [problem.prompt for problem in load_task("arithmetic", seed=3, limit=4).problems]
    keywords: dict[str, Any] = {"temperature": temperature, "draft_length": 4}
    alone = decoder.generate(prompts, 40, rule="target", **keywords)
    drafted = decoder.generate(prompts, 40, rule="coupled", **keywords)
    assert [each.tokens for each in drafted] == [each.tokens for each in alone]
    assert sum(each.accepted for each in drafted) > 0.3 * sum(each.drafted for each in drafted)


@pytest.mark.slow
def test_a_setting_is_certified_for_the_target_with_the_bundled_student(tmp_path: Path) -> None:
    """By name, on the command line: that of the usual pair is tested with this draft."""
    shared = ["--limit", "300", "--timing", "none", "--compile", "off", "--cache", str(tmp_path / "cache")]
    usual = ["--task", "arithmetic", "--min-acc", "0.8", "--draft-length", "3", "--score", "js"]
    other = ["--certify", str(tmp_path / "usual" / "profile.json"), "--draft", "bundled-recurrent"]
    for name, options in (("usual", usual), ("other", other)):
        folders = ["--out", str(tmp_path / name), "--state", str(tmp_path / f"state of {name}")]
        assert run(calibrate.app, calibrate.NAME, [*options, *shared, *folders]) == 0
    profile = ThresholdProfile.load(tmp_path / "other" / "profile.json")
    assert profile.certificate.certified
    assert profile.draft.id == str(recurrent_path())
