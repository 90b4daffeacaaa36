"""What judges a round, beside each other: a score over a lossless rule, and rules that decide by themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from fsd_decoding.proposal import Proposal, Verdict
from fsd_decoding.rules import RULES
from fsd_decoding.scores import Fly, score_named, scores_of

GREEDY = ("js", "doubt", "tv", "kl_qp", "gated-js@0.9", "margin", "relaxed@10", "fly@2", "fly@6", "typical")
SAMPLED = (*GREEDY, "cactus", "accept-threshold", "posterior@0.4")
"""The scores that are compared. Those in the second line alone read the random number of the exact test, or are of
engines that change nothing in greedy decoding."""
WEIGHTS = (0.9, 0.8, 0.7, 0.5)  # of `ensemble`, whose texts hold for no interval of T


class Judge(NamedTuple):
    """A lossless rule with a score, or a rule that decides by itself.

    Args:
        rule: the lossless rule, or the other one.
        score: a name; None: the rule decides by itself.
        threshold: of a rule without a score, if it has one.
    """

    rule: str
    score: str | None = None
    threshold: float | None = None

    def __str__(self) -> str:
        if self.threshold is not None:
            return f"{self.rule} w = {1 - self.threshold:g}"
        return self.score or self.rule


@dataclass(frozen=True)
class Judged:
    """What judges say of the drafted tokens of B rows.

    Args:
        kept, fallback: (B, rules, L) of each rule, see `Verdict`.
        scores: (B, scores, L), infinite where no T keeps.
    """

    kept: Tensor
    fallback: Tensor
    scores: Tensor


@dataclass(frozen=True)
class Panel:
    """Judges of the same rounds.

    Args:
        base: the lossless rule that the scores stand on.
        scores: names.
        others: rules that decide by themselves.
        thresholds: the T of each score whose texts are asked for, rising; None: all that there are.
    """

    base: str
    scores: tuple[str, ...]
    others: tuple[Judge, ...] = ()
    thresholds: tuple[tuple[float, ...], ...] | None = None

    @classmethod
    def at(cls, temperature: float) -> Panel:
        """All rules that mean something at a temperature. Greedily the lossless rules are one."""
        mixtures = tuple(Judge("ensemble", threshold=round(1 - weight, 3)) for weight in WEIGHTS)
        if temperature == 0.0:
            return cls("coupled", GREEDY, mixtures)
        return cls("sd", SAMPLED, (Judge("coupled"), Judge("sd-block"), *mixtures))

    @cached_property
    def judges(self) -> tuple[Judge, ...]:
        """The base alone, the base with each score, and the others."""
        return (Judge(self.base), *(Judge(self.base, score) for score in self.scores), *self.others)

    @property
    def lossless(self) -> list[Judge]:
        """Those that keep the target's distribution."""
        return [judge for judge in self.judges if judge.score is None and RULES[judge.rule].lossless == judge.rule]

    def following(self, judge: Judge, end: float) -> float | None:
        """The T of the text after one that holds below `end`; None: there is none."""
        if judge.score is None or end == math.inf:
            return None
        if self.thresholds is None:
            return end
        return next((each for each in self.thresholds[self.scores.index(judge.score)] if each >= end), None)

    def place(self, judge: Judge) -> tuple[int, int | None]:
        """The judge's rule and score by their places in `Judged`; None: it has no score."""
        if judge.score is not None:
            return 0, self.scores.index(judge.score)
        return (0 if judge.rule == self.base else 1 + self.others.index(judge)), None

    def judge(self, proposal: Proposal) -> Judged:
        """Judges a round by all of them."""
        verdicts = [self._verdict(judge, proposal) for judge in (Judge(self.base), *self.others)]
        found = scores_of(self.scores, "raw", proposal.seen)
        windows = {name: score_named(name).window for name in self.scores}
        for name, window in windows.items():
            if window:
                found[name] = found[name].masked_fill(~proposal.followed(verdicts[0].accepted, window), math.inf)
        shape = proposal.drafted.shape
        scores = [found[name].double() for name in self.scores]
        return Judged(
            torch.stack([verdict.accepted for verdict in verdicts], 1),
            torch.stack([verdict.fallback for verdict in verdicts], 1),
            torch.stack(scores, 1) if scores else torch.zeros((shape[0], 0, shape[1])),
        )

    def _verdict(self, judge: Judge, proposal: Proposal) -> Verdict:
        if judge.threshold is not None:
            proposal = replace(proposal, thresholds=torch.full_like(proposal.thresholds, judge.threshold))
        return RULES[judge.rule].judge(proposal)


class Default(NamedTuple):
    """A value of an engine's knob: what it does by default, or where it has none, what it is shown with.

    Args:
        engine: and its version, where that is known.
        knob: as the engine writes it.
        judge, threshold: what that is here.
    """

    engine: str
    knob: str
    judge: Judge
    threshold: float


def defaults(panel: Panel, draft_length: int) -> Sequence[Default]:
    """Returns the values of engines' knobs that a panel has a judge for.

    Sources, as read in November 2026: vLLM 0.33's `SpeculativeConfig`; Modular's MAX, `SpeculativeConfig`, the values
    with which TensorRT-LLM's documentation shows it (its own are 1 and 0, which is exact), and ATOM's constants;
    Medusa's `medusa_generate`; vllm-ascend's `RejectionSamplerConfig`; the README of Cactus; transformers' guide.
    """
    window = min(6, draft_length - 1)
    fly = score_named(f"fly@{window}")
    assert isinstance(fly, Fly)
    known: Mapping[str, tuple[tuple[str, str, float], ...]] = {
        f"fly@{window}": (("vLLM, FLy", "fly_entropy_threshold 0.3", fly.most - 0.3),),
        "relaxed@10": (("TensorRT-LLM, MAX, ATOM", "relaxed_topk 10, relaxed_delta 0.6", 0.6),),
        "typical": (("Medusa", "posterior_threshold 0.09", 1 - 0.09),),
        "posterior@0.4": (("vllm-ascend", "posterior_threshold 0.95, posterior_alpha 0.4", 1 - 0.95),),
        "cactus": (("Cactus", "delta 1", 1.0),),
    }
    found = [
        Default(engine, knob, Judge(panel.base, score), threshold)
        for score in panel.scores
        for engine, knob, threshold in known.get(score, ())
    ]
    weight = Judge("ensemble", threshold=0.3)
    return [*found, Default("transformers", "assistant_ensemble_weight 0.7", weight, 0.3)]
