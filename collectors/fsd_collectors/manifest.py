"""manifest.json: the models, task and settings of a run of traces."""

from __future__ import annotations

import hashlib
from typing import Any, Literal, Self

from fsd_collectors.schema import SCHEMA_VERSION, Column, label_tables, tables_of
from fsd_common.addons import Addon
from fsd_common.digests import difference
from fsd_decoding.profile.parts import Count, ModelInfo, Natural, Part, SamplingInfo
from fsd_decoding.scores import SCORES_VERSION

_WHERE_FROM = {"target": {"id", "revision"}, "draft": {"id", "revision"}, "task": {"name", "source"}}
_DECISIVE = ("torch", "transformers", "engine")  # the versions that rows may depend on

Way = Literal["along-target", "on-policy", "serving", "labels"]
LabelMode = Literal["outcome", "self"]
Swaps = Literal["left-to-right", "single"]


class TaskInfo(Part):
    """The task of a run; in serving, that of the profile.

    `fingerprint` covers all questions and references in order. `prompts` covers each problem's prompt and part: a chat
    template that contains the date makes other prompts from the same questions. In serving nobody knows the problems
    before they are asked: `fingerprint` is the profile's digest, `prompts` is empty, and `problems` is the number of
    texts after which recording ends.
    """

    name: str
    source: str
    fingerprint: str
    prompts: str
    problems: Natural
    max_new_tokens: Natural
    stop: tuple[str, ...]


class Policy(Part):
    """The rule that texts were decoded under, but along the target. `threshold` is a string: JSON has no infinity."""

    rule: str
    score: str
    threshold: str
    draft_length: Natural
    within_support: bool


class Manifest(Part):
    """The facts of a run; runs with equal manifests have equal rows on the same machine."""

    schema_version: Literal[1] = SCHEMA_VERSION  # type: ignore[assignment]
    scores_version: int = SCORES_VERSION
    way: Way
    policy: Policy | None  # None: along the target
    target: ModelInfo
    draft: ModelInfo
    tokenizer: str  # its fingerprint
    eos: tuple[int, ...]  # ids of the tokens that end a text, sorted
    task: TaskInfo
    sampling: SamplingInfo
    seed: int
    scores: tuple[str, ...]
    addons: tuple[Addon, ...] = ()  # code that is not of fsd-calib, of these and of the policy
    on: Literal["raw", "processed"]  # the logits that scores are computed on
    hidden: Count  # width of the draft's hidden state in the rows; 0 where it is not kept
    projected: bool  # whether the state was projected to that width
    log_probs: Count = 0  # number of the likeliest tokens that rows hold of p and of q
    batch_size: Natural
    portion: Natural  # problems per shard; in serving at most
    device: str
    versions: dict[str, str]

    @property
    def run(self) -> str:
        """The run's id: the first 12 hex digits of the manifest's SHA-256."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:12]

    @property
    def tables(self) -> dict[str, tuple[Column, ...]]:
        """The columns of each table, in the order in which the tables are listed."""
        return tables_of(self.way, self.scores, self.hidden, self.log_probs)

    @property
    def vocabulary(self) -> int:
        """The number of tokens that both models have."""
        return min(self.target.vocab_size, self.draft.vocab_size)

    @property
    def portions(self) -> int:
        """Number of shards of the finished run."""
        return -(-self.task.problems // self.portion)

    @property
    def facts(self) -> dict[str, Any]:
        """All that the rows depend on, by which runs are compared.

        Models and tasks are known by their fingerprints, whatever place they were read from, and a device by its type.
        A seed counts where something is drawn.
        """
        facts = self.model_dump(exclude=_WHERE_FROM)
        drawn = self.sampling.temperature > 0 or self.projected
        return facts | {
            "seed": self.seed if drawn else None,
            "device": self.device.partition(":")[0],
            "versions": {name: version for name, version in self.versions.items() if name in _DECISIVE},
        }

    def difference(self, other: Self) -> str | None:
        """Returns the first of the `facts` that differs, in words, or None where all agree."""
        if not (found := difference(self.facts, other.facts)):
            return None
        name, own, others = found
        return f"{name} {others!r:.80}, not {own!r:.80}"


class LabelManifest(Manifest):
    """The facts of a run that labels mismatches of the target's texts.

    `task.problems` counts the tuning problems that there are; the run ends where the budget does.
    """

    mode: LabelMode
    swaps: Swaps
    budget: Natural  # labelled positions at most, when the run was begun; with a larger one it goes on
    per_problem: Natural | None  # the same of each problem; None: all of its mismatches
    features: tuple[str, ...]
    phase: tuple[str | int, str | int] | None = None  # the markers of the phase that features tell of; None: none

    @property
    def tables(self) -> dict[str, tuple[Column, ...]]:
        return label_tables(self.mode, self.features)

    @property
    def facts(self) -> dict[str, Any]:
        """All that the rows depend on but the budget: rows of a smaller one are sampled as known, too."""
        return {name: value for name, value in super().facts.items() if name != "budget"}
