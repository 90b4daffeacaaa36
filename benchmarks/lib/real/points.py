"""What was decoded of a score at each T, beside what traces along the target had said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsd_calib import CostModel
from fsd_collectors.replay import replay
from fsd_collectors.replay.cases import REPLAYABLE
from fsd_collectors.store.reading import Traces
from lib.real.blocks import RULE, Blocks, Pass
from lib.rules.curves import Columns, Curve, Found, draws

Right = NDArray[np.bool_]


def right(traces: Traces, ids: Sequence[int]) -> Right:
    """Returns whether the text of each problem is."""
    found = traces.to_pandas(["problem", "correct"], table="completions").set_index("problem")["correct"]
    return found.loc[list(ids)].to_numpy(bool)


def alone(blocks: Blocks, done: Sequence[int]) -> tuple[Right, Right]:
    """Returns whether target and draft alone solve the problems of blocks."""
    ids = [[problem.id for problem in blocks.problems(block)] for block in done]
    target, draft = (
        np.concatenate([right(blocks.traces(block, of), each) for block, each in zip(done, ids, strict=True)])
        for of in (False, True)
    )
    return target, draft


class Measured:
    """What passes over the same blocks have decoded, on resamples of their problems.

    Args:
        done: numbers of blocks.
        costs: of a round.
    """

    def __init__(self, blocks: Blocks, done: Sequence[int], draft_length: int, costs: CostModel) -> None:
        self._blocks, self._done, self._length, self._costs = blocks, done, draft_length, costs
        self.target, self.draft = alone(blocks, done)
        self._weights = draws(len(self.target))
        self._traces = [blocks.traces(block) for block in done]

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "task": self._blocks.task.name, "temperature": self._blocks.temperature, "draft_length": self._length,
            "problems": len(self.target), "target": self._share(self.target), "draft": self._share(self.draft),
        }  # fmt: skip

    def _share(self, correct: Right) -> Found:
        return Found.of((self._weights @ correct.astype(np.float32)) / len(correct))

    def _curve(self, texts: Columns) -> Curve:
        return Curve.of(texts, self.target, self._weights)

    def lossless(self) -> list[dict[str, Any]]:
        """What the lossless rules keep: the numerical churn of one that writes the target's own text."""
        of = Pass(self._length, None)
        panel = self._blocks.panel(None)
        texts = self._blocks.texts(self._done, of)
        return [
            {"rule": str(judge), **self._at(self._curve(each), 0), **self._replayed(judge.rule)}
            for judge, each in zip(panel.judges, texts, strict=True)
        ]

    def points(self, score: str) -> Iterator[dict[str, Any]]:
        """Yields what a score keeps at each T."""
        base, texts = self._blocks.texts(self._done, Pass(self._length, score))
        curve, lossless = self._curve(texts), self._curve(base)
        exact = texts["hi"][texts["lo"] < 0]  # of the text that the exact rule writes, of each problem
        speed = curve.tokens_per_second(self._costs, 1.0) / lossless.tokens_per_second(self._costs, 1.0)[:, :1]
        for threshold in self._blocks.thresholds[score]:
            place = curve.place(threshold)
            yield {
                "score": score, "threshold": threshold, **self._at(curve, place), "gain": Found.of(speed[:, place]),
                "changed": float(np.mean(exact <= threshold)),
                **self._replayed(RULE, score, threshold),
            }  # fmt: skip

    def _at(self, curve: Curve, place: int) -> dict[str, Any]:
        problems = len(self.target)
        both, of_target, correct = (float(each[0, place]) for each in (curve.both, curve.right, curve.correct))
        lost, gained = of_target - both, correct - both
        return {
            "retention": Found.of(curve.retention[:, place]), "lost": lost, "gained": gained,
            "churn": (lost + gained) / problems, "tokens_per_round": Found.of(curve.tokens_per_round[:, place]),
            "tokens_per_text": float(curve.tokens[0, place]) / problems,
        }  # fmt: skip

    def _replayed(self, rule: str, score: str = "js", threshold: float = 0.0) -> dict[str, Any]:
        """Tokens a round, and replaced tokens of a text, along the target's own texts of the same problems."""
        if rule not in REPLAYABLE:
            return {"replayed": None}
        found = [replay(traces, rule, score, threshold, self._length) for traces in self._traces]
        tokens, rounds = sum(each.tokens for each in found), sum(each.rounds for each in found)
        replaced = sum(each.substitutions for each in found)
        return {"replayed": tokens / rounds, "substitutions": replaced / len(self.target)}
