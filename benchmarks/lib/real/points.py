"""What was decoded of a score at each T, beside what traces along the target had said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsd_calib import CostModel
from lib.real.blocks import RULE, Blocks, Pass
from lib.rules.curves import Columns, Curve, Floats, Found, draws

Right = NDArray[np.bool_]


class Measured:
    """What passes over the same blocks have decoded, on resamples of their problems.

    Args:
        done: numbers of blocks.
        of: the pass that they are through.
        costs: of a round.
    """

    def __init__(self, blocks: Blocks, done: Sequence[int], of: Pass, costs: CostModel) -> None:
        self._blocks, self._length, self._costs = blocks, of.draft_length, costs
        self._texts = blocks.texts(done, of)
        self._along = [blocks.along(block) for block in done]
        self.target = np.concatenate([each.target for each in self._along]).astype(bool)
        self.draft = np.concatenate([each.draft for each in self._along]).astype(bool)
        self._weights = draws(len(self.target))

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "task": self._blocks.task.name, "temperature": self._blocks.temperature,
            "draft_length": self._length, "problems": len(self.target),
            "target": self._share(self.target), "draft": self._share(self.draft),
            "tokens_per_text": sum(each.tokens for each in self._along) / len(self.target),
            "processors": sorted({each.processor for each in self._along}),
        }  # fmt: skip

    def _share(self, correct: Right) -> Found:
        return Found.of((self._weights @ correct.astype(np.float32)) / len(correct))

    def _curve(self, texts: Columns) -> Curve:
        return Curve.of(texts, self.target, self._weights)

    def lossless(self) -> list[dict[str, Any]]:
        """What the lossless rules keep: the numerical churn of one that writes the target's own text."""
        return [
            {"rule": str(judge), **self._at(self._curve(texts), 0), **self._replayed(judge.rule)}
            for judge, texts in self._texts.items()
            if judge.score is None
        ]

    def points(self) -> Iterator[dict[str, Any]]:
        """Yields what each score keeps at each T."""
        lossless = self._curve(next(iter(self._texts.values()))).tokens_per_second(self._costs, 1.0)[:, :1]
        for judge, texts in self._texts.items():
            if judge.score is not None:
                yield from self._of_score(judge.score, texts, lossless)

    def _of_score(self, score: str, texts: Columns, lossless: Floats) -> Iterator[dict[str, Any]]:
        curve = self._curve(texts)
        exact = texts["hi"][texts["lo"] < 0]  # of the text that the exact rule writes, of each problem
        speed = curve.tokens_per_second(self._costs, 1.0) / lossless
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

    def _replayed(self, rule: str, score: str | None = None, threshold: float | None = None) -> dict[str, Any]:
        """Tokens a round, and replaced tokens of a text, along the target's own texts of the same problems."""
        wanted = [each.at(rule, score, threshold, self._length) for each in self._along]
        found = [each for each in wanted if each is not None]
        if not found:
            return {"replayed": None}
        tokens, rounds = sum(each.tokens for each in found), sum(each.rounds for each in found)
        replaced = sum(each.substitutions for each in found)
        return {"replayed": tokens / rounds, "substitutions": replaced / len(self.target)}
