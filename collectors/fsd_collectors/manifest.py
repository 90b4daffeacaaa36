"""manifest.json: what a run of traces was collected from, and how.

Knows facts that hold for the whole run. Which shards there are is `shards.jsonl`, see `listing.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal, Self

from fsd_collectors.schema import SCHEMA_VERSION
from fsd_decoding.acceptance.proposal import Logits
from fsd_decoding.divergence import DIVERGENCE_VERSION
from fsd_decoding.profile.parts import Count, ModelInfo, Natural, Part, SamplingInfo

Way = Literal["along-target", "on-policy"]


class TaskInfo(Part):
    """`fingerprint` is of all questions and references, in order; `prompts` of what the models are given to read for
    each, and of its part. A chat template that tells the date makes other prompts of the same questions."""

    name: str
    source: str
    fingerprint: str
    prompts: str
    problems: Natural
    max_new_tokens: Natural
    stop: tuple[str, ...]


class Policy(Part):
    """The rule that on-policy traces were decoded under. `threshold` is text, since JSON knows no infinity."""

    rule: str
    divergence: str
    threshold: str
    draft_length: Natural
    within_support: bool


class Manifest(Part):
    """Two runs with equal manifests make equal rows on one machine."""

    schema_version: Literal[1] = SCHEMA_VERSION  # type: ignore[assignment]
    divergence_version: int = DIVERGENCE_VERSION
    way: Way
    policy: Policy | None  # None: along the target
    target: ModelInfo
    draft: ModelInfo
    tokenizer: str  # its fingerprint
    eos: tuple[int, ...]  # tokens that end a text, rising
    task: TaskInfo
    sampling: SamplingInfo
    seed: int
    divergences: tuple[str, ...]
    on: Logits  # the logits that divergences are computed on
    hidden: Count  # width of the draft's hidden state in the rows, 0: not kept
    projected: bool  # the state was projected to that width
    batch_size: Natural
    portion: Natural  # problems a shard
    device: str
    versions: dict[str, str]

    @property
    def run(self) -> str:
        """The run's id: 12 hex digits of the SHA-256 of everything here."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:12]

    @property
    def portions(self) -> int:
        """Shards of the finished run."""
        return -(-self.task.problems // self.portion)

    def difference(self, other: Self) -> str | None:
        """The first fact that differs, in words; None where all agree."""
        return _difference(self.model_dump(), other.model_dump())


def _difference(mine: Mapping[str, Any], theirs: Mapping[str, Any], whose: str = "") -> str | None:
    for name, fact in mine.items():
        other = theirs.get(name)
        if fact == other:
            continue
        if isinstance(fact, dict) and isinstance(other, dict) and fact.keys() == other.keys():
            return _difference(fact, other, f"{name}.")
        return f"{whose}{name} {other!r:.80}, not {fact!r:.80}"
    return None
