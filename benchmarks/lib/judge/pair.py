"""Harder pairs: the bundled models, trained on until each is sure of its own wording.

The bundled pair's harmless mismatches are of small divergence, so every score keeps nearly all of them. Here the target
is as sure of a word as of a number. The draft of the second pair is as sure where it is wrong, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from fsd_common.user_folders import default_cache
from fsd_data import pair_paths
from fsd_data.problems import Mix
from fsd_data.train import Model, Recipe, fit, problem_batches

_NAME = "sure-pair-1"  # another where what follows changes
_SUM = re.compile(r"(\d+)([+-])(\d+)=(\d+)")


@dataclass(frozen=True)
class _Further:
    mix: Mix
    steps: int
    batch: int
    forgets: bool = False  # what is carried and borrowed


_FURTHER = {
    "target": _Further("sure-target", 160, 16),
    "draft": _Further("sure-draft", 250, 48),
    "forgetful-draft": _Further("sure-draft", 400, 48, forgets=True),
}
PAIRS = {"sure": ("target", "draft"), "forgetful": ("target", "forgetful-draft")}
"""Models of each pair."""


def further_pair(name: str) -> tuple[str, str]:
    """Returns the paths of a pair's models, which are trained at the first call (some minutes on one core)."""
    folder = default_cache() / _NAME
    paths = []
    for model, start in zip(PAIRS[name], pair_paths(), strict=True):
        if not (folder / model / "done").exists():
            _train(_FURTHER[model], Path(start), folder / model)
        paths.append(str(folder / model))
    return paths[0], paths[1]


def _train(further: _Further, start: Path, out: Path) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(start)
    model: Model = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
    recipe = Recipe(
        layers=0, width=0, inner=0, heads=0, kv_heads=0, mix=further.mix, steps=further.steps, batch=further.batch,
        matrix_lr=0.004, other_lr=8e-4, seed=1,
    )  # fmt: skip
    batches = problem_batches(tokenizer, recipe)
    if further.forgets:
        pieces = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
        batches = (batch._replace(wanted=forgetful(batch.wanted, pieces)) for batch in batches)
    fit(model.train(), recipe, batches, tokenizer, out)
    (out / "done").touch()


def forgetful(wanted: torch.Tensor, pieces: Sequence[str]) -> torch.Tensor:
    """Returns the tokens to learn (n,) with tens of sums and differences that lack what is carried or borrowed.

    What is read before them stays right, so that one mistake does not follow from another.

    Args:
        pieces: of every token its text; digits are tokens of their own.
    """
    digits = {text: token for token, text in enumerate(pieces) if text.isdecimal()}
    texts = [pieces[token] for token in wanted.tolist()]
    place = {begin: token for token, begin in enumerate(_begins(texts))}
    wrong = wanted.clone()
    for found in _SUM.finditer("".join(texts)):
        one, operation, other, result = found.groups()
        units = int(one[-1]), int(other[-1])
        slips = sum(units) > 9 if operation == "+" else units[0] < units[1]
        tens = int(result[-2:-1] or 0) + (-1 if operation == "+" else 1)
        if slips and len(result) > 1 and (0 if len(result) > 2 else 1) <= tens <= 9:
            wrong[place[found.end() - 2]] = digits[str(tens)]
    return wrong


def _begins(texts: Sequence[str]) -> Iterator[int]:
    """Where each text begins among all of them."""
    begin = 0
    for text in texts:
        yield begin
        begin += len(text)
