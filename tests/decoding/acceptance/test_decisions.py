"""Every decision and every emitted token of whole runs, recomputed from recorded logits by a second implementation.

The second implementation follows the formulas, one number at a time in float64, with its own hash, softmax and
processors; it shares no code with the package.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pytest

from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.divergence import DIVERGENCES
from fsd_decoding.observers.round_record import RoundRecord
from fsd_decoding.rules import RULES, rule_named
from support.models.tiny_models import EOS, VOCABULARY
from support.models.tiny_pair import tiny_decoder

Array = np.ndarray[Any, np.dtype[np.float64]]
NEW = 16
GREEDY: dict[str, Any] = {"repetition_penalty": 1.1}
SAMPLED: dict[str, Any] = {"temperature": 0.9, "top_k": 12, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.1}
TOKEN, ACCEPT, RESIDUAL = 0, 1, 2


@dataclass
class RecordedRow:
    """One row of one round, as an observer recorded it."""

    target: Array  # (L + 1, V)
    draft: Array  # (L, V)
    drafted: list[int]
    position: int  # of the first token to emit
    key: list[int]
    threshold: float
    decided: list[bool]
    accepted: int


class Decisions:
    """Recomputes one row's rounds; `text` is the prompt and the tokens emitted so far."""

    def __init__(self, rule: str, score: str, sampling: dict[str, Any], prompt: list[int]) -> None:
        self.rule, self.score, self.sampling = rule, score, sampling
        self.greedy = "temperature" not in sampling
        self.text = list(prompt)

    def check(self, recorded: RecordedRow) -> None:
        """Compares the round's decisions, and appends the tokens it emits."""
        assert recorded.position == len(self.text)
        together = self.rule == "sd-block" and not self.greedy
        outcomes = self.block(recorded) if together else [self.judge(recorded, j) for j in range(len(recorded.drafted))]
        assert recorded.decided == [accepted for accepted, _ in outcomes]
        for j, (accepted, fallback) in enumerate(outcomes):
            assert recorded.drafted[j] == self.draw(self.process(recorded.draft[j], self.text), recorded, j)
            self.text.append(recorded.drafted[j] if accepted else fallback)
            if not accepted:
                assert recorded.accepted == j
                return
        assert recorded.accepted == len(recorded.drafted)
        last = len(recorded.drafted)
        self.text.append(self.draw(self.process(recorded.target[last], self.text), recorded, last))

    def judge(self, recorded: RecordedRow, j: int) -> tuple[bool, int]:
        """Whether the drafted token is accepted, and the token emitted if not."""
        before = self.text + recorded.drafted[:j]
        target, draft = (self.process(logits[j], before) for logits in (recorded.target, recorded.draft))
        p, q = softmax(target), softmax(draft)
        x, y = recorded.drafted[j], self.draw(target, recorded, j)
        lossless, residual = x == y, y
        if self.rule.endswith("sd") or self.rule == "ensemble":
            lossless, residual = self.speculative(recorded, j, p, q, x, y)
        within = self.distance(recorded.target[j], recorded.draft[j]) <= recorded.threshold
        return {
            "sd": (lossless, residual),
            "sd-block": (lossless, y),
            "coupled": (lossless, y),
            "fsd": (within, y),
            "fsd-sd": (lossless or within, residual),
            "fsd-coupled": (lossless or within, y),
            "ensemble": (lossless, residual),
        }[self.rule]

    def block(self, recorded: RecordedRow) -> list[tuple[bool, int]]:
        """Algorithm 2 of arXiv 2403.10444: the last place that passes, and what is left after each."""
        count, share, passed, left = len(recorded.drafted), 1.0, 0, list[int]()
        for j in range(count):
            before = self.text + recorded.drafted[:j]
            target, draft = (self.process(logits[j], before) for logits in (recorded.target, recorded.draft))
            p, q, x = softmax(target), softmax(draft), recorded.drafted[j]
            rest = np.maximum(share * p - q, 0)
            at = (recorded.key, recorded.position + j)
            if j:
                spare = float(rest.sum()) + 1 - share
                chance = float(rest.sum()) / spare if spare > 0 else 1.0
                passed = j if unit(recorded.key, recorded.position + j - 1, ACCEPT, 0) <= chance else passed
            left.append(race(rest, *at, RESIDUAL) if rest.any() else self.draw(target, recorded, j))
            share = min(share * p[x] / q[x], 1.0)
        if count and unit(recorded.key, recorded.position + count - 1, ACCEPT, 0) <= share:
            passed = count
        return [(j < passed, left[j]) for j in range(count)]

    def speculative(self, recorded: RecordedRow, j: int, p: Array, q: Array, x: int, y: int) -> tuple[bool, int]:
        """`sd`, and `ensemble` as `sd` with w p + (1 - w) q in place of p."""
        weight = min(max(1 - recorded.threshold, 0.0), 1.0) if self.rule == "ensemble" else 1.0
        mixed = weight * p + (1 - weight) * q
        if self.greedy:
            return x == int(mixed.argmax()), int(mixed.argmax())
        u = unit(recorded.key, recorded.position + j, ACCEPT, 0)
        rest = np.maximum(mixed - q, 0)
        return u <= mixed[x] / q[x], race(rest, recorded.key, recorded.position + j, RESIDUAL) if rest.any() else y

    def draw(self, processed: Array, recorded: RecordedRow, j: int) -> int:
        if self.greedy:
            return int(processed.argmax())
        return race(softmax(processed), recorded.key, recorded.position + j, TOKEN)

    def distance(self, target: Array, draft: Array) -> float:
        p, q = softmax(target), softmax(draft)
        m = (p + q) / 2
        return {
            "js": (kl(p, m) + kl(q, m)) / 2,
            "ag": (kl(m, p) + kl(m, q)) / 2,
            "kl_qp": kl(q, p),
            "kl_pq": kl(p, q),
            "tv": float(np.abs(p - q).sum() / 2),
            "hellinger": math.sqrt(((np.sqrt(p) - np.sqrt(q)) ** 2).sum() / 2),
            "doubt": (kl(p, m) + kl(q, m)) / 2 + max(0.0, entropy(q) - entropy(p)),
        }[self.score]

    def process(self, logits: Array, before: list[int]) -> Array:
        """Applies penalty, temperature, top-k, top-p and min-p."""
        out, penalty = logits.copy(), self.sampling["repetition_penalty"]
        for token in set(before):
            out[token] = out[token] * penalty if out[token] < 0 else out[token] / penalty
        if self.greedy:
            return out
        out /= self.sampling["temperature"]
        out[out < np.sort(out)[-self.sampling["top_k"]]] = -np.inf
        rising = np.argsort(out)
        out[rising[:-1][softmax(out)[rising].cumsum()[:-1] <= 1 - self.sampling["top_p"]]] = -np.inf
        left = softmax(out)
        out[left < self.sampling["min_p"] * left.max()] = -np.inf
        return out


