"""The bundled pair reaches the figures of its README, and its training script runs."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from fsd_calib import SpeculativeDecoder, load_task
from fsd_data import pair_paths, train

pytestmark = pytest.mark.slow


PROBLEMS = 300


def solved(decoder: SpeculativeDecoder, rule: str, threshold: float) -> tuple[float, float, float]:
    """Returns the accuracy, the tokens per round, and the share of drafted tokens accepted."""
    task = load_task("arithmetic", seed=77, limit=PROBLEMS)
    results = decoder.generate([p.prompt for p in task.problems], task.max_new_tokens, rule=rule, threshold=threshold)
    right = sum(task.grade(p, r.text) for p, r in zip(task.problems, results, strict=True))
    pace = sum(r.emitted for r in results) / sum(r.rounds for r in results)
    return right / PROBLEMS, pace, sum(r.accepted for r in results) / max(1, sum(r.drafted for r in results))


def beyond(share: float, side: int) -> float:
    """Limits plus five standard errors of 300 problems: a chance failure has probability of one in a million."""
    return share + side * 5 * math.sqrt(share * (1 - share) / PROBLEMS)


def test_the_pair_reaches_the_figures_of_its_readme() -> None:
    """On other problems than the README's: accuracies, acceptance of `sd`, gain and cost of a fuzzy rule."""
    target, draft = pair_paths()
    pair = SpeculativeDecoder.from_pretrained(target, draft)
    alone, _, _ = solved(pair, "target", 0)
    exact, sd_pace, sd_accepted = solved(pair, "sd", 0)
    low, low_pace, _ = solved(pair, "fsd-coupled", 0.1)
    wild, wild_pace, _ = solved(pair, "fsd-coupled", 0.7)
    drafted, _, _ = solved(SpeculativeDecoder(pair.draft, pair.draft, pair.tokenizer), "target", 0)
    assert alone >= beyond(0.93, -1)
    assert beyond(0.3, -1) <= drafted <= beyond(0.75, 1)
    assert abs(exact - alone) <= 0.01  # greedy sd is the target's text, but for ties in the last bit
    assert 0.58 <= sd_accepted <= 0.82
    assert low >= beyond(0.98 * alone, -1)
    assert low_pace >= 1.2 * sd_pace
    assert wild <= low - 0.1
    assert low_pace < wild_pace


def test_files_are_small_and_logs_exist() -> None:
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
