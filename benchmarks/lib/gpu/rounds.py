"""What rounds of large models with random weights take: at rest, while texts grow, with refills, and by sampling."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from fsd_decoding.graphs.callers import Compile
from fsd_decoding.models.lean import LeanModel, choose
from fsd_decoding.rules import rule_named
from fsd_decoding.sampling import Sampling
from fsd_decoding.tree_shape import TreeShape
from lib.gpu.clock import milliseconds
from lib.gpu.decoding import GREEDY, Decoder, Imposed, Timed, summary, timed
from lib.gpu.models import large, random_prompts
from lib.gpu.plan import Plan

CHANCE = 0.8  # of a drafted token to be accepted
_TOP, _NAME = 20, 80  # lines of a profile, and characters of a kernel's name in it
CALLED: dict[str, Compile] = {"captured": "capture", "eager": False}

Row = dict[str, Any]


def large_decoder(plan: Plan, compile: Compile) -> Decoder:
    return Decoder(large(plan.target, plan.device), large(plan.draft, plan.device), compile)


# --- rounds at rest ---------------------------------------------------------------------------------------


def rounds(plan: Plan) -> Iterator[Row]:
    """Yields milliseconds of rounds by context and rows as graphs, once also eager, beside the time that reading the
    memory of weights and caches takes; and what one round of a single text consists of."""
    speed = _bandwidth(plan)
    captured = large_decoder(plan, "capture")
    shapes = product(plan.contexts, plan.rows)
    for number, (context, rows) in enumerate(shapes):
        yield _at_rest(plan, captured, "captured", context, rows, speed)
        if number == 0:
            yield _profile(plan, captured, context)
            yield _at_rest(plan, large_decoder(plan, False), "eager", context, rows, speed)


def _at_rest(plan: Plan, decoder: Decoder, called: str, context: int, rows: int, bytes_a_second: float) -> Row:
    prompts = random_prompts(plan.target, context, rows)
    new = plan.rounds * (plan.draft_length + 1)  # more than the rounds emit: no row ends
    seen = timed(decoder.rounds(prompts, new, plan.draft_length, Imposed(CHANCE)), plan.rounds)
    target, draft = (large(shape, plan.device) for shape in (plan.target, plan.draft))
    read = _bytes(target, rows, context) + plan.draft_length * _bytes(draft, rows, context)
    took = summary(seen)
    last = seen[-1].rows
    tokens = sum(len(row.tokens) for row in last) / sum(row.rounds for row in last)
    return {
        "called": called, "context": context, "rows": rows, "run_by": [_run_by(target), _run_by(draft)], **took,
        "floor_milliseconds": 1000 * read / bytes_a_second, "first_milliseconds": 1000 * seen[0].seconds,
        "tokens_a_round": tokens, "tokens_a_second": 1000 * rows * tokens / took["milliseconds"],
    }  # fmt: skip


def _run_by(model: Any) -> str:
    choice = choose(model)
    return "lean" if isinstance(choice, LeanModel) else f"transformers: {choice}"


def _profile(plan: Plan, decoder: Decoder, context: int) -> Row:
    """The kernels of one captured round, by the time that each takes in all."""
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (plan.device == "cuda")
    prompts = random_prompts(plan.target, context, 1)
    # Nothing is accepted, so that the text grows by a token a round and the graphs stay the same.
    going = decoder.rounds(prompts, plan.rounds, plan.draft_length, Imposed(0.0))
    timed(going, plan.rounds // 2)
    with torch.profiler.profile(activities=activities) as profile:
        (one,) = timed(going, 1)
    on_gpu = plan.device == "cuda"
    kernels = [
        {
            "name": event.key[:_NAME], "calls": event.count,
            "microseconds": event.self_device_time_total if on_gpu else event.self_cpu_time_total,
        }
        for event in profile.key_averages()
        if (event.device_type.name == "CUDA") == on_gpu  # else operations count besides the kernels they launch
    ]  # fmt: skip
    kernels.sort(key=lambda kernel: -kernel["microseconds"])
    return {
        "called": "profiled", "context": context, "rows": 1, "milliseconds": 1000 * one.seconds,
        "busy_milliseconds": sum(kernel["microseconds"] for kernel in kernels) / 1000,
        "launched": sum(kernel["calls"] for kernel in kernels), "kernels": kernels[:_TOP],
    }  # fmt: skip


def _bandwidth(plan: Plan) -> float:
    """The bytes per second that the memory reads and writes while it copies some."""
    source = torch.zeros(plan.copied, dtype=torch.uint8, device=plan.device)
    out = torch.empty_like(source)
    return 2 * plan.copied / (milliseconds(lambda: out.copy_(source), 10, plan.device) / 1000)


def _bytes(model: Any, rows: int, context: int) -> int:
    """The bytes of weights and KV caches that a forward pass reads.

    The embedding counts only where it is the head too: a step reads just a few of its rows.
    """
    config, size = model.config, model.dtype.itemsize
    weights = sum(p.numel() for p in model.parameters())
    if not config.tie_word_embeddings:
        weights -= model.get_input_embeddings().weight.numel()
    heads = config.num_key_value_heads * (config.hidden_size // config.num_attention_heads)
    total: int = size * (weights + 2 * rows * context * config.num_hidden_layers * heads)
    return total


# --- other rounds -----------------------------------------------------------------------------------------


def growth(plan: Plan) -> Iterator[Row]:
    """Yields milliseconds of rounds while one text grows, with those that stall, as graphs and eager."""
    begins, new = plan.growth
    for called, compile in CALLED.items():
        prompts = random_prompts(plan.target, begins, 1)
        seen = timed(large_decoder(plan, compile).rounds(prompts, new, plan.draft_length, Imposed(CHANCE)))
        yield {"called": called, "from": begins, "to": begins + new, **summary(seen)}


def refills(plan: Plan) -> Iterator[Row]:
    """Yields what a batch takes whose rows are refilled as texts end, with prompts that begin alike and without."""
    prefix, own = plan.prefix
    drawn = random.Random(0)
    new = [drawn.randint(plan.rounds, 4 * plan.rounds) for _ in range(plan.refilled)]
    (shared,) = random_prompts(plan.target, prefix, 1)
    ends = random_prompts(plan.target, own, plan.refilled)
    prompts = {
        "shared": [shared + end for end in ends],
        "different": random_prompts(plan.target, prefix + own, plan.refilled),
    }
    for name, each in prompts.items():
        going = large_decoder(plan, "capture").rounds(
            each, new, plan.draft_length, Imposed(CHANCE), batch_size=plan.rows[-1]
        )
        yield {"prefix": name, "rows": plan.rows[-1], "requests": plan.refilled, **_with_refills(timed(going), new)}


def _with_refills(seen: Sequence[Timed], new: Sequence[int]) -> dict[str, float]:
    took = summary(seen)
    refilled = [each for each in seen[1:] if each.begun]
    more = sum(each.seconds for each in refilled) - len(refilled) * took["milliseconds"] / 1000
    seconds = sum(each.seconds for each in seen)
    return took | {
        "seconds": seconds, "tokens_a_second": sum(new) / seconds, "first_seconds": seen[0].seconds,
        "refilled_rounds": len(refilled), "refilling_seconds": more,
    }  # fmt: skip


def samplings(plan: Plan) -> Iterator[Row]:
    """Yields milliseconds of rounds of one text by how tokens are drawn, for chains and for trees."""
    ways = {
        "greedy": GREEDY, "temperature": Sampling(0.8), "top_k 50": Sampling(0.8, top_k=50),
        "top_p 0.9": Sampling(0.8, top_p=0.9), "top_p 1": Sampling(0.8, top_p=1.0),
    }  # fmt: skip
    tree = TreeShape(min(4, plan.nodes), plan.nodes)
    shapes = [(name, None) for name in ways] + [(name, tree) for name in ("greedy", "temperature")]
    decoder = large_decoder(plan, "capture")
    for name, shape in shapes:
        prompts = random_prompts(plan.target, plan.contexts[0], 1)
        rule = Imposed(CHANCE) if shape is None else rule_named("fsd-coupled")  # which judges trees
        new = plan.rounds * (plan.draft_length + 1)
        going = decoder.rounds(prompts, new, plan.draft_length, rule, sampling=ways[name], tree=shape)
        yield {"sampling": name, "tree": None if shape is None else shape.text, **summary(timed(going, plan.rounds))}
