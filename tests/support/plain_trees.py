"""Decoding over trees in plain Python: one text at a time, one uncached forward pass per node, from the formulas."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fsd_decoding import noise
from fsd_decoding.divergence import divergence
from fsd_decoding.noise import Stream
from fsd_decoding.tree_shape import TreeShape
from fsd_decoding.trees import FIRST_CHILD

Path = tuple[int, ...]


@dataclass
class PlainText:
    """A decoded text with its statistics, in the words of `Result`."""

    tokens: list[int] = field(default_factory=list)
    finish_reason: str = "length"
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    bonus: int = 0
    interval: tuple[float, float] = (-math.inf, math.inf)


@dataclass(frozen=True)
class PlainTrees:
    """The settings of `PlainTrees.decode`; models are in float64."""

    target: Any
    draft: Any
    rule: str
    threshold: float
    shape: TreeShape
    depth: int
    temperature: float = 0.0

    def decode(self, prompt: list[int], number: int, new: int, eos: set[int]) -> PlainText:
        """Decodes one prompt, whose noise has this number."""
        keys = noise.problem_keys(0, [number])
        text = PlainText()
        while True:
            before = Path(prompt + text.tokens)
            tree = self.grow(before, keys)
            emitted, decisions, whole = self.walk(before, tree, keys)
            kept = emitted[: new - len(text.tokens)]
            ended = next((n for n, token in enumerate(kept) if token in eos), None)
            kept = kept if ended is None else kept[: ended + 1]
            text.rounds += 1
            text.drafted += sum(map(len, tree.values()))
            text.accepted += min(len(emitted) - 1, len(kept))
            text.bonus += whole and 1 < len(emitted) == len(kept)
            for score, spared in filter(None, decisions[: len(kept)]):
                low, high = text.interval
                text.interval = (max(low, score), high) if spared else (low, min(high, score))
            text.tokens += kept if ended is None else kept[:-1]
            if ended is not None:
                text.finish_reason = "eos"
                return text
            if len(text.tokens) == new:
                return text

    def grow(self, before: Path, keys: Tensor) -> dict[Path, list[int]]:
        """The children of every node, by the tokens that lead to it; x is the first."""
        found: list[tuple[float, bool, Path]] = []
        frontier: list[tuple[float, bool, Path]] = [(0.0, True, ())]
        for _ in range(self.depth):
            level = [
                (score + more, valid and possible, (*path, token))
                for score, valid, path in frontier
                for more, possible, token in self._children(before + path, keys)
            ]
            found += level
            frontier = sorted(level, key=lambda node: -node[0])[: self.shape.top_k]  # sorting is stable
        kept = sorted(found, key=lambda node: -node[0])[: self.shape.nodes]
        paths = {path for _, valid, path in kept if valid}
        tree: dict[Path, list[int]] = {(): []}
        for _, _, path in found:
            if path in paths:
                tree.setdefault(path[:-1], []).append(path[-1])
        return tree

    def _children(self, before: Path, keys: Tensor) -> list[tuple[float, bool, int]]:
        """What each child adds to a score, whether it can be drawn, and its token."""
        log_q = self._log_probabilities(self.draft, before)
        ranking = log_q + self._noise(keys, len(before), Stream.TOKEN, len(log_q))
        tokens = ranking.sort(descending=True, stable=True).indices[: self.shape.top_k].tolist()
        likely = [float(log_q[token]) for token in tokens]
        if self.rule in ("sd", "fsd-sd") and self.temperature:
            shares = [FIRST_CHILD * (1 - FIRST_CHILD) ** rank for rank in range(len(tokens))]
            return [(math.log(s), q > -math.inf, t) for s, q, t in zip(shares, likely, tokens, strict=True)]
        return [(max(likely[rank:]), likely[rank] > -math.inf, token) for rank, token in enumerate(tokens)]

    def walk(
        self, before: Path, tree: dict[Path, list[int]], keys: Tensor
    ) -> tuple[list[int], list[tuple[float, bool] | None], bool]:
        """The tokens of a round; for each, the score that decided on it and whether it was spared; whether none was
        rejected."""
        emitted: list[int] = []
        decisions: list[tuple[float, bool] | None] = []
        while children := tree.get(Path(emitted)):
            token, decision = self._judge(before + Path(emitted), children, keys)
            emitted.append(token)
            decisions.append(decision)
            if token not in children:
                return emitted, decisions, False
        return [*emitted, self._choice(before + Path(emitted), keys)], [*decisions, None], True

    def _judge(self, before: Path, children: list[int], keys: Tensor) -> tuple[int, tuple[float, bool] | None]:
        """The token at a node, and the score that decided on it, if one did."""
        x, y = children[0], self._choice(before, keys)
        score = float(divergence("js", _logits(self.target, before), _logits(self.draft, before)))
        fuzzy = score <= self.threshold
        if self.rule == "fsd":
            return (x if fuzzy else y), (score, fuzzy)
        if self.rule in ("sd", "fsd-sd") and self.temperature:
            y = self._by_residuals(before, children, keys)
        if self.rule in ("coupled", "sd") or y in children:
            return y, None
        return (x if fuzzy else y), (score, fuzzy)

    def _by_residuals(self, before: Path, children: list[int], keys: Tensor) -> int:
        p, q = (self._log_probabilities(model, before).exp() for model in (self.target, self.draft))
        for rank, x in enumerate(children):
            position = torch.tensor([[len(before)]])
            u = noise.uniform(keys, position, Stream.ACCEPT, torch.float64, rank)
            if u * q[x] <= p[x]:
                return x
            p = (p - q).clamp_min(0)
            p, q = p / p.sum(), q.index_fill(0, torch.tensor([x]), 0.0)
            q = q / q.sum()
        return int((p.log() + self._noise(keys, len(before), Stream.RESIDUAL, len(p))).argmax())

    def _choice(self, before: Path, keys: Tensor) -> int:
        log_p = self._log_probabilities(self.target, before)
        return int((log_p + self._noise(keys, len(before), Stream.TOKEN, len(log_p))).argmax())

    def _log_probabilities(self, model: Any, before: Path) -> Tensor:
        return torch.log_softmax(_logits(model, before) / (self.temperature or 1.0), -1)

    def _noise(self, keys: Tensor, position: int, stream: Stream, vocabulary: int) -> Tensor:
        if not self.temperature:
            return torch.zeros(vocabulary, dtype=torch.float64)
        return noise.gumbel(keys, torch.tensor([[position]]), stream, vocabulary, torch.float64)[0, 0]


@cache
def _logits(model: Any, before: Path) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([before]), use_cache=False).logits[0, -1]
    return logits
