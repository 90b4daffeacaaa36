"""Trains the bundled pair from scratch: `python -m fsd_data.train --out DIR`, on CPU or CUDA.

Writes `DIR/target`, `DIR/draft` (transformers format) and `DIR/<name>/training.jsonl`: losses, accuracies, seconds and
versions. Needs torch and transformers only.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import torch
import transformers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from fsd_data.problems import Mix, generate
from fsd_data.tokenizer import as_prompt, build_tokenizer

Model = Any  # a causal LM; transformers' own annotations refuse its `to` and `generate`

TRAINING_SEED, _EVALUATION_SEED = 20_240_501, 20_240_502
_POOL = 64  # batches drawn at once, then sorted by length so that a batch needs little padding


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a model is trained."""

    steps: int
    batch: int = 64
    matrix_lr: float = 0.02
    other_lr: float = 4e-3
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Recipe(Training):
    """One model's architecture and training.

    The target is deep and narrow: on a CPU the cost of a small layer is its overhead, so depth makes a tiny target
    several times more expensive than its draft.
    """

    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    mix: Mix


RECIPES = {
    "target": Recipe(layers=14, width=128, inner=256, heads=4, kv_heads=2, mix="target", steps=3000, batch=48),
    "draft": Recipe(layers=2, width=64, inner=128, heads=2, kv_heads=2, mix="draft", steps=1000),
}


