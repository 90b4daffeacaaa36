"""Errors, choices and milliseconds of fused kernels and grouped attention, beside the operations that define them."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from fsd_decoding import noise
from fsd_decoding.divergence import DIVERGENCES, DistributionPair, divergences_of_pair, entropy, log_softmax
from fsd_decoding.kernels import compare, scan
from fsd_decoding.models.forward import grouped_attention
from fsd_decoding.sampling import Sampling
from lib.gpu.plan import SHAPES, Plan

_NAMES = list(DIVERGENCES)
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_TEMPERATURE, _SEED, _ATTENTION_SEED = 0.8, 5, 11


def kernels(plan: Plan) -> list[dict[str, Any]]:
    """Measures for every vocabulary size and dtype the largest errors against fp64 on the CPU, and milliseconds."""
    places, rows = max(plan.draft_lengths), []
    for vocabulary, dtype in product(plan.vocabularies, _DTYPES):
        target, draft = _logits(places, vocabulary, dtype, plan.device)
        rows.append({
            "vocabulary": vocabulary, "dtype": str(dtype), "positions": places,
            **_errors(target, draft), "choices": _choices(target),
            "milliseconds": milliseconds(partial(_fused, target, draft), plan.repeats, plan.device),
            "reference_milliseconds": milliseconds(partial(_reference, target, draft), plan.repeats, plan.device),
        })  # fmt: skip
    return rows


def attention(plan: Plan) -> list[dict[str, Any]]:
    """Measures errors against fp64 and milliseconds of our attention and of transformers' `sdpa`, in bf16.

    Queries have L + 1 positions, after texts of all lengths. `sdpa` ("repeated") repeats keys and values for every
    head of a group.
    """
    shape, slots = SHAPES[plan.target], max(plan.contexts)
    heads = shape["num_attention_heads"]
    groups, size, rows = heads // shape["num_key_value_heads"], shape["hidden_size"] // heads, []
    ways: dict[str, Callable[..., Tensor]] = {"ours": _grouped, "repeated": partial(_repeated, groups)}
    for length, batch in product(plan.draft_lengths, plan.rows):
        inputs = _inputs(batch, heads, groups, length + 1, size, slots, plan.device)
        exact = _repeated(groups, *(tensor[:1].double().cpu() for tensor in inputs))  # one row shows the rounding
        errors = {name: float((way(*inputs)[:1].cpu().double() - exact).abs().max()) for name, way in ways.items()}
        times = {name: milliseconds(partial(way, *inputs), 20, plan.device) for name, way in ways.items()}
        rows.append({
            "rows": batch, "queries": length + 1, "slots": slots, "heads": heads, "groups": groups,
            "errors": errors, "milliseconds": times,
        })  # fmt: skip
    return rows


def milliseconds(call: Callable[[], object], repeats: int, device: str) -> float:
    """Returns the milliseconds of a call, averaged over `repeats` after two that warm up."""
    for _ in range(2):
        call()
    _wait(device)
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    _wait(device)
    return 1000 * (time.perf_counter() - began) / repeats


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _logits(places: int, vocabulary: int, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """Returns one row of target logits and of similar draft logits, each with a token of probability 0."""
    random = torch.Generator().manual_seed(_SEED)
    target = 4 * torch.randn(1, places, vocabulary, generator=random)
    draft = target + torch.randn(target.shape, generator=random)
    target[..., 3] = draft[..., -1] = -torch.inf
    return target.to(device, dtype), draft.to(device, dtype)


def _fused(target: Tensor, draft: Tensor) -> Any:
    keys, positions = _noise(target)
    words = noise.words(keys, positions, noise.Stream.TOKEN)
    return compare(["js"], target, draft, (scan(target, _TEMPERATURE, words), scan(draft)))


def _reference(target: Tensor, draft: Tensor) -> Any:
    keys, positions = _noise(target)
    drawn = Sampling(_TEMPERATURE).draw(target.float() / _TEMPERATURE, keys, positions)
    pair = DistributionPair(log_softmax(target), log_softmax(draft))
    return divergences_of_pair(["js"], pair), entropy(target), entropy(draft), drawn


def _noise(logits: Tensor) -> tuple[Tensor, Tensor]:
    keys = noise.problem_keys(_SEED, [1]).to(logits.device)
    return keys, torch.arange(logits.shape[1], device=logits.device)[None]


def _errors(target: Tensor, draft: Tensor) -> dict[str, Any]:
    computed = compare(_NAMES, target, draft, (scan(target), scan(draft)))
    exact = divergences_of_pair(
        _NAMES, DistributionPair(*(log_softmax(logits.cpu().double()) for logits in (target, draft)))
    )
    return {
        "errors": {name: _error(computed[name], exact[name]) for name in _NAMES},
        "entropy_error": _error(scan(target).entropy, entropy(target.cpu().double())),
        "likeliest": bool((scan(target).top.cpu() == target.cpu().argmax(-1)).all()),
    }


def _error(computed: Tensor, exact: Tensor) -> float:
    """Returns the largest error: absolute for values below 1, relative for those above."""
    errors = (computed.cpu().double() - exact).abs() / exact.abs().clamp_min(1.0)
    return float(errors.masked_fill(computed.cpu().isinf() & exact.isinf(), 0.0).max())


def _choices(target: Tensor) -> float:
    """Returns the share of positions where the kernel samples the token that the CPU samples in fp64."""
    keys, positions = _noise(target)
    choices = scan(target, _TEMPERATURE, noise.words(keys, positions, noise.Stream.TOKEN)).choice.cpu()
    drawn = Sampling(_TEMPERATURE).draw(target.cpu().double() / _TEMPERATURE, keys.cpu(), positions.cpu())
    return float((choices == drawn).float().mean())


# --- attention -----------------------------------------------------------------------------------------------


def _inputs(
    rows: int, heads: int, groups: int, queries: int, size: int, slots: int, device: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns standard normal queries, keys and values, laid out like those of a `SlotCache`, and the additive mask."""
    random = torch.Generator().manual_seed(_ATTENTION_SEED)
    shapes = (rows, queries, heads, size), *[(rows, slots, heads // groups, size)] * 2
    query, key, value = (
        torch.randn(shape, generator=random).to(device, torch.bfloat16).transpose(1, 2) for shape in shapes
    )
    last = torch.linspace(queries, slots, rows).long() - 1
    own = last[:, None] - queries + 1 + torch.arange(queries)  # (rows, queries)
    hidden = torch.arange(slots) > own[:, None, :, None]
    mask = torch.zeros(hidden.shape, dtype=torch.bfloat16).masked_fill(hidden, torch.finfo(torch.bfloat16).min)
    return query, key, value, mask.to(device)


def _grouped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return grouped_attention(None, query, key, value, mask)[0]


def _repeated(groups: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    module = SimpleNamespace(num_key_value_groups=groups, is_causal=False)
    return sdpa_attention_forward(module, query, key, value, mask)[0]  # type: ignore[arg-type]
