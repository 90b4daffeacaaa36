"""What a predictor says of itself: what it was trained on, for what, and what it reached.

Knows the schema, and how to compare it with models in hand. Knows no model of acceptance and no files.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from fsd_collectors.collection.hidden_states import Width
from fsd_collectors.manifest import Manifest
from fsd_collectors.replay.cases import REPLAYABLE
from fsd_decoding.acceptance.proposal import Logits
from fsd_decoding.divergence import DIVERGENCE_VERSION
from fsd_decoding.errors import UsageError
from fsd_decoding.models.fingerprint import tokenizer_fingerprint
from fsd_decoding.profile.parts import Count, ModelInfo, Natural, Part, SamplingInfo, Share

SCHEMA_VERSION = 1  # raised when a reader of the one before would misunderstand
_BASE64 = r"^[A-Za-z0-9+/]*=*$"
_ID = "<i8"


class Problems(Part):
    """How many there are in each part; a problem is in one only."""

    training: Natural
    calibration: Natural
    evaluation: Natural


class Quality(Part):
    """How good one forecast is where the rule accepts by one threshold, on the evaluation part.

    forecast: "a", that a token is accepted, before it is drawn; "b", that the next one would be; "S", that all of a
        draft's tokens so far are. auc: of the forecast; probability_auc, entropy_auc: of q(x) and of q's entropy on
        the same rows, for S of their product and sum; None where all rows are of one class. error: expected
        calibration error.
    """

    forecast: Literal["a", "b", "S"]
    divergence: str
    threshold: float
    rows: Natural
    accepted: Share
    auc: Share | None
    probability_auc: Share | None
    entropy_auc: Share | None
    error: Share


class HiddenInfo(Part):
    """The draft's last hidden state, as rows hold it: `width` numbers. seed: of the projection to these; None: there
    is none, the state is whole."""

    width: Natural
    seed: int | None

    @property
    def asked(self) -> Width:
        """As `collect_traces` takes it."""
        return "whole" if self.seed is None else self.width

    def check(self, manifest: Manifest) -> None:
        """UsageError: the traces hold no such state."""
        if self != hidden_of(manifest):
            seed = "" if self.seed is None else f" with seed {self.seed}"
            raise UsageError(
                f"the predictor reads the draft's hidden state (hidden={self.asked!r}{seed}), these traces hold "
                f"{'another' if manifest.hidden else 'none'}; collect some with hidden={self.asked!r}{seed}, or use a "
                "predictor trained without it"
            )


def hidden_of(manifest: Manifest) -> HiddenInfo | None:
    """What the traces hold; None: nothing."""
    if not manifest.hidden:
        return None
    return HiddenInfo(width=manifest.hidden, seed=manifest.seed if manifest.projected else None)


class Facts(Part):
    """eos, sampling, on, divergence_version, tokenizer, target, draft: of the traces, see `Manifest`.

    traces: the run's id. trained: ids of all its `problems`, `packed`; None: an earlier version did not record them.
    hidden: the draft's state, where the models read it behind their features.
    parameters: what was found for each model. falling: of 10,000 random rows for each model, those whose forecast falls
    where T rises.
    """

    kind: str
    rule: str
    divergences: tuple[str, ...]
    divergence_version: int
    on: Logits
    target: ModelInfo
    draft: ModelInfo
    tokenizer: str
    eos: tuple[int, ...]
    sampling: SamplingInfo
    task: str
    traces: str
    seed: int
    problems: Problems
    trained: Annotated[str, Field(pattern=_BASE64)] | None = None
    rows: dict[str, Natural]
    features: dict[str, tuple[str, ...]]
    hidden: HiddenInfo | None = None
    parameters: dict[str, dict[str, Any]]
    reached: tuple[Quality, ...]
    falling: Count
    versions: dict[str, str]

    @model_serializer(mode="wrap")
    def _as_it_was(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without what an earlier version did not record: its fingerprint stays what profiles hold."""
        content: dict[str, Any] = whole(self)
        if self.trained is None:
            del content["trained"]
        return content

    @property
    def trained_ids(self) -> frozenset[int]:
        """Empty where they are not recorded."""
        return frozenset(np.frombuffer(base64.b64decode(self.trained or ""), _ID).tolist())

    def check(self, target: ModelInfo, draft: ModelInfo, tokenizer: Any, rule: str, divergence: str) -> None:
        """UsageError: it was trained on other models, another tokenizer, rule or divergence, or by other formulas."""
        for role, then, now in (("target", self.target, target), ("draft", self.draft, draft)):
            if then.fingerprint != now.fingerprint:
                raise UsageError(
                    f"the predictor's {role} is {then.id!r} with fingerprint {then.fingerprint[:12]}, this {role} "
                    f"has {now.fingerprint[:12]}; load that model, or train again"
                )
        if tokenizer_fingerprint(tokenizer) != self.tokenizer:
            raise UsageError("the predictor is of another tokenizer; load its models, or train again")
        if not self._serves(rule):
            raise UsageError(f"the predictor is for rule {self.rule!r}, not {rule!r}; train one for it")
        if divergence not in self.divergences:
            raise UsageError(
                f"the predictor knows divergences {', '.join(self.divergences)}, not {divergence!r}; train one for it"
            )
        check_version("the predictor's", self.divergence_version, "train again")

    def _serves(self, rule: str) -> bool:
        """Its own, and the one that this is where T < 0."""
        same = rule in REPLAYABLE and REPLAYABLE[rule].exact == REPLAYABLE[self.rule].exact
        return rule == self.rule or (same and not REPLAYABLE[rule].fuzzy)


def packed(ids: Iterable[int]) -> str:
    """Problems' ids, rising, as one text: a list would take a line of predictor.json for each."""
    return base64.b64encode(np.array(sorted(ids), _ID).tobytes()).decode()


def check_version(whose: str, version: int, way_out: str) -> None:
    """UsageError where divergences were computed by other formulas than these."""
    if version != DIVERGENCE_VERSION:
        raise UsageError(
            f"{whose} divergences are version {version}, these are version {DIVERGENCE_VERSION}; {way_out}"
        )


def of_manifest(manifest: Manifest) -> dict[str, Any]:
    """The facts that traces give."""
    return {
        "divergence_version": manifest.divergence_version,
        "on": manifest.on,
        "target": manifest.target,
        "draft": manifest.draft,
        "tokenizer": manifest.tokenizer,
        "eos": manifest.eos,
        "sampling": manifest.sampling,
        "task": manifest.task.name,
        "traces": manifest.run,
    }
