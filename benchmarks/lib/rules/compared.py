"""Rules beside each other: the fastest T of each at a retention, and what the values of engines' knobs keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsd_collectors.replay.cost import CostModel
from lib.rules.curves import Columns, Curve, Floats, Found, fastest
from lib.rules.judges import Default, Judge, Panel, defaults

WANTED = (0.97, 0.98, 0.99, None)
"""Retentions; None: 1 less two standard errors."""
_POINTS = 60  # of a curve, evenly spaced in speed


@dataclass(frozen=True)
class Rule:
    """A rule with its curve. judges: one with a score, or several that hold for their own T alone."""

    name: str
    judges: Sequence[Judge]
    curve: Curve
    gain: Floats  # (draws, thresholds) tokens/s over those of the fastest lossless rule


class Compared:
    """All rules at one temperature, on the same problems and resamples.

    Args:
        texts: of each judge of the panel, see `Stored.columns`.
        weights: see `draws`.
        costs, slower: of a lossless round, and how many times as long each judge's takes.
    """

    def __init__(
        self, panel: Panel, texts: Sequence[Columns], weights: Floats, costs: CostModel, slower: Mapping[Judge, float]
    ) -> None:
        self._panel, self._costs, self._slower = panel, costs, slower
        of = dict(zip(panel.judges, texts, strict=True))
        # Lossless decoding has the target's accuracy, and its noise in common with all that is compared with it.
        self._alone: NDArray[np.bool_] = of[Judge(panel.base)]["correct"].astype(bool)
        self._curves = {judge: Curve.of(columns, self._alone, weights) for judge, columns in of.items()}

    @property
    def accuracy(self) -> float:
        """Of lossless decoding."""
        return float(self._alone.mean())

    def _speed(self, judge: Judge) -> Floats:
        return self._curves[judge].tokens_per_second(self._costs, self._slower[judge])

    @cached_property
    def lossless(self) -> Judge:
        """The fastest lossless rule."""
        return max(self._panel.lossless, key=lambda judge: float(self._speed(judge)[0, 0]))

    def _gain(self, judge: Judge) -> Floats:
        return self._speed(judge) / self._speed(self.lossless)[:, :1]

    @cached_property
    def rules(self) -> list[Rule]:
        """Each score, and the ensemble with all its weights."""
        found = [
            Rule(str(judge), [judge], self._curves[judge], self._gain(judge))
            for judge in self._panel.judges
            if judge.score is not None
        ]
        mixtures = [judge for judge in self._panel.judges if judge.threshold is not None]
        if not mixtures:
            return found
        judges = [Judge(self._panel.base), *mixtures]
        gains = np.concatenate([self._gain(judge)[:, :1] for judge in judges], 1)
        return [*found, Rule("ensemble", judges, Curve.beside([self._curves[judge] for judge in judges]), gains)]

    def levels(self) -> list[dict[str, Any]]:
        """The fastest T of every rule at each retention."""
        found = []
        for wanted in WANTED:
            chosen = {rule.name: fastest(rule.gain, rule.curve.keeping(wanted)) for rule in self.rules}
            best = max(chosen, key=lambda name: float(chosen[name][1][0]))
            for rule in self.rules:
                places, gains = chosen[rule.name]
                found.append({
                    "rule": rule.name, "wanted": wanted, "setting": _setting(rule, int(places[0])), "best": best,
                    "gain": Found.of(gains), "of_the_best": Found.of(gains / chosen[best][1]),
                    "tokens_per_round": Found.of(rule.curve.tokens_per_round[np.arange(len(places)), places]),
                    "retention": float(rule.curve.retention[0, places[0]]),
                })  # fmt: skip
        return found

    def of_defaults(self, draft_length: int) -> list[dict[str, Any]]:
        """What the values of engines' knobs keep and gain, and what any rule gains that keeps as much."""
        return [self._of(default) for default in defaults(self._panel, draft_length)]

    def _of(self, default: Default) -> dict[str, Any]:
        curve, gain = self._curves[default.judge], self._gain(default.judge)
        at = curve.place(default.threshold) if default.judge.score is not None else 0
        retention = curve.retention[:, at]
        others = [fastest(rule.gain, rule.curve.keeping(retention[:, None]))[1] for rule in self.rules]
        names = [rule.name for rule in self.rules]
        best = int(np.argmax([float(of[0]) for of in others]))
        return {
            "engine": default.engine, "knob": default.knob, "rule": str(default.judge), "threshold": default.threshold,
            "retention": Found.of(retention), "gain": Found.of(gain[:, at]),
            "tokens_per_round": Found.of(curve.tokens_per_round[:, at]),
            "best_that_keeps_as_much": {"rule": names[best], "gain": Found.of(others[best])},
        }  # fmt: skip

    def of_lossless(self) -> list[dict[str, Any]]:
        """The lossless rules; the retention of those other than the base says what another draw of noise does."""
        return [
            {
                "rule": str(judge), "gain": Found.of(self._gain(judge)[:, 0]),
                "tokens_per_round": Found.of(self._curves[judge].tokens_per_round[:, 0]),
                "tokens_per_second": float(self._speed(judge)[0, 0]),
                "retention": Found.of(self._curves[judge].retention[:, 0]),
            }
            for judge in self._panel.lossless
        ]  # fmt: skip

    def points(self) -> Iterator[dict[str, Any]]:
        """Yields points of every rule's curve."""
        for rule in self.rules:
            gain = rule.gain[0]
            order = np.maximum.accumulate(gain)
            places = np.searchsorted(order, np.linspace(order[0], order[-1], _POINTS)) if len(order) > _POINTS else None
            for place in np.unique(places) if places is not None else range(len(order)):
                yield {
                    "rule": rule.name, "setting": _setting(rule, int(place)), "gain": round(float(gain[place]), 4),
                    "retention": round(float(rule.curve.retention[0, place]), 4),
                    "tokens_per_round": round(float(rule.curve.tokens_per_round[0, place]), 3),
                }  # fmt: skip


def _setting(rule: Rule, place: int) -> str:
    """T, or the judge where each holds for its own."""
    if len(rule.judges) > 1:
        return str(rule.judges[place])
    threshold = float(rule.curve.thresholds[place])
    return "lossless" if threshold == -np.inf else f"T = {threshold:.4g}"
