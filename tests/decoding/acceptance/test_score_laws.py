"""What a round emits under every score has the law that enumerating drafts and decisions gives, on five tokens.

The law is computed in float64 by itself: `sd` accepts by its formula, and the tokens of draft and target that are drawn
with one Gumbel noise have a joint law in closed form. Each test is a chi-squared one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import chisquare

from fsd_decoding import noise
from fsd_decoding.proposal import Criterion, Proposal
from fsd_decoding.rules import rule_named
from fsd_decoding.sampling import Sampling
from fsd_decoding.scores import score_named
from fsd_decoding.walk import walk
from support.score_references import KEPT, Array, fly

WORDS, ROWS, TEMPERATURE, TOP_K = 5, 20_000, 1.2, 4
SAMPLING = Sampling(TEMPERATURE, top_k=TOP_K)  # so that processed logits are other than raw ones
GRID = (np.arange(20_000) + 0.5) / 20_000  # of u


def gated(t: float, p: Array, q: Array, x: int, u: Array) -> bool:
    m = (p + q) / 2
    return bool(p.max() <= 0.6 and sum((a * np.log(a / m)).sum() for a in (p, q)) / 2 <= t)


REFERENCES: dict[str, tuple[float, Callable[..., bool]]] = {
    "gated-js@0.6": (0.05, gated), "margin": (0.6, KEPT["margin"]), "margin@2": (0.9, KEPT["margin@2"]),
    "relaxed": (0.25, KEPT["relaxed"]), "relaxed@3": (0.4, KEPT["relaxed@3"]), "fly@1": (0.3, fly(3)),
    "fly@2@2": (0.1, fly(2)), "cactus": (0.1, KEPT["cactus"]), "accept-threshold": (0.75, KEPT["accept-threshold"]),
    "accept-threshold@0.5": (0.75, KEPT["accept-threshold@0.5"]), "typical": (0.75, KEPT["typical"]),
    "posterior": (0.5, KEPT["posterior"]), "posterior@1.5": (0.1, KEPT["posterior@1.5"]),
}  # fmt: skip
CASES = list(product(("fsd-sd", "fsd-coupled"), REFERENCES, (1, 2, 3)))
FALSE_ALARM = 1e-6 / len(CASES)  # of each, so 1e-6 of them all


@cache
def tables() -> list[list[Array]]:
    """Raw logits of target and draft after every prefix of 0, 1, 2 and 3 tokens: (5 ** n, 5) each."""
    random = np.random.default_rng(7)
    target = [1.2 * random.standard_normal((WORDS**n, WORDS)) for n in range(4)]
    return [target, [logits + 0.8 * random.standard_normal(logits.shape) for logits in target]]


def processed(logits: Array) -> Array:
    kept = np.where(logits >= np.sort(logits)[-TOP_K], logits / TEMPERATURE, -np.inf)
    return np.asarray(softmax(kept))


@dataclass(frozen=True)
class Place:
    """What may become of a drafted token: it is kept by the exact rule, only if the score allows, or not at all."""

    exact: float
    by_score: float
    fallback: Array  # (5,) the law of the token that stands in its place

    @property
    def chances(self) -> tuple[float, float, float]:
        return self.exact, self.by_score, 1.0 - self.exact - self.by_score


def coupled(p: Array, q: Array) -> Array:
    """The law of tokens (x, y), drawn from q and p with the same Gumbel noise: (5, 5)."""
    joint = np.zeros((WORDS, WORDS))
    ratios = [q[k] / p[k] if p[k] > 0 else math.inf for k in range(WORDS)]
    for i, j in product(range(WORDS), repeat=2):
        if not (q[i] > 0 and p[j] > 0):
            continue
        if i == j:
            joint[i, i] = 1.0 / np.maximum(q / q[i], p / p[i]).sum()
            continue
        low, high = ratios[j], ratios[i]  # of the time at which y wins to that at which x does, both by exponentials
        cuts = sorted({low, high, *(r for r in ratios if low < r < high)}) if low < high else []
        for a, b in pairwise(cuts):
            middle = (a + b) / 2 if b < math.inf else a + 1.0
            slope = p[p * middle > q].sum()
            rest = q[p * middle <= q].sum()
            joint[i, j] += q[i] * p[j] * _integral(rest, slope, a, b)
    return joint


def _integral(rest: float, slope: float, a: float, b: float) -> float:
    """Of 1 / (rest + slope r) ** 2 from a to b."""
    if slope == 0.0:
        return (b - a) / rest**2
    return (1.0 / (rest + slope * a) - (1.0 / (rest + slope * b) if b < math.inf else 0.0)) / slope


def place(rule: str, score: str, threshold: float, raw: tuple[Array, Array], x: int) -> Place:
    p, q = (processed(logits) for logits in raw)
    of = (p, q) if score_named(score).on == "processed" else tuple(np.asarray(softmax(logits)) for logits in raw)
    within = np.broadcast_to(REFERENCES[score][1](threshold, *of, x, GRID), GRID.shape) & (threshold >= 0)
    if rule == "fsd-sd":
        exact = GRID * q[x] <= p[x]
        rest = np.maximum(p - q, 0.0)
        return Place(float(exact.mean()), float((within & ~exact).mean()), rest / rest.sum())
    joint = coupled(p, q)[x] / q[x]
    others = joint * (np.arange(WORDS) != x)
    return Place(joint[x], float(within.mean()) * others.sum(), others / others.sum() if others.any() else others)


def law(rule: str, score: str, threshold: float, length: int) -> Array:
    """The probability of what a round emits, by its code."""
    found, (target, draft) = np.zeros((WORDS + 1) ** (length + 1)), tables()
    window = score_named(score).window
    at = cache(lambda n, prefix, x: place(rule, score, threshold, (target[n][prefix], draft[n][prefix]), x))
    for tokens in product(range(WORDS), repeat=length):
        prefixes = [code(tokens[:n]) for n in range(length + 1)]
        chance = math.prod(float(processed(draft[n][prefixes[n]])[x]) for n, x in enumerate(tokens))
        if chance == 0.0:
            continue
        places = [at(n, prefixes[n], x) for n, x in enumerate(tokens)]
        for outcome in product(range(3), repeat=length):
            weight = chance * math.prod(each.chances[kind] for each, kind in zip(places, outcome, strict=True))
            stop = first_rejected(outcome, window)
            last = places[stop].fallback if stop < length else processed(target[length][prefixes[length]])
            for token in range(WORDS):
                found[emitted_code([*tokens[:stop], token])] += weight * last[token]
    return found


def first_rejected(outcome: tuple[int, ...], window: int) -> int:
    """The first place that is neither kept by the exact rule (0), nor by the score (1) before `window` that are."""
    for n, kind in enumerate(outcome):
        after = outcome[n + 1 : n + 1 + window]
        if kind == 2 or (kind == 1 and (len(after) < window or any(after))):
            return n
    return len(outcome)


def code(tokens: tuple[int, ...]) -> int:
    found = 0
    for token in tokens:
        found = found * WORDS + token
    return found


def emitted_code(tokens: list[int]) -> int:
    return sum((token + 1) * (WORDS + 1) ** n for n, token in enumerate(tokens))


def emitted(rule: str, score: str, threshold: float, length: int) -> Iterator[list[int]]:
    """What equal rounds emit."""
    target, draft = ([torch.from_numpy(each) for each in of_model] for of_model in tables())
    keys, positions = noise.problem_keys(length, list(range(ROWS))), torch.arange(length + 1).expand(ROWS, -1) + 10
    prefix, tokens = torch.zeros(ROWS, dtype=torch.int64), torch.zeros(ROWS, 20, dtype=torch.int64)
    drafted, seen = [], [target[0][prefix]]
    drafts = []
    for n in range(length):
        drafts.append(draft[n][prefix])
        at = positions[:, n : n + 1]
        x = SAMPLING.draw(SAMPLING.warp(drafts[-1].unsqueeze(1), tokens, at), keys, at)[:, 0]
        drafted.append(x)
        prefix = prefix * WORDS + x
        seen.append(target[n + 1][prefix])
    proposal = Proposal(
        torch.stack(seen, 1), torch.stack(drafts, 1), torch.stack(drafted, 1), positions, tokens, keys,
        torch.full((ROWS,), threshold, dtype=torch.float64), Criterion(score), SAMPLING,
    )  # fmt: skip
    path = walk(proposal, rule_named(rule).judge(proposal), torch.full((ROWS,), length))
    for row, count in zip(path.emitted.tolist(), path.accepted.tolist(), strict=True):
        yield row[: count + 1]


def p_value(counts: Array, expected: Array) -> float:
    """Of the chi-squared test, with the rarest cells merged so that each expects 5 rounds or more."""
    if counts[expected == 0].any():
        return 0.0
    cells = np.stack([counts, expected * ROWS])[:, expected > 0]
    cells = cells[:, np.argsort(cells[1])]
    small = max(int(np.searchsorted(np.cumsum(cells[1]), 5.0)) + 1, int((cells[1] < 5.0).sum()))
    cells = np.concatenate([cells[:, :small].sum(1, keepdims=True), cells[:, small:]], 1)
    return float(chisquare(*cells).pvalue)


def test_the_joint_law_of_coupled_tokens_has_its_margins() -> None:
    for n in range(3):
        for target, draft in zip(*(each[n] for each in tables()), strict=True):
            p, q = processed(target), processed(draft)
            joint = coupled(p, q)
            assert joint.sum(0) == pytest.approx(p)
            assert joint.sum(1) == pytest.approx(q)


@pytest.mark.thinned(every=7)
@pytest.mark.parametrize(("rule", "score", "length"), CASES)
def test_a_round_emits_what_enumeration_says(rule: str, score: str, length: int) -> None:
    threshold = REFERENCES[score][0]
    codes = [emitted_code(tokens) for tokens in emitted(rule, score, threshold, length)]
    counts = np.bincount(codes, minlength=(WORDS + 1) ** (length + 1)).astype(float)
    assert p_value(counts, law(rule, score, threshold, length)) > FALSE_ALARM
    exact = p_value(counts, law(rule, score, -1.0, length))
    assert exact > FALSE_ALARM if score_named(score).window >= length else exact < FALSE_ALARM
