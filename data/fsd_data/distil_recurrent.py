"""Distils the bundled target into recurrent models: `python -m fsd_data.distil_recurrent --out DIR`, on CPU or CUDA.

The target writes solutions of problems of its training part, and the students learn its distribution of every token of
them. Writes `DIR/<student>` as `train` does; the loss in `training.jsonl` is the cross-entropy, which for the target
itself is that of the row `target`. Needs torch and transformers only.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GraniteMoeHybridConfig,
    GraniteMoeHybridForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    PreTrainedTokenizerFast,
)

from fsd_data import pair_paths
from fsd_data.problems import generate
from fsd_data.tokenizer import as_prompt
from fsd_data.train import RECIPES, TRAINING_SEED, Batch, Model, Text, Training, batches_of, build_model, fit

_SEED = TRAINING_SEED + 1  # other problems than the pair's own
_LONGEST, _AT_ONCE = 160, 128  # new tokens of a solution, and solutions written at once
_ATTENTION = frozenset({3, 7, 11})  # layers of the linearised target that stay: every fourth, as in Qwen3-Next
_CHUNK = 32  # of a scan in training


@dataclass(frozen=True)
class Student:
    """A model that is distilled.

    Args:
        build: makes it, from the target.
        training: how it is trained.
    """

    build: Callable[[Model, PreTrainedTokenizerFast], Model]
    training: Training


def recurrent_draft(target: Model, tokenizer: PreTrainedTokenizerFast) -> Model:
    """Returns a Mamba-2 of one layer, about the size of the bundled draft.

    A step of a tiny model costs as much as it has layers, whatever their width.
    """
    config = Mamba2Config(
        vocab_size=len(tokenizer), hidden_size=64, num_hidden_layers=1, expand=4, num_heads=4, head_dim=64,
        state_size=64, tie_word_embeddings=True, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, n_groups=1, chunk_size=_CHUNK,
    )  # fmt: skip
    return Mamba2ForCausalLM(config)


def linearised(target: Model, tokenizer: PreTrainedTokenizerFast, attention: frozenset[int] = _ATTENTION) -> Model:
    """Returns the target with Mamba-2 layers in place of attention, which add nothing to the hidden states yet.

    Args:
        attention: layers whose attention stays.
    """
    own, layers = target.config, range(target.config.num_hidden_layers)
    model = GraniteMoeHybridForCausalLM(GraniteMoeHybridConfig(
        vocab_size=own.vocab_size, hidden_size=own.hidden_size, num_hidden_layers=len(layers),
        layer_types=["full_attention" if layer in attention else "linear_attention" for layer in layers],
        num_attention_heads=own.num_attention_heads, num_key_value_heads=own.num_key_value_heads,
        attention_multiplier=1 / math.sqrt(own.head_dim), position_embedding_type="rope", num_local_experts=0,
        rope_parameters=own.rope_parameters, rms_norm_eps=own.rms_norm_eps,
        shared_intermediate_size=own.intermediate_size, max_position_embeddings=own.max_position_embeddings,
        mamba_n_heads=own.num_attention_heads, mamba_d_state=own.head_dim, mamba_expand=1,
        mamba_n_groups=own.num_attention_heads, mamba_chunk_size=_CHUNK, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=own.eos_token_id, pad_token_id=own.pad_token_id,
    ))  # fmt: skip
    model.load_state_dict(_renamed(target.state_dict()), strict=False)
    for layer in model.model.layers:
        if layer.mamba is not None:
            torch.nn.init.zeros_(layer.mamba.out_proj.weight)
    return model


def _renamed(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A Llama's weights under the names of a GraniteMoeHybrid."""
    renamed = {name.replace("mlp.down_proj", "shared_mlp.output_linear"): each for name, each in weights.items()}
    for name in [name for name in renamed if "gate_proj" in name]:
        gate, up = renamed.pop(name), renamed.pop(name.replace("gate_proj", "up_proj"))
        renamed[name.replace("mlp.gate_proj", "shared_mlp.input_linear")] = torch.cat([gate, up])
    return renamed


def attention_draft(target: Model, tokenizer: PreTrainedTokenizerFast) -> Model:
    """Returns an untrained model of the bundled draft's architecture: what distilling alone changes."""
    return build_model(RECIPES["draft"], tokenizer)


STUDENTS = {
    "recurrent-draft": Student(recurrent_draft, Training(steps=1000)),
    "attention-draft": Student(attention_draft, Training(steps=1000)),
    "linearised-target": Student(linearised, Training(steps=300, batch=16, other_lr=2e-3)),
}


@torch.inference_mode()
def lessons(target: Model, tokenizer: PreTrainedTokenizerFast, count: int) -> list[Text]:
    """Returns problems with solutions that the target draws, and its probabilities of every token in fp16."""
    torch.manual_seed(_SEED)
    problems = itertools.islice(generate(_SEED, part="train", mix="target"), count)
    prompts = sorted((as_prompt(tokenizer, problem.question) for problem in problems), key=len)
    return [
        text
        for start in range(0, count, _AT_ONCE)
        for text in _written(target, tokenizer, prompts[start : start + _AT_ONCE])
    ]


def _written(target: Model, tokenizer: PreTrainedTokenizerFast, prompts: Sequence[str]) -> Iterator[Text]:
    inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left", return_token_type_ids=False)
    out = target.generate(
        **inputs.to(target.device), max_new_tokens=_LONGEST, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
        output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    probabilities = torch.stack(out.logits, 1).softmax(-1).half().cpu()  # (B, steps, V)
    begin = inputs["input_ids"].shape[1]
    for ids, mask, own in zip(out.sequences.tolist(), inputs["attention_mask"].tolist(), probabilities, strict=True):
        solution = ids[begin:]
        if tokenizer.eos_token_id in solution:
            solution = solution[: solution.index(tokenizer.eos_token_id) + 1]
        prompt = [token for token, real in zip(ids[:begin], mask, strict=True) if real]
        yield Text(prompt, solution, own[: len(solution)].clone())


def distil(name: str, student: Student, target: Model, tokenizer: PreTrainedTokenizerFast, texts: Sequence[Text],
           out: Path) -> Model:  # fmt: skip
    """Trains one student on the target's texts, as often as its steps take, and saves it."""
    torch.manual_seed(student.training.seed)
    model = student.build(target, tokenizer).to(target.device)
    fit(model, student.training, _epochs(texts, student.training, tokenizer), tokenizer, out / name)
    return model


def _epochs(texts: Sequence[Text], training: Training, tokenizer: PreTrainedTokenizerFast) -> Iterator[Batch]:
    shuffle = torch.Generator().manual_seed(training.seed)
    while True:
        yield from batches_of(texts, training.batch, tokenizer, shuffle)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the students")
    parser.add_argument("--only", choices=sorted(STUDENTS), help="train one of them")
    parser.add_argument("--texts", type=int, default=8192, help="solutions that the target writes")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    folder, _ = pair_paths()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    target = AutoModelForCausalLM.from_pretrained(folder).to(options.device).eval()
    texts = lessons(target, tokenizer, options.texts)
    for name, student in STUDENTS.items():
        if options.only in (None, name):
            distil(name, student, target, tokenizer, texts, options.out)


if __name__ == "__main__":
    main()
