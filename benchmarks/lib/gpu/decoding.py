"""Decoding by the engine alone, from token ids to token ids, and what its rounds take.

`SpeculativeDecoder` follows profiles besides, whose packages need not be installed here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import Any

import torch

from fsd_decoding import noise
from fsd_decoding.batch import Request, Row
from fsd_decoding.engine.cache_pool import KVCachePool, Models
from fsd_decoding.engine.engine import Engine
from fsd_decoding.engine.rounds import EngineSettings
from fsd_decoding.graphs.callers import Compile
from fsd_decoding.models.runner import vocabulary_size
from fsd_decoding.proposal import Criterion, Proposal, Verdict
from fsd_decoding.rules import RULES, Rule
from fsd_decoding.sampling import Sampling
from fsd_decoding.tensors import probe_triton
from fsd_decoding.tree_shape import TreeShape

GREEDY = Sampling()
_THRESHOLD = 0.1
_STALL = 2.0  # times the median from which a round counts as stalled


class Imposed(Rule):
    """A rule that computes what `fsd-coupled` does, and then accepts every drafted token with the same probability.

    Random models agree on nothing, so that rounds of a given acceptance rate need it.
    """

    lossless = "coupled"
    bounds_score = True

    def __init__(self, chance: float) -> None:
        self.name, self._chance = f"imposed {chance:g}", chance

    def judge(self, round_: Proposal) -> Verdict:
        honest = RULES["fsd-coupled"].judge(round_)
        drawn = noise.uniform(round_.keys, round_.positions[:, :-1], noise.Stream.ACCEPT, torch.float32)
        return Verdict(drawn < self._chance, honest.fallback, honest.score, torch.zeros_like(honest.accepted))


class Decoder:
    """Decodes token ids with a target and a draft.

    Args:
        target, draft: loaded models on one device.
        compile: how rounds are called.
    """

    def __init__(self, target: Any, draft: Any, compile: Compile = False) -> None:
        self._target, self._draft, self._pool = target, draft, KVCachePool(compile)

    def rounds(
        self,
        prompts: Sequence[Sequence[int]],
        new: int | Sequence[int],
        draft_length: int,
        rule: Rule,
        *,
        batch_size: int | None = None,
        sampling: Sampling = GREEDY,
        tree: TreeShape | None = None,
        observer: Any = None,
    ) -> Iterator[list[Row]]:
        """Yields the rows of each round.

        Args:
            prompts: token ids; a prompt's place among them is the key of its noise.
            new: new tokens, of all texts or of each.
            draft_length: L.
            rule, sampling, tree, observer: as in `EngineSettings`.
            batch_size: rows; None: one for each prompt.
        """
        probe_triton(self._target.device)
        limits = [new] * len(prompts) if isinstance(new, int) else new
        requests = [
            Request(n, list(prompt), n, _THRESHOLD, draft_length, limit)
            for n, (prompt, limit) in enumerate(zip(prompts, limits, strict=True))
        ]
        settings = EngineSettings(rule, Criterion("js"), sampling, self._eos(), 0, observer=observer, tree=tree)
        longest = max(len(r.prompt) + r.max_new_tokens for r in requests) + 1 + settings.scratch(draft_length)
        vocabulary = min(vocabulary_size(model) for model in (self._target, self._draft))
        models = Models(self._target, self._draft, vocabulary, draft_length=draft_length)
        caches = self._pool.acquire(models, len(requests), batch_size or len(prompts), longest, True, True)
        return Engine(caches, settings).rounds(requests)

    def _eos(self) -> frozenset[int]:
        end = self._target.generation_config.eos_token_id
        return frozenset() if end is None else frozenset(torch.as_tensor(end).flatten().tolist())


@dataclass(frozen=True)
class Timed:
    """A round that was timed, with what comes before it: prompts that are read, and graphs that are captured.

    Args:
        seconds: until the host has read its tokens.
        rows: those that took part.
        begun: how many of them began with it.
    """

    seconds: float
    rows: list[Row]
    begun: int


def timed(rounds: Iterator[list[Row]], most: int | None = None) -> list[Timed]:
    """Runs and times rounds, `most` of them; None: all."""
    seen, began = [], time.perf_counter()
    for rows in islice(rounds, most):
        seen.append(Timed(time.perf_counter() - began, rows, sum(row.rounds == 1 for row in rows)))
        began = time.perf_counter()
    return seen


def summary(rounds: Sequence[Timed]) -> dict[str, float]:
    """Returns the median milliseconds of rounds, and which were far longer: captures, or plans of a library's.

    Those that begin a text are left out of the median.
    """
    going = [each.seconds for each in rounds if not each.begun]
    usual = median(going) if going else math.nan
    stalled = [seconds - usual for seconds in going if seconds > _STALL * usual]
    return {
        "rounds": len(rounds), "milliseconds": 1000 * usual,
        "stalls": len(stalled), "stalled_seconds": sum(stalled), "longest_milliseconds": 1000 * max(going, default=0.0),
    }  # fmt: skip
