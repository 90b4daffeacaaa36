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
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import torch
import transformers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from fsd_data.problems import Mix, generate
from fsd_data.tokenizer import as_prompt, build_tokenizer

Model = Any  # a LlamaForCausalLM; transformers' own annotations refuse its `to` and `generate`

_TRAINING_SEED, _EVALUATION_SEED = 20_240_501, 20_240_502
_IGNORED = -100  # cross_entropy's label for "no loss here"
_POOL = 64  # batches drawn at once, then sorted by length so that a batch needs little padding


@dataclass(frozen=True)
class Recipe:
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
    steps: int
    batch: int = 64
    matrix_lr: float = 0.02
    other_lr: float = 4e-3
    seed: int = 0


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


def train(name: str, recipe: Recipe, tokenizer: PreTrainedTokenizerFast, out: Path, device: str) -> Model:
    """Trains one model and saves it after every evaluation, so that an interrupted run leaves a model."""
    model = build_model(recipe, tokenizer).to(device)
    if device == "cpu":  # the fused kernel's backward pass in bf16 would take half of a step there
        model.set_attn_implementation("eager")
    optimizers, schedules = _optimizers(model, recipe)
    batches = _batches(tokenizer, recipe)
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "training.jsonl").open("w") as log:
        _write(log, _provenance(recipe, model, device))
        started, losses = time.perf_counter(), []
        for step in range(1, recipe.steps + 1):
            losses.append(_train_step(model, next(batches), optimizers, device))
            for schedule in schedules:
                schedule.step()
            if step % 50 == 0 or step == recipe.steps:
                row: dict[str, Any] = {
                    "step": step,
                    "loss": round(sum(losses) / len(losses), 5),
                    "seconds": round(time.perf_counter() - started, 1),
                }
                losses.clear()
                if step % 500 == 0 or step == recipe.steps:
                    row["accuracy"] = accuracy(model, tokenizer, problems=200, device=device)
                    _save(model, tokenizer, folder)
                _write(log, row)
    return model


def continued(model: Model, recipe: Recipe, tokenizer: PreTrainedTokenizerFast, device: str) -> Model:
    """Trains a model on, as `recipe` says but for its architecture, and returns it."""
    model = model.to(device).train()
    optimizers, schedules = _optimizers(model, recipe)
    batches = _batches(tokenizer, recipe)
    for _ in range(recipe.steps):
        _train_step(model, next(batches), optimizers, device)
        for schedule in schedules:
            schedule.step()
    return model


def _train_step(model: Model, batch: tuple[Tensor, Tensor], optimizers: list[Any], device: str) -> float:
    """Makes one optimizer step on a batch and returns the loss, which is of the solutions only."""
    ids, labels = (part.to(device) for part in batch)  # (B, S), (B, S)
    with torch.autocast(device, dtype=torch.bfloat16):
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state  # (B, S, width)
        labelled = labels[:, 1:] != _IGNORED
        logits = model.lm_head(hidden[:, :-1][labelled])  # (labelled tokens, V)
    loss = torch.nn.functional.cross_entropy(logits.float(), labels[:, 1:][labelled])
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss.item()


def _optimizers(model: Model, recipe: Recipe) -> tuple[list[Any], list[Any]]:
    """Returns optimizers, Muon for the matrices inside the layers and AdamW for the rest, and their schedules."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n and "lm_head" not in n]
    inside = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in inside]
    optimizers = [
        torch.optim.Muon(matrices, lr=recipe.matrix_lr, momentum=0.95, weight_decay=0.0),
        torch.optim.AdamW(others, lr=recipe.other_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]

    def share(step: int) -> float:
        """The learning rate's schedule: warm-up over 100 steps, constant, then linear to zero over the last 40 %."""
        return min(1.0, (step + 1) / 100, (recipe.steps - step) / (0.4 * recipe.steps))

    return optimizers, [torch.optim.lr_scheduler.LambdaLR(o, share) for o in optimizers]


def _batches(tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> Iterator[tuple[Tensor, Tensor]]:
    problems = generate(_TRAINING_SEED + recipe.seed, part="train", mix=recipe.mix)
    shuffle = torch.Generator().manual_seed(recipe.seed)
    while True:
        pool = list(itertools.islice(problems, recipe.batch * _POOL))
        prompts = tokenizer([as_prompt(tokenizer, p.question) for p in pool])["input_ids"]
        answers = tokenizer([f" {p.answer}{tokenizer.eos_token}" for p in pool])["input_ids"]
        order = sorted(range(len(pool)), key=lambda i: len(prompts[i]) + len(answers[i]))
        for k in torch.randperm(_POOL, generator=shuffle).tolist():
            chosen = order[k * recipe.batch : (k + 1) * recipe.batch]
            yield _padded([(prompts[i], answers[i]) for i in chosen], tokenizer)


def _padded(rows: list[tuple[list[int], list[int]]], tokenizer: PreTrainedTokenizerFast) -> tuple[Tensor, Tensor]:
    """Returns token ids padded on the right, and labels of the answers only: (B, S) each."""
    length = math.ceil(max(len(p) + len(a) for p, a in rows) / 8) * 8
    ids = torch.full((len(rows), length), tokenizer.pad_token_id)
    labels = torch.full((len(rows), length), _IGNORED)
    for i, (prompt, answer) in enumerate(rows):
        ids[i, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        labels[i, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
    return ids, labels


@torch.inference_mode()
def accuracy(model: Model, tokenizer: PreTrainedTokenizerFast, problems: int, device: str) -> float:
    """Returns the share of held-out problems whose greedy solution ends in the right number."""
    sample = list(itertools.islice(generate(_EVALUATION_SEED), problems))
    model.eval()
    right = 0
    for start in range(0, problems, 100):
        batch = sample[start : start + 100]
        texts = [as_prompt(tokenizer, p.question) for p in batch]
        inputs = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left", return_token_type_ids=False)
        out = model.generate(**inputs.to(device), max_new_tokens=160, do_sample=False)
        written = tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        right += sum(_final(w) == _final(p.answer) for w, p in zip(written, batch, strict=True))
    model.train()
    return right / len(sample)


def _final(solution: str) -> str:
    return solution.rpartition("####")[2].strip()


def _provenance(recipe: Recipe, model: Model, device: str) -> dict[str, Any]:
    return {
        "recipe": asdict(recipe),
        "parameters": sum(p.numel() for p in model.parameters()),
        "device": device,
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
    words = itertools.islice(generate(_TRAINING_SEED, part="train", mix="even"), 20_000)
    tokenizer = build_tokenizer(f"Question: {p.question}\nAnswer: {p.answer}" for p in words)
    for name, recipe in RECIPES.items():
        if options.only in (None, name):
            train(name, recipe, tokenizer, options.out, options.device)


if __name__ == "__main__":
    main()
