"""The bundled pair is what its README says, and its training script runs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from fsd_calib import SpeculativeDecoder, load_task
from fsd_data import pair_paths, train

pytestmark = pytest.mark.slow


def solved(decoder: SpeculativeDecoder, rule: str, threshold: float, problems: int = 300) -> tuple[float, float]:
    """Accuracy, and tokens a round."""
    task = load_task("arithmetic", seed=77, limit=problems)
    results = decoder.generate([p.prompt for p in task.problems], task.max_new_tokens, rule=rule, threshold=threshold)
    right = sum(task.grade(p, r.text) for p, r in zip(task.problems, results, strict=True))
    return right / problems, sum(len(r.tokens) + 1 for r in results) / sum(r.rounds for r in results)


def test_accuracy_falls_from_the_targets_to_the_drafts() -> None:
    """300 greedy problems. Bounds are 5 standard errors beyond what README's limits allow (1e-6)."""
    target, draft = pair_paths()
    pair = SpeculativeDecoder.from_pretrained(target, draft)
    alone, _ = solved(pair, "target", 0)
    exact, sd_pace = solved(pair, "sd", 0)
    low, low_pace = solved(pair, "fsd-coupled", 0.08)
    wild, wild_pace = solved(pair, "fsd-coupled", 0.7)
    assert alone >= 0.93 - 5 * (0.93 * 0.07 / 300) ** 0.5
    assert abs(exact - alone) <= 0.01  # greedy sd is the target's text, but for ties in the last bit
    assert low >= 0.9 * alone
    assert wild <= 0.75 + 5 * (0.75 * 0.25 / 300) ** 0.5
    assert sd_pace < low_pace < wild_pace


def test_files_are_small_and_the_logs_are_there() -> None:
    pair = pair_paths()[0].parent
    assert sum(f.stat().st_size for f in pair.rglob("*") if f.is_file()) <= 12e6
    for folder in pair_paths():
        rows = [json.loads(line) for line in (folder / "training.jsonl").read_text().splitlines()]
        assert rows[0]["recipe"] == dataclasses.asdict(train.RECIPES[folder.name])
        assert rows[-1]["accuracy"] > 0.3


def test_training_learns_and_saves_a_model_that_loads(tmp_path: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(pair_paths()[0])
    recipe = dataclasses.replace(train.RECIPES["draft"], steps=60, batch=8)
    model = train.train("draft", recipe, tokenizer, tmp_path, "cpu")
    rows = [json.loads(line) for line in (tmp_path / "draft" / "training.jsonl").read_text().splitlines()]
    assert rows[-1]["loss"] < 0.8 * rows[1]["loss"]
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "draft")
    ids = torch.arange(20)[None]
    torch.testing.assert_close(again(input_ids=ids).logits, model.eval()(input_ids=ids).logits, atol=1e-4, rtol=1e-4)
    assert AutoTokenizer.from_pretrained(tmp_path / "draft").chat_template == tokenizer.chat_template
