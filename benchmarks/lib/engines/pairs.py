"""The pairs of models that engines are compared on, as folders that each of them loads, with prompts as texts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fsd_calib.tasks.registry import load_task
from fsd_data import pair_paths

_SEED = 72_004
_LAYERS, _HIDDEN, _ECHO = 12, 512, 0.02


@dataclass(frozen=True)
class SavedPair:
    """Models in folders, with prompts for them.

    Args:
        about: what the models are.
        models: paths of the target and the draft.
    """

    name: str
    about: str
    models: tuple[str, str]
    prompts: tuple[str, ...]
    max_new_tokens: int


def bundled(prompts: int, max_new_tokens: int | None) -> SavedPair:
    """The pair that comes with fsd-calib, with problems of arithmetic. None: texts as long as the task's."""
    target, draft = pair_paths()
    task = load_task("arithmetic", seed=_SEED, limit=prompts)
    texts = tuple(problem.prompt for problem in task.problems)
    about = "the bundled pair; texts end with EOS"
    return SavedPair("bundled", about, (str(target), str(draft)), texts, max_new_tokens or task.max_new_tokens)


def random(folder: Path, prompts: int, max_new_tokens: int) -> SavedPair:
    """A random pair as deep as a small real model, made with a fixed seed and saved below `folder`."""
    from lib.decoding.pairs import DRAFT_LAYERS, random_pair

    pair = random_pair(_LAYERS, _HIDDEN, _ECHO, prompts, max_new_tokens)
    saved = folder / "target", folder / "draft"
    for path, model in zip(saved, (pair.target, pair.draft), strict=True):
        model.save_pretrained(path)
        pair.tokenizer.save_pretrained(path)
    about = (
        f"Llamas of random weights and width {_HIDDEN}: {_LAYERS} layers, and as draft the first {DRAFT_LAYERS} of "
        f"them with the target's embedding, norm and head; the later layers add {_ECHO:g} times what they would, so "
        "that `sd` accepts about 70 % at L = 5; no token ends a text"
    )
    texts = tuple(pair.tokenizer.decode(prompt) for prompt in pair.prompts)
    return SavedPair(pair.name, about, (str(saved[0]), str(saved[1])), texts, max_new_tokens)
