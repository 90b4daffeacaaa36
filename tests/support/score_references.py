"""What engines and papers keep at a value of their knob: short references in float64, without a look at later tokens.

Each takes T, p, q, a drafted token x and u, and says whether x is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def entropy(p: Array) -> float:
    return float(-sum(value * math.log(value) for value in p if value > 0))


def ratio_margin(k: float) -> Callable[..., bool]:
    """SpecCascade's TokenV3: p(x) >= (1 - a) max p, among the k likeliest."""
    return lambda t, p, q, x, u: p[x] >= (1 - t) * p.max() and (p > p[x]).sum() < k


def relaxed(k: float) -> Callable[..., bool]:
    """TensorRT-LLM: among the k likeliest, and p(x) >= p1 - delta."""
    return lambda t, p, q, x, u: p[x] >= p.max() - t and (p > p[x]).sum() < k


def fly(k: int) -> Callable[..., bool]:
    """vLLM: the entropy of the k likeliest tokens is at least h, and p(x) > 0. T = h_max - h."""
    most = k / math.e if k < math.e else math.log(k)
    return lambda t, p, q, x, u: p[x] > 0 and entropy(np.sort(p)[-k:]) >= most - t


def cactus(t: float, p: Array, q: Array, x: int, u: float) -> bool:
    """The test of the paper, with d = T; what is exact is kept at every T from 0 on."""
    return t >= 0 and u * q[x] <= min(p[x] + math.sqrt(2 * t * p[x] * (1 - p[x])), 1.0)


def sglang(a: float) -> Callable[..., bool]:
    """SGLang's `tree_speculative_sampling_target_only` on a chain, restated: coin < p/acc, or p >= single = 1 - T."""
    return lambda t, p, q, x, u: t >= 0 and p[x] > 0 and (p[x] >= 1 - t or (a < 1 and u < p[x] / a))


def medusa(t: float, p: Array, q: Array, x: int, u: float) -> bool:
    e = 1 - t
    return e < 1 and p[x] > 0 and (e <= 0 or p[x] > min(e, math.sqrt(e) * math.exp(-entropy(p))))


def ascend(alpha: float) -> Callable[..., bool]:
    """vllm-ascend's entropy verification: p/q >= u min(exp(-alpha H), t), with t = 1 - T."""
    return lambda t, p, q, x, u: t >= 0 and p[x] > 0 and p[x] >= q[x] * u * min(math.exp(-alpha * entropy(p)), 1 - t)


def mixture(t: float, p: Array, q: Array, x: int, u: float) -> bool:
    """Static ensemble verification: u <= v(x)/q(x), where v has the share T of q; what is exact is kept from 0 on."""
    return t >= 0 and u * q[x] <= min(t, 1.0) * q[x] + (1 - min(t, 1.0)) * p[x]


KEPT: dict[str, Callable[..., bool]] = {
    "margin": ratio_margin(math.inf), "margin@2": ratio_margin(2), "relaxed": relaxed(math.inf),
    "relaxed@3": relaxed(3), "fly@0": fly(3), "fly@0@2": fly(2), "cactus": cactus, "accept-threshold": sglang(1.0),
    "accept-threshold@0.5": sglang(0.5), "typical": medusa, "posterior": ascend(0.4), "posterior@1.5": ascend(1.5),
    "ensemble": mixture,
}  # fmt: skip
