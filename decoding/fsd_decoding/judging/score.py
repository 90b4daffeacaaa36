"""The score "judge": P(this mismatch changes the outcome), by a learned model; T is the most that is kept.

A judge is known by its number, which follows from the whole model: profiles hold the model itself, and other processes
find it in the user's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fsd_common.errors import UsageError
from fsd_common.user_folders import keep, kept
from fsd_decoding.judging.features import features_of
from fsd_decoding.judging.model import JudgeModel, OnDevice
from fsd_decoding.models.fingerprint import model_fingerprint, tokenizer_fingerprint
from fsd_decoding.scores import LEARNED, Score, Seen
from fsd_decoding.tensors import argmax

_FOLDER = "judges"
_known: dict[str, JudgeModel] = {}


class Judge(Score):
    """P(putting x for the target's token changes the outcome), of AutoJudge's kind (arXiv 2504.20039).

    Where x is the target's likeliest token nothing is changed, and the score is 0.
    """

    on = "raw"
    reads_draft = True
    judges_trees = False

    def __init__(self, written: str, values: Sequence[float]) -> None:
        super().__init__(written, values)
        self.model = model_named(written)
        self._on: dict[torch.device, OnDevice] = {}

    def of(self, seen: Seen) -> Tensor:
        if self.model.reads_context and seen.before is None:
            raise UsageError(
                f"score {self.written!r} reads the token before a drafted one, which is not shown here; train a judge "
                "without context"
            )
        device = seen.target_logits.device
        if device not in self._on:
            self._on[device] = self.model.on(device)
        numbers = self._on[device]
        harmful = numbers.logit(features_of(seen, numbers.classes, self.model.features)).sigmoid()
        return harmful.masked_fill(seen.drafted == argmax(seen.target_logits), 0.0)


def register(model: JudgeModel) -> str:
    """Makes a judge known by its name, which it returns, here and in processes of this user."""
    if model.name not in _known:
        _known[model.name] = model
        keep(f"{_FOLDER}/{model.name}", model.model_dump_json())
    return model.name


def model_named(name: str) -> JudgeModel:
    """Returns the judge of a name. UsageError: none is known by it."""
    if name not in _known:
        text = kept(f"{_FOLDER}/{name}") if name.partition("@")[2].isdecimal() else None
        if text is None:
            raise UsageError(
                f"score {name!r:.60} is not known here: {LEARNED!r} is learned, so give its model (--judge FILE, or "
                "--judge auto to train one), or a profile that holds it"
            )
        _known[name] = JudgeModel.parsed(text, f"what is kept of {name!r}")
    return _known[name]


@cache
def judge_named(name: str) -> Judge:
    """Returns the score of a name. UsageError: none is known by it."""
    return Judge(name, ())


def is_judge(score: str) -> bool:
    """Whether a name is that of a judge, whichever it is."""
    return score.partition("@")[0] == LEARNED


def check_judge(model: JudgeModel, target: Any, draft: Any, tokenizer: Any, temperature: float) -> None:
    """Checks that a judge suits loaded models and their sampling.

    Raises:
        UsageError: it was trained for another target, draft or tokenizer, or at another temperature.
    """
    for role, then, now in (("target", model.target, target), ("draft", model.draft, draft)):
        if (found := model_fingerprint(now)) != then:
            raise UsageError(
                f"the judge was trained for a {role} with fingerprint {then[:12]}, and this {role} has {found[:12]}; "
                "load that model, or train a judge for this one"
            )
    if tokenizer_fingerprint(tokenizer) != model.tokenizer:
        raise UsageError("the judge was trained with another tokenizer; load its models, or train another judge")
    if temperature != model.temperature:
        raise UsageError(
            f"the judge was trained at temperature {model.temperature:g}, and this decodes at {temperature:g}; train "
            "one at that"
        )
