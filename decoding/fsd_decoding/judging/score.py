"""The score "judge": P(this mismatch changes the outcome), by a learned model; T is the most that is kept.

A judge is known by its number, which follows from the whole model: profiles hold the model itself, and what is pickled
takes it along.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fsd_common.errors import UsageError
from fsd_decoding.graphs.callers import in_graph
from fsd_decoding.judging.features import PAST, TABLE, Features
from fsd_decoding.judging.known import model_named, register
from fsd_decoding.judging.model import JudgeModel
from fsd_decoding.judging.on_device import OnDevice, unpacked_classes
from fsd_decoding.policies.markers import Automaton, automaton
from fsd_decoding.sampling import SETTINGS, Sampling
from fsd_decoding.scores import Score, Seen
from fsd_decoding.tensors import argmax


class Judge(Score):
    """P(putting x for the target's token changes the outcome), of AutoJudge's kind (arXiv 2504.20039).

    Greedily nothing is changed where x is the target's likeliest token, and the score is 0. With sampling y may be
    another token all the same; labels have such mismatches, so they are judged as any other.
    """

    on = "raw"
    reads_draft = True
    judges_trees = False

    def __init__(self, written: str, values: Sequence[float]) -> None:
        super().__init__(written, values)
        self.model = model_named(written)
        if unknown := [name for name in self.model.features if name not in TABLE]:
            raise UsageError(f"{written} reads feature {unknown[0]!r:.60}, which is not known here; upgrade fsd-calib")
        self.reads_context = any(TABLE[name].context for name in self.model.features)
        self.reads_past = not set(PAST).isdisjoint(self.model.features)
        self._on: dict[torch.device, tuple[Features, OnDevice]] = {}

    def __reduce__(self) -> tuple[Callable[..., Score], tuple[object, ...]]:
        """Pickles the model, which another process may not know."""
        return judge_of, (self.model,)

    def of(self, seen: Seen) -> Tensor:
        shown = (seen.before, seen.places, *([seen.past] if self.reads_past else []))
        if self.reads_context and None in shown:
            raise UsageError(
                f"score {self.written!r} reads the text before a drafted token, which is not shown here; calibrate "
                "with --judge auto, whose judges do not"
            )
        if self.model.temperature > 0:
            return self._harmful(seen)
        differs = seen.drafted != argmax(seen.target_logits)
        if differs.device.type != "cpu" or in_graph():  # where to look for them would have to be waited for
            return self._harmful(seen).masked_fill(~differs, 0.0)
        found, places = differs.float(), differs.nonzero(as_tuple=True)
        if len(places[0]):
            found[places] = self._harmful(seen.at(places))
        return found

    def _harmful(self, seen: Seen) -> Tensor:
        """P(harmful) of every token, by raw logits: (…)."""
        device = seen.target_logits.device
        if device not in self._on:
            model, classes = self.model, unpacked_classes(self.model, seen.target_logits.shape[-1]).to(device)
            numbers = OnDevice.of(model.offset, model.line, model.trees, device)
            self._on[device] = Features(classes, model.features), numbers
        features, numbers = self._on[device]
        return numbers.logit(features(seen)).sigmoid()

    def check(self, target: str, draft: str, tokenizer: str, sampling: Sampling) -> None:
        """Checks that it suits models and their sampling.

        Args:
            target, draft, tokenizer: fingerprints.

        Raises:
            UsageError: it was trained for another target, draft or tokenizer, or with other sampling.
        """
        own = self.model
        for role, then, now in (("target", own.target, target), ("draft", own.draft, draft)):
            if then != now:
                raise UsageError(
                    f"score {self.written} was trained for a {role} with fingerprint {then[:12]}, and this {role} has "
                    f"{now[:12]}; load that model, or train a judge for this one"
                )
        if tokenizer != own.tokenizer:
            raise UsageError(f"score {self.written} was trained with another tokenizer; train a judge for this one")
        for name in SETTINGS:
            if (now := getattr(sampling, name)) != (then := getattr(own, name)):
                raise UsageError(
                    f"score {self.written} was trained with {name} {then}, and this decodes with {now}; train a judge "
                    "for that"
                )


def reading_of(score: Score, tokenizer: Any) -> Automaton | None:
    """Returns what reads the phase that a score depends on; None: it depends on none, or its texts have none."""
    phase = score.model.phase if isinstance(score, Judge) else None
    return None if phase is None else automaton(tokenizer, phase)


def judge_of(model: JudgeModel) -> Judge:
    """Returns the score of a model, which is known from now on."""
    return judge_named(register(model))


@cache
def judge_named(name: str) -> Judge:
    """Returns the score of a name. UsageError: none is known by it."""
    return Judge(name, ())
