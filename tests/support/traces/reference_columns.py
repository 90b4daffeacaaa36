"""Reference values of trace columns, computed in NumPy from plain forward passes and the definitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax

from fsd_decoding.noise import Stream, gumbel, problem_keys, uniform

Array = NDArray[Any]


def shape_of(logits: Array, drafted: Array) -> dict[str, Array]:
    """Returns one model's columns, (N,) each, from logits (N, V) and drafted tokens (N,)."""
    p = softmax(logits, -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        surprise = np.where(p > 0, -np.log(p), 0.0)
    entropy = (p * surprise).sum(-1)
    falling = -np.sort(-p, -1)
    at_x = drafted[:, None]
    return {
        "entropy": entropy,
        "varentropy": (p * (surprise - entropy[:, None]) ** 2).sum(-1),
        "top1": falling[:, 0],
        "top2": falling[:, 1],
        "margin": falling[:, 0] - falling[:, 1],
        "rank": (logits > np.take_along_axis(logits, at_x, -1)).sum(-1),
        "probability": np.take_along_axis(p, at_x, -1)[:, 0],
    }


def scores_of(target: Array, draft: Array) -> dict[str, Array]:
    """Returns the named scores, (N,) each, of logits (N, V), from their formulas (docs/divergences.md)."""
    p, q = softmax(target, -1), softmax(draft, -1)
    log_p, log_q, m = log_softmax(target, -1), log_softmax(draft, -1), (p + q) / 2
    log_m = np.log(m)
    js = 0.5 * (p * (log_p - log_m) + q * (log_q - log_m)).sum(-1)
    return {
        "js": js,
        "doubt": js + (p * log_p - q * log_q).sum(-1).clip(min=0),
        "ag": (m * (log_m - 0.5 * (log_p + log_q))).sum(-1),
        "kl_qp": (q * (log_q - log_p)).sum(-1),
        "kl_pq": (p * (log_p - log_q)).sum(-1),
        "tv": 0.5 * abs(p - q).sum(-1),
        "hellinger": np.sqrt(0.5 * ((np.sqrt(p) - np.sqrt(q)) ** 2).sum(-1)),
    }


def chosen(logits: Array, temperature: float, seed: int, problem: int, positions: Sequence[int]) -> Array:
    """Returns the tokens (N,) that are drawn from logits (N, V) at absolute positions (N,)."""
    scores = logits
    if temperature:
        where = torch.tensor([positions])
        race = gumbel(problem_keys(seed, [problem]), where, Stream.TOKEN, logits.shape[-1], torch.float64)[0].numpy()
        scores = log_softmax(logits / temperature, -1) + race
    best: Array = scores.argmax(-1)
    return best


def accepted_by_sd(
    target: Array, draft: Array, drafted: Array, temperature: float, seed: int, problem: int, positions: Sequence[int]
) -> tuple[Array, Array]:
    """Returns whether `sd` accepts at a temperature above 0, and the probability that it does: (N,) each."""
    p, q = softmax(target / temperature, -1), softmax(draft / temperature, -1)
    u = uniform(problem_keys(seed, [problem]), torch.tensor([positions]), Stream.ACCEPT, torch.float64)[0].numpy()
    p_x, q_x = (np.take_along_axis(r, drafted[:, None], -1)[:, 0] for r in (p, q))
    return u <= p_x / q_x, np.minimum(p, q).sum(-1)


@torch.inference_mode()
def logits_after(model: Any, texts: Sequence[Sequence[int]]) -> list[Array]:
    """Returns the logits (length, V) of every text in float64, from one forward pass.

    Texts are padded on the right, where causal attention does not look.
    """
    longest = max(len(text) for text in texts)
    padded = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts])
    logits = model(padded, use_cache=False).logits.double().numpy()
    return [row[: len(text)] for row, text in zip(logits, texts, strict=True)]
