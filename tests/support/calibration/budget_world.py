"""A simulation for budgets: rounds with a known acceptance rate at each T, a simulated clock, and a profile of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fsd_decoding.adaptive import SpeedBudget
from fsd_decoding.divergence import DIVERGENCE_VERSION
from fsd_decoding.profile.parts import ModelInfo
from fsd_decoding.profile.threshold_profile import ThresholdProfile

_NO_MODEL = ModelInfo(
    id="none", revision=None, fingerprint="none", vocab_size=1, dtype="float32", quantization=None, attention=None,
    kind="model",
)  # fmt: skip


@dataclass(frozen=True)
class Point:
    """What was measured at one T; None stands for `sd`."""

    threshold: float | None
    tokens_per_round: float
    tokens_per_second: float


def profile_of(
    points: Sequence[Point], threshold: float, draft_length: int, target: ModelInfo = _NO_MODEL,
    draft: ModelInfo = _NO_MODEL, tokenizer: str = "none",
) -> ThresholdProfile:  # fmt: skip
    """Returns a profile without measured accuracies, which budgets do not read; `points` begin with `sd`."""
    chosen = next(p for p in points if p.threshold == threshold)
    arm = {"divergence": "js", "draft_length": draft_length}
    untested: dict[str, Any] = {"accuracy": 0.0, "retention": 0.0, "lower_bound": None, "source": "tuning"}
    curve = [
        {
            "setting": {**arm, "rule": "sd" if p.threshold is None else "fsd-coupled", "threshold": p.threshold},
            **untested,
            "problems": 100,
            "tokens_per_round": p.tokens_per_round,
            "forecast": p.tokens_per_second,
        }
        for p in points
    ]
    counts = dict.fromkeys(("both_right", "lost", "gained", "both_wrong"), 0)
    unknown = dict.fromkeys(("wanted", "retention", "lower_bound"))
    # The target's own speed is not measured; budgets do not read it. This is a token per round of sd.
    alone = points[0].tokens_per_second / points[0].tokens_per_round
    speeds = {"target": alone, "sd": points[0].tokens_per_second, "chosen": chosen.tokens_per_second}
    values: dict[str, Any] = {
        "created": datetime.now(UTC), "outcome": "untested", "task": "budgets", "target": target, "draft": draft,
        "data": {"source": "measured here", "fingerprint": "none", "split": "given", "tuning": 0, "certification": 0},
        "tokenizer": tokenizer, "rule": "fsd-coupled", **arm, "divergence_version": DIVERGENCE_VERSION,
        "logits": "raw", "threshold": threshold, "sampling": {"temperature": 0.0, "top_k": None, "top_p": None},
        "seed": 0, "lossy": True, "curve": curve, "accuracy": {"target": 0.0, "chosen": 0.0},
        "certificate": {"counts": counts, "problems": 0, **unknown, "certified": False, "confidence": 0.95,
                        "method": "none", "guarantee": "none"},
        "tokens_per_round": {"sd": points[0].tokens_per_round, "chosen": chosen.tokens_per_round},
        "speed": {**speeds, "forecast": speeds, "batch": 1, "timed": 1},
        "estimate": None, "device": "cpu", "dtype": "float32", "versions": {},
    }  # fmt: skip
    return ThresholdProfile.model_validate(values).sealed()


@dataclass(frozen=True)
class Law:
    """How T determines acceptance: a token after accepted ones is accepted with a probability that rises with T."""

    draft_length: int = 10
    lossless: float = 0.4  # acceptance probability at T = 0
    loosest: float = 0.95  # its limit for large T
    half: float = 0.1  # T half way between

    def acceptance(self, threshold: float) -> float:
        """Returns the probability that a drafted token is accepted."""
        t = max(threshold, 0.0)
        return self.lossless + (self.loosest - self.lossless) * t / (t + self.half)

    def tokens(self, threshold: float) -> float:
        """Returns the mean number of tokens per round."""
        a = self.acceptance(threshold)
        return float((1 - a ** (self.draft_length + 1)) / (1 - a))

    def draw(self, threshold: float, rows: int, random: np.random.Generator) -> NDArray[np.int64]:
        """Draws the tokens that each row gets in a round, (rows,)."""
        run = random.geometric(1 - self.acceptance(threshold), rows)
        return np.minimum(run, self.draft_length + 1)

    def profile(self, thresholds: Sequence[float], threshold: float, seconds: float) -> ThresholdProfile:
        """Returns the profile of a machine whose rounds take `seconds` at each T."""
        lossless = Point(None, self.tokens(-1.0), self.tokens(-1.0) / seconds)
        points = [Point(t, self.tokens(t), self.tokens(t) / seconds) for t in thresholds]
        return profile_of([lossless, *points], threshold, self.draft_length)


@dataclass(frozen=True)
class History:
    """What each round gave, (rounds,) each."""

    tokens: NDArray[np.float64]  # of one stream
    seconds: NDArray[np.float64]
    thresholds: NDArray[np.float64]

    def speed(self, rounds: slice = slice(None)) -> float:
        """Returns tokens per second of one stream."""
        return float(self.tokens[rounds].sum() / self.seconds[rounds].sum())


def simulate(
    budget: SpeedBudget, law: Law, seconds: Callable[[int], float], rounds: int, rows: int, seed: int
) -> History:  # fmt: skip
    """Simulates rounds under a budget; the n-th takes seconds(n) on average, and up to 20 % more or less."""
    random = np.random.default_rng(seed)
    history = np.zeros((3, rounds))
    for n in range(rounds):
        threshold = float(budget.current)
        kept, took = law.draw(threshold, rows, random), seconds(n) * random.uniform(0.8, 1.2)
        budget.learn(torch.from_numpy(kept), took)
        history[:, n] = kept.mean(), took, threshold
    return History(*history)
