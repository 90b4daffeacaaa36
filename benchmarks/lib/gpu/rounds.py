"""Rounds of large models with random weights: how long they take, and what the memory alone would take.

Knows models' shapes, rules and clocks. How much is accepted is imposed, as random models agree on nothing: a round's
work is that of `fsd-coupled`, all but the last word of which drafts stay.
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
from fsd_decoding import noise
from fsd_decoding.acceptance import rules
from fsd_decoding.acceptance.proposal import Proposal, Verdict
from lib.decoding.pairs import Pair
from lib.decoding.peers import Peer
from lib.gpu.kernels import milliseconds

_SEED = 7


class Imposed(rules.Rule):
    """Does what `fsd-coupled` does, and then accepts every drafted token with the same chance."""

    name = "imposed"
    lossless = "coupled"
    bounds_divergence = True

    def __init__(self, chance: float) -> None:
        self._chance = chance

    def judge(self, round_: Proposal) -> Verdict:
        honest = rules.RULES["fsd-coupled"].judge(round_)
        drawn = noise.uniform(round_.keys, round_.positions[:, :-1], noise.Stream.ACCEPT, torch.float32)
        return Verdict(drawn < self._chance, honest.fallback, honest.score, torch.zeros_like(honest.accepted))


@contextmanager
def imposing(chance: float) -> Iterator[None]:
    """Within, there is a rule `imposed`."""
    known = rules.RULES
    rules.RULES = {**known, Imposed.name: Imposed(chance)}
    try:
        yield
    finally:
        rules.RULES = known


def large(target: Mapping[str, Any], draft: Mapping[str, Any], device: str) -> Pair:
    """Random Llamas of these configurations in bf16, made on the device; nothing ends a text."""
    torch.manual_seed(_SEED)
    pair = [_random(shape, device) for shape in (target, draft)]
    return Pair("random", pair[0], pair[1], _tokenizer(target["vocab_size"]), [], 0, (0.0, 0.0, 0.0))


def asked(pair: Pair, context: int, rows: int, new: int) -> Pair:
    """The same models before so many random prompts of `context` tokens."""
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


def timed(
    pair: Pair, chance: float, draft_length: int, rows: int, compile: Any, observer: Any = None, policy: Any = None
) -> dict[str, float]:
    """Milliseconds a round: of long texts less those of short ones, over the rounds between, so that prompts and
    whatever else is done once count nothing."""
    decoder = SpeculativeDecoder(pair.target, pair.draft, pair.tokenizer, draft_length=draft_length, compile=compile)

    def run(new: int) -> tuple[float, int, int]:
        began = time.perf_counter()
        made = decoder.generate(
            pair.prompts[:rows], new, rule=Imposed.name, batch_size=rows, observer=observer, stop_policy=policy
        )
        return time.perf_counter() - began, max(r.rounds for r in made), sum(r.emitted for r in made)

    with imposing(chance):
        for _ in range(2):  # warms up: what is called a second time is captured
            run(pair.max_new_tokens)
        short, long = run(pair.max_new_tokens // 4), run(pair.max_new_tokens)
    seconds, rounds, tokens = (b - a for a, b in zip(short, long, strict=True))
    return {
        "milliseconds": 1000 * seconds / rounds,
        "tokens_a_second": tokens / seconds,
        "tokens_a_round": tokens / rounds,
    }


def assisted(pair: Pair, draft_length: int) -> float:
    """Milliseconds of transformers' assisted generation a round, one text at a time; it accepts what it accepts."""

    def run(new: int) -> tuple[float, int]:
        rounds = 0

        def count(*_: Any) -> None:
            nonlocal rounds
            rounds += 1

        hook = pair.target.register_forward_pre_hook(count)
        try:
            began = time.perf_counter()
            Peer(replace(pair, max_new_tokens=new), draft_length).assisted(pair.prompts[0])
            return time.perf_counter() - began, rounds
        finally:
            hook.remove()

    run(pair.max_new_tokens // 8)  # warms up
    short, long = run(pair.max_new_tokens // 8), run(pair.max_new_tokens // 2)  # it drafts in vain, hence many rounds
    return 1000 * (long[0] - short[0]) / (long[1] - short[1])


def bandwidth(size: int, device: str) -> float:
    """Bytes a second that the memory reads or writes, in copying `size` bytes."""
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    out = torch.empty_like(source)
    return 2 * size / (milliseconds(lambda: out.copy_(source), 10, device) / 1000)


def read(pair: Pair, draft_length: int, rows: int) -> int:
    """Bytes of weights and caches that a round has to read: the target's once, the draft's at every step."""
    context = len(pair.prompts[0])
    return _bytes(pair.target, rows, context) + draft_length * _bytes(pair.draft, rows, context)


def _bytes(model: Any, rows: int, context: int) -> int:
    """Its embedding counts only where it is the head too: of the table a step reads a few lines."""
    config, size = model.config, model.dtype.itemsize
    weights = sum(p.numel() for p in model.parameters())
    if not config.tie_word_embeddings:
        weights -= model.get_input_embeddings().weight.numel()
    heads = config.num_key_value_heads * (config.hidden_size // config.num_attention_heads)
    read: int = size * (weights + 2 * rows * context * config.num_hidden_layers * heads)
    return read
