"""The facts of a predictor: what it was trained on, for what use, and its quality; checked against models at hand."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from fsd_collectors.collection.measures import Width
from fsd_collectors.manifest import Manifest
from fsd_collectors.replay.cases import REPLAYABLE, replayable
from fsd_common.addons import Addon
from fsd_common.errors import UsageError
from fsd_common.packed_ids import PATTERN, unpack_ids
from fsd_decoding.models.fingerprint import tokenizer_fingerprint
from fsd_decoding.profile.parts import Count, ModelInfo, Natural, Part, SamplingInfo, Share
from fsd_decoding.scores import SCORES_VERSION


class Problems(Part):
    """Number of problems in each part; the parts are disjoint."""

    training: Natural
    calibration: Natural
    evaluation: Natural


class Quality(Part):
    """Quality of one forecast at one threshold, on the evaluation problems.

    Args:
        forecast: "a", that a drafted token is accepted; "b", that the next one would be; "S", that all of a draft's
            tokens so far are.
        rows: number of forecasts.
        accepted: share of them that came true.
        auc: AUC of the forecast; None where all rows are of one class.
        probability_auc: AUC of q(x) on the same rows, for S of the product of q(x), in the direction, high or low, that
            is better on them.
        entropy_auc: the same of q's entropy, for S of the sum of entropies.
        error: expected calibration error.
    """

    forecast: Literal["a", "b", "S"]
    score: str
    threshold: float
    rows: Natural
    accepted: Share
    auc: Share | None
    probability_auc: Share | None
    entropy_auc: Share | None
    error: Share


class HiddenInfo(Part):
    """The draft's last hidden state as rows hold it.

    Args:
        width: number of its components.
        seed: seed of the random projection to this width; None where the state is kept whole.
    """

    width: Natural
    seed: int | None

    @property
    def setting(self) -> Width:
        """The argument `hidden` of `collect_traces` that keeps this state."""
        return "whole" if self.seed is None else self.width

    def check(self, manifest: Manifest) -> None:
        """Raises UsageError where the traces do not hold this state."""
        if self != hidden_of(manifest):
            seed = "" if self.seed is None else f" with seed {self.seed}"
            raise UsageError(
                f"the predictor reads the draft's hidden state (hidden={self.setting!r}{seed}), these traces hold "
                f"{'another' if manifest.hidden else 'none'}; collect some with hidden={self.setting!r}{seed}, or use "
                "a predictor trained without it"
            )


def hidden_of(manifest: Manifest) -> HiddenInfo | None:
    """Returns the hidden state that the traces hold, or None where they hold none."""
    if not manifest.hidden:
        return None
    return HiddenInfo(width=manifest.hidden, seed=manifest.seed if manifest.projected else None)


class PredictorFacts(Part):
    """The facts of a predictor.

    `scores_version`, `addons`, `on`, `target`, `draft`, `tokenizer`, `eos`, `sampling` and `task` are those of
    the traces, see `fsd_collectors.manifest.Manifest`.

    Args:
        kind: kind of both models, a key of `models.registry.MODELS`.
        rule: acceptance rule it was trained for.
        scores: scores it was trained for.
        traces: id of the traces' run.
        seed: seed of the training.
        problems: number of problems in each part.
        trained: ids of all these problems, as `pack_ids` encodes them.
        rows: number of training rows by role.
        features: names of the features by role.
        hidden: the draft's hidden state, where the models read it after their features.
        parameters: tuned settings by role.
        reached: quality on the evaluation problems.
        falling: number of forecasts that fall as T rises, of 10,000 random rows for each model.
        versions: versions of Python and of the libraries.
    """

    kind: str
    rule: str
    scores: tuple[str, ...]
    scores_version: int
    addons: tuple[Addon, ...] = ()
    on: Literal["raw", "processed"]
    target: ModelInfo
    draft: ModelInfo
    tokenizer: str
    eos: tuple[int, ...]
    sampling: SamplingInfo
    task: str
    traces: str
    seed: int
    problems: Problems
    trained: Annotated[str, Field(pattern=PATTERN)]
    rows: dict[str, Natural]
    features: dict[str, tuple[str, ...]]
    hidden: HiddenInfo | None = None
    parameters: dict[str, dict[str, Any]]
    reached: tuple[Quality, ...]
    falling: Count
    versions: dict[str, str]

    @property
    def trained_ids(self) -> frozenset[int]:
        """Ids of the problems it was trained on."""
        return unpack_ids(self.trained)

    def check(self, target: ModelInfo, draft: ModelInfo, tokenizer: Any, rule: str, score: str) -> None:
        """Raises UsageError where it was trained for other models, another tokenizer, rule, score or version."""
        for role, then, now in (("target", self.target, target), ("draft", self.draft, draft)):
            if then.fingerprint != now.fingerprint:
                raise UsageError(
                    f"the predictor's {role} is {then.id!r} with fingerprint {then.fingerprint[:12]}, this {role} "
                    f"has {now.fingerprint[:12]}; load that model, or train again"
                )
        if tokenizer_fingerprint(tokenizer) != self.tokenizer:
            raise UsageError("the predictor was trained with another tokenizer; load its models, or train again")
        if not self._serves(rule):
            raise UsageError(f"the predictor is for rule {self.rule!r}, not {rule!r}; train one for it")
        if score not in self.scores:
            raise UsageError(f"the predictor knows scores {', '.join(self.scores)}, not {score!r}; train one for it")
        check_version("the predictor's", self.scores_version, "train again")
        for each in self.addons:
            if each.name == score.partition("@")[0]:
                each.require("the predictor")

    def _serves(self, rule: str) -> bool:
        """Returns whether the rule is the predictor's own, or the lossless rule that it equals at T < 0."""
        same = rule in REPLAYABLE and replayable(rule).exact == replayable(self.rule).exact
        return rule == self.rule or (same and not replayable(rule).fuzzy)


def check_version(owner: str, version: int, way_out: str) -> None:
    """Raises UsageError where scores were computed by another version of the formulas."""
    if version != SCORES_VERSION:
        raise UsageError(f"{owner} scores are version {version}, these are version {SCORES_VERSION}; {way_out}")


def facts_of_manifest(manifest: Manifest) -> dict[str, Any]:
    """Returns the facts that come from the traces."""
    return {
        "scores_version": manifest.scores_version,
        "addons": manifest.addons,
        "on": manifest.on,
        "target": manifest.target,
        "draft": manifest.draft,
        "tokenizer": manifest.tokenizer,
        "eos": manifest.eos,
        "sampling": manifest.sampling,
        "task": manifest.task.name,
        "traces": manifest.run,
    }