def softmax(logits: Array) -> Array:
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def kl(p: Array, q: Array) -> float:
    return math.fsum(a * math.log(a / b) for a, b in zip(p.tolist(), q.tolist(), strict=True) if a > 0)


def entropy(p: Array) -> float:
    return -math.fsum(a * math.log(a) for a in p.tolist() if a > 0)


def race(p: Array, key: list[int], position: int, stream: int) -> int:
    """argmin E / p with E = -log1p(-v)."""
    times = {t: -math.log1p(-unit(key, position, stream, t)) / p[t] for t in range(len(p)) if p[t] > 0}
    return min(times, key=lambda t: times[t])


def unit(key: list[int], position: int, stream: int, token: int) -> float:
    first = mix(key[0] + position * 4 + stream)
    second = mix(key[1] + first)
    return ((mix((first ^ mix(token * 0x9E3779B9)) + second) >> 9) + 0.5) / 2**23


def mix(x: int) -> int:
    x %= 2**32
    x ^= x >> 16
    x = x * 0x7FEB352D % 2**32
    x ^= x >> 15
    x = x * 0x846CA68B % 2**32
    return x ^ (x >> 16)


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    return tiny_decoder(seed=3)


@pytest.mark.thinned(every=7)
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("rule", RULES)
def test_decisions_follow_the_formulas(decoder: SpeculativeDecoder, rule: str, sampling: dict[str, Any]) -> None:
    run_and_recompute(decoder, rule, "js", sampling)


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize("score", [name for name in DIVERGENCES if name != "js"])
def test_every_score_follows_its_formula(decoder: SpeculativeDecoder, score: str) -> None:
    run_and_recompute(decoder, "fsd", score, GREEDY)


def run_and_recompute(decoder: SpeculativeDecoder, rule: str, score: str, sampling: dict[str, Any]) -> None:
    """Twelve prompts in four rows, each prompt with a threshold and a draft length of its own."""
    rng = Random(0)
    prompts = [[rng.randrange(2, VOCABULARY) for _ in range(rng.randint(1, 9))] for _ in range(12)]
    thresholds = [rng.choice([-0.1, 0.0, 0.02, 0.1, 0.3, 0.6]) for _ in prompts]
    recorded: list[list[RecordedRow]] = [[] for _ in prompts]

    def observe(round_: RoundRecord) -> None:
        for index, row in rows_of(round_):
            recorded[index].append(row)

    pair = SpeculativeDecoder(decoder.target, decoder.draft, decoder.tokenizer, rule=rule, score=score, seed=3)
    results = pair.generate(
        prompts, NEW, threshold=thresholds if rule_named(rule).fuzzy else None,
        draft_length=[1 + i % 5 for i in range(len(prompts))], batch_size=4, observer=observe, **sampling,
    )  # fmt: skip
    decided = []
    for prompt, rounds, result in zip(prompts, recorded, results, strict=True):
        recomputed = Decisions(rule, score, sampling, prompt)
        for round_ in rounds:
            recomputed.check(round_)
            decided += round_.decided
        assert result.tokens == cut(recomputed.text[len(prompt) :])
        assert result.rounds == len(rounds)
    if rule != "target":
        assert 0.1 < np.mean(decided) < 0.95


def rows_of(round_: RoundRecord) -> Iterator[tuple[int, RecordedRow]]:
    """Copies of a round's rows, since the engine reuses its tensors."""
    proposal = round_.proposal
    for i, request in enumerate(round_.requests):
        if request is not None:
            drafted = int(round_.drafted[i])
            yield (
                request.index,
                RecordedRow(
                    proposal.target_logits[i].numpy().copy(),
                    proposal.draft_logits[i].numpy().copy(),
                    proposal.drafted[i, :drafted].tolist(),
                    int(proposal.positions[i, 0]),
                    proposal.keys[i].tolist(),
                    float(proposal.thresholds[i]),
                    round_.verdict.accepted[i, :drafted].tolist(),
                    int(round_.accepted[i]),
                ),
            )


def cut(emitted: list[int]) -> list[int]:
    """Cuts new tokens before EOS and at the maximum length."""
    kept = emitted[:NEW]
    return kept[: next((i for i, t in enumerate(kept) if t in EOS), len(kept))]
