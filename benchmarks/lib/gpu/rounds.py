"""Milliseconds of rounds of large models with random weights, and the time that reading their memory takes.

Random models agree on nothing, so the acceptance rate is imposed: a round does the work of `fsd-coupled`, whose
decisions are then replaced.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from fsd_calib import SpeculativeDecoder
from fsd_decoding import acceptance, noise
from fsd_decoding.acceptance import Proposal, Rule, Verdict
from lib.decoding.pairs import Pair
from lib.decoding.peers import Peer
from lib.gpu.kernels import milliseconds

_SEED = 7


class Imposed(Rule):
    """A rule that computes what `fsd-coupled` does, and then accepts every drafted token with the same probability."""

    name = "imposed"
    lossless = "coupled"
    bounds_divergence = True

    def __init__(self, chance: float) -> None:
        self._chance = chance

    def judge(self, round_: Proposal) -> Verdict:
        honest = acceptance.RULES["fsd-coupled"].judge(round_)
        drawn = noise.uniform(round_.keys, round_.positions[:, :-1], noise.Stream.ACCEPT, torch.float32)
        return Verdict(drawn < self._chance, honest.fallback, honest.score, torch.zeros_like(honest.accepted))


@contextmanager
def imposing(chance: float) -> Iterator[None]:
    """Registers the rule `imposed` within a `with` block."""
    known = acceptance.RULES
    acceptance.RULES = {**known, Imposed.name: Imposed(chance)}
    try:
        yield
    finally:
        acceptance.RULES = known


def large_pair(target: Mapping[str, Any], draft: Mapping[str, Any], device: str) -> Pair:
    """Returns random Llamas of these configurations in bf16 on the device; no token ends a text."""
    torch.manual_seed(_SEED)
    pair = [_random(shape, device) for shape in (target, draft)]
    return Pair("random", pair[0], pair[1], _tokenizer(target["vocab_size"]), [], 0, (0.0, 0.0, 0.0))


def with_prompts(pair: Pair, context: int, rows: int, new: int) -> Pair:
    """Returns the same models with random prompts of `context` tokens, one per row."""
    prompts = torch.randint(pair.target.config.vocab_size, (rows, context)).tolist()
    return replace(pair, prompts=prompts, max_new_tokens=new)


def _random(shape: Mapping[str, Any], device: str) -> Any:
    config = LlamaConfig(**shape, bos_token_id=None, eos_token_id=None, pad_token_id=0, dtype=torch.bfloat16)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            return LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)


def _tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    words = models.WordLevel({f"w{i}": i for i in range(vocabulary)}, unk_token="w0")
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), pad_token="w0")


def time_rounds(
    pair: Pair, chance: float, draft_length: int, rows: int, compile: Any, observer: Any = None, policy: Any = None
) -> dict[str, float]:
    """Returns milliseconds per round, and tokens per second and per round.

    They are differences between long and short texts of the same prompts, which exclude prefill and all other work
    that a call does once.
    """
    decoder = SpeculativeDecoder(pair.target, pair.draft, pair.tokenizer, draft_length=draft_length, compile=compile)

    def run(new: int) -> tuple[float, int, int]:
        began = time.perf_counter()
        results = decoder.generate(
            pair.prompts[:rows], new, rule=Imposed.name, batch_size=rows, observer=observer, stop_policy=policy
        )
        return time.perf_counter() - began, max(r.rounds for r in results), sum(r.emitted for r in results)

    with imposing(chance):
        for _ in range(2):  # warms up: steps are captured at their second call
            run(pair.max_new_tokens)
        short, long = run(pair.max_new_tokens // 4), run(pair.max_new_tokens)
    seconds, rounds, tokens = (b - a for a, b in zip(short, long, strict=True))
    return {
        "milliseconds": 1000 * seconds / rounds,
        "tokens_a_second": tokens / seconds,
        "tokens_a_round": tokens / rounds,
    }


def assisted_milliseconds(pair: Pair, draft_length: int) -> float:
    """Returns milliseconds per round of transformers' assisted generation of one text.

    Its acceptance rate cannot be imposed, and is close to 0.
    """

    def run(new: int) -> tuple[float, int]:
        rounds = 0

        def count(*_: Any) -> None:
            nonlocal rounds
            rounds += 1

        hook = pair.target.register_forward_pre_hook(count)
        try:
            began = time.perf_counter()
            Peer(pair.target, pair.draft, draft_length, new).assisted(pair.prompts[0])
            return time.perf_counter() - began, rounds
        finally:
            hook.remove()

    run(pair.max_new_tokens // 8)  # warms up
    short, long = run(pair.max_new_tokens // 8), run(pair.max_new_tokens // 2)  # few are accepted: many rounds
    return 1000 * (long[0] - short[0]) / (long[1] - short[1])


def bandwidth(size: int, device: str) -> float:
    """Returns the bytes per second that the memory reads and writes while it copies `size` bytes."""
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    out = torch.empty_like(source)
    return 2 * size / (milliseconds(lambda: out.copy_(source), 10, device) / 1000)


def bytes_read(pair: Pair, draft_length: int, rows: int) -> int:
    """Returns the bytes of weights and KV caches that a round reads: the target's once, the draft's at every step."""
    context = len(pair.prompts[0])
    return _bytes(pair.target, rows, context) + draft_length * _bytes(pair.draft, rows, context)


def _bytes(model: Any, rows: int, context: int) -> int:
    """Returns the bytes that a forward pass reads.

    The embedding counts only where it is the head too: a step reads just a few of its rows.
    """
    config, size = model.config, model.dtype.itemsize
    weights = sum(p.numel() for p in model.parameters())
    if not config.tie_word_embeddings:
        weights -= model.get_input_embeddings().weight.numel()
    heads = config.num_key_value_heads * (config.hidden_size // config.num_attention_heads)
    total: int = size * (weights + 2 * rows * context * config.num_hidden_layers * heads)
    return total
