"""Pairs of models in folders, as workers load them, with a task of text prompts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fsd_calib.tasks.base import Problem, Task
from fsd_calib.tasks.registry import load_task
from fsd_data import pair_paths
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.workers.sources import Sources
from lib.decoding.pairs import random_pair


@dataclass(frozen=True)
class PairOnDisk:
    """Where a pair is loaded from, the decoder of this process, and a task."""

    name: str
    sources: Sources
    decoder: SpeculativeDecoder
    task: Task


def bundled_pair(problems: int) -> PairOnDisk:
    """Returns the bundled pair with arithmetic problems."""
    target, draft = map(str, pair_paths())
    decoder = SpeculativeDecoder.from_pretrained(target, draft)
    task = load_task("arithmetic", seed=71_005, limit=problems, tokenizer=decoder.tokenizer)
    return PairOnDisk("bundled", Sources(target, (draft,)), decoder, task)


def random_pair_in(folder: Path, problems: int, layers: int, hidden: int, new_tokens: int) -> PairOnDisk:
    """Saves a random pair, and returns it with random prompts."""
    made = random_pair(layers, hidden, 0.05, problems, new_tokens)
    for name, model in (("target", made.target), ("draft", made.draft)):
        model.save_pretrained(folder / name)
        made.tokenizer.save_pretrained(folder / name)
    target, draft = str(folder / "target"), str(folder / "draft")
    texts = [made.tokenizer.decode(prompt) for prompt in made.prompts]
    each = tuple(Problem(number, text, text, "", None) for number, text in enumerate(texts))
    task = Task(made.name, each, new_tokens, (), "random prompts", _any_text)
    return PairOnDisk(made.name, Sources(target, (draft,)), SpeculativeDecoder.from_pretrained(target, draft), task)


def _any_text(problem: Problem, text: str) -> bool:
    return True