def build_model(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> Model:
    torch.manual_seed(recipe.seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=recipe.width,
            intermediate_size=recipe.inner,
            num_hidden_layers=recipe.layers,
            num_attention_heads=recipe.heads,
            num_key_value_heads=recipe.kv_heads,
            max_position_embeddings=512,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


class Text(NamedTuple):
    """A problem, of whose solution a model learns."""

    prompt: list[int]
    solution: list[int]
    wanted: Tensor  # (n,) the tokens of the solution, or (n, V) probabilities of tokens in their places


class Batch(NamedTuple):
    """What one step learns."""

    ids: Tensor  # (B, S), padded on the right
    before: Tensor  # (B, S) bool: the tokens before those of the solutions
    wanted: Tensor  # (n,) or (n, V), see `Text`


def train(name: str, recipe: Recipe, tokenizer: PreTrainedTokenizerFast, out: Path, device: str) -> Model:
    """Trains one model of the pair and saves it."""
    model = build_model(recipe, tokenizer).to(device)
    if device == "cpu":  # the fused kernel's backward pass in bf16 would take half of a step there
        model.set_attn_implementation("eager")
    fit(model, recipe, problem_batches(tokenizer, recipe), tokenizer, out / name)
    return model


def fit(
    model: Model, training: Training, batches: Iterator[Batch], tokenizer: PreTrainedTokenizerFast, folder: Path
) -> None:
    """Trains a model and saves it after every evaluation, so that an interrupted run leaves a model.

    Args:
        model: the model, on its device.
        training: steps and learning rates; the log begins with it.
        batches: as many as there are steps.
        tokenizer: of the model; saved beside it.
        folder: where the model and its log `training.jsonl` go.
    """
    optimizers, schedules = _optimizers(model, training)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "training.jsonl").open("w") as log:
        _write(log, _provenance(training, model))
        started, losses = time.perf_counter(), []
        for step in range(1, training.steps + 1):
            losses.append(_train_step(model, next(batches), optimizers))
            for schedule in schedules:
                schedule.step()
            if step % 50 == 0 or step == training.steps:
                row: dict[str, Any] = {
                    "step": step,
                    "loss": round(sum(losses) / len(losses), 5),
                    "seconds": round(time.perf_counter() - started, 1),
                }
                losses.clear()
                if step % 500 == 0 or step == training.steps:
                    row["accuracy"] = accuracy(model, tokenizer, problems=200)
                    _save(model, tokenizer, folder)
                _write(log, row)


def _train_step(model: Model, batch: Batch, optimizers: list[Any]) -> float:
    """Makes one optimizer step on a batch and returns the loss."""
    ids, before, wanted = (part.to(model.device) for part in batch)
    wanted = wanted.float() if wanted.is_floating_point() else wanted
    with torch.autocast(model.device.type, dtype=torch.bfloat16):
        hidden = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state  # (B, S, width)
        logits = model.lm_head(hidden[before])  # (n, V)
    loss = torch.nn.functional.cross_entropy(logits.float(), wanted)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss.item()


def _optimizers(model: Model, training: Training) -> tuple[list[Any], list[Any]]:
    """Returns optimizers, Muon for the matrices inside the layers and AdamW for the rest, and their schedules."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n and "lm_head" not in n]
    inside = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in inside]
    optimizers = [
        torch.optim.Muon(matrices, lr=training.matrix_lr, momentum=0.95, weight_decay=0.0),
        torch.optim.AdamW(others, lr=training.other_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]

    def share(step: int) -> float:
        """The learning rate's schedule: warm-up over 100 steps, constant, then linear to zero over the last 40 %."""
        return min(1.0, (step + 1) / 100, (training.steps - step) / (0.4 * training.steps))

    return optimizers, [torch.optim.lr_scheduler.LambdaLR(o, share) for o in optimizers]


def problem_batches(tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> Iterator[Batch]:
    """Yields batches of problems in a recipe's wording, without end."""
    problems = generate(TRAINING_SEED + recipe.seed, part="train", mix=recipe.mix)
    shuffle = torch.Generator().manual_seed(recipe.seed)
    while True:
        pool = list(itertools.islice(problems, recipe.batch * _POOL))
        prompts = tokenizer([as_prompt(tokenizer, p.question) for p in pool])["input_ids"]
        solutions = tokenizer([f" {p.answer}{tokenizer.eos_token}" for p in pool])["input_ids"]
        texts = [Text(p, s, torch.tensor(s)) for p, s in zip(prompts, solutions, strict=True)]
        yield from batches_of(texts, recipe.batch, tokenizer, shuffle)


def batches_of(
    texts: Sequence[Text], size: int, tokenizer: PreTrainedTokenizerFast, shuffle: torch.Generator
) -> Iterator[Batch]:
    """Yields all texts, but for less than a batch, in batches of like lengths, which come in random order."""
    order = sorted(texts, key=lambda text: len(text.prompt) + len(text.solution))
    for k in torch.randperm(len(texts) // size, generator=shuffle).tolist():
        yield _padded(order[k * size : (k + 1) * size], tokenizer)


def _padded(texts: Sequence[Text], tokenizer: PreTrainedTokenizerFast) -> Batch:
    length = math.ceil(max(len(text.prompt) + len(text.solution) for text in texts) / 8) * 8
    ids = torch.full((len(texts), length), tokenizer.pad_token_id)
    before = torch.zeros((len(texts), length), dtype=torch.bool)
    for i, (prompt, solution, _) in enumerate(texts):
        end = len(prompt) + len(solution)
        ids[i, :end] = torch.tensor([*prompt, *solution])
        before[i, len(prompt) - 1 : end - 1] = True
    return Batch(ids, before, torch.cat([text.wanted for text in texts]))


@torch.inference_mode()
def accuracy(model: Model, tokenizer: PreTrainedTokenizerFast, problems: int) -> float:
    """Returns the share of held-out problems whose greedy solution ends in the right number."""
    sample = list(itertools.islice(generate(_EVALUATION_SEED), problems))
    model.eval()
    right = 0
    for start in range(0, problems, 100):
        batch = sample[start : start + 100]
        texts = [as_prompt(tokenizer, p.question) for p in batch]
        inputs = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left", return_token_type_ids=False)
        out = model.generate(**inputs.to(model.device), max_new_tokens=160, do_sample=False)
        written = tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        right += sum(_final(w) == _final(p.answer) for w, p in zip(written, batch, strict=True))
    model.train()
    return right / len(sample)


def _final(solution: str) -> str:
    return solution.rpartition("####")[2].strip()


def _provenance(training: Training, model: Model) -> dict[str, Any]:
    return {
        "recipe": asdict(training),
        "parameters": sum(p.numel() for p in model.parameters()),
        "device": model.device.type,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def _save(model: Model, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _write(log: TextIO, row: dict[str, Any]) -> None:
    line = json.dumps(row)
    print(line, flush=True)
    log.write(line + "\n")
    log.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the two models")
    parser.add_argument("--only", choices=sorted(RECIPES), help="train one of the two")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    words = itertools.islice(generate(TRAINING_SEED, part="train", mix="even"), 20_000)
    tokenizer = build_tokenizer(f"Question: {p.question}\nAnswer: {p.answer}" for p in words)
    for name, recipe in RECIPES.items():
        if options.only in (None, name):
            train(name, recipe, tokenizer, options.out, options.device)


if __name__ == "__main__":
    main()
