"""The parts of a profile: small records, each sure that its own numbers agree.

Knows what a number may be and which ones contradict each other. `profile.py` puts the parts together.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Source = Literal["tuning", "certification"]
Count = Annotated[int, Field(ge=0)]
Natural = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Amount = Annotated[float, Field(ge=0)]
Confidence = Annotated[float, Field(gt=0, lt=1)]


class Part(BaseModel):
    """Immutable, nothing unknown, no NaN and no infinity: the file stays plain JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataInfo(Part):
    """The problems. `split`: how they came to their parts; then how many each part holds."""

    source: str
    fingerprint: str
    split: Literal["content-hash", "given"]
    tuning: Count
    certification: Count


class ModelInfo(Part):
    """One model. `fingerprint` is `fingerprint.model_fingerprint`; `revision` the hub's commit, if any."""

    id: str
    revision: str | None
    fingerprint: str
    vocab_size: Natural
    dtype: str

    @classmethod
    def of(cls, model: Any) -> ModelInfo:
        """What a loaded causal LM is."""
        from fsd_decoding.fingerprint import model_fingerprint

        return cls(
            id=model.config._name_or_path,
            revision=getattr(model.config, "_commit_hash", None),
            fingerprint=model_fingerprint(model),
            vocab_size=model.get_output_embeddings().weight.shape[0],
            dtype=str(model.dtype).removeprefix("torch."),
        )


class SamplingInfo(Part):
    """temperature 0 is greedy."""

    temperature: Amount
    top_k: Natural | None
    top_p: Annotated[float, Field(gt=0, le=1)] | None
    min_p: Annotated[float, Field(gt=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] = 1.0


class Counts(Part):
    """Paired outcomes of target alone and of the fuzzy rule on the same problems (DESIGN section 10)."""

    both_right: Count
    lost: Count
    gained: Count
    both_wrong: Count

    @property
    def total(self) -> int:
        return self.both_right + self.lost + self.gained + self.both_wrong


class CurvePoint(Part):
    """One configuration, measured on one part. `threshold` None: the rule has none (`target`, `sd`).

    `lower_bound` bounds retention from below at the certificate's confidence; `counts` are what it was
    computed from. Both only where the point was decoded on the certification part.
    """

    rule: str
    divergence: str
    draft_length: Natural
    threshold: Amount | None
    accuracy: Share
    retention: Amount
    lower_bound: Amount | None
    tokens_per_round: Amount
    tokens_per_second: Amount | None
    problems: Natural
    source: Source
    counts: Counts | None = None

    @model_validator(mode="after")
    def _bounds_need_certification(self) -> Self:
        if self.lower_bound is not None and self.source != "certification":
            raise ValueError("a point measured on the tuning part has no lower_bound")
        if self.counts is not None and self.counts.total != self.problems:
            raise ValueError(f"the counts add up to {self.counts.total}, problems says {self.problems}")
        return self


class Certificate(Counts):
    """What the certification part showed, of the chosen configuration, or of the safest where none passed.

    wanted: what --min-acc asked for; None for --min-speed, where `certified` says that `lower_bound` was
    computed on problems that the choice never saw. `retention` and `lower_bound` None: nothing was
    decoded there.
    """

    certified: bool
    wanted: Annotated[float, Field(gt=0)] | None
    retention: Amount | None
    lower_bound: Amount | None
    confidence: Confidence
    problems: Count
    method: str

    @model_validator(mode="after")
    def _counts_agree(self) -> Self:
        if self.total != self.problems:
            raise ValueError(f"the counts add up to {self.total}, problems says {self.problems}")
        right = self.both_right + self.lost
        kept = (self.both_right + self.gained) / right if right else None
        if self.retention is not None and (kept is None or abs(self.retention - kept) > 1e-6):
            raise ValueError(f"retention is {self.retention}, the counts make it {kept}")
        return self

    @model_validator(mode="after")
    def _certified_needs_a_bound(self) -> Self:
        if self.certified and self.lower_bound is None:
            raise ValueError("certified, but without a lower_bound")
        if self.certified and self.wanted is not None and (self.lower_bound or 0.0) < self.wanted:
            raise ValueError(f"certified, but lower_bound {self.lower_bound} is below wanted {self.wanted}")
        return self


class Accuracy(Part):
    """Shares of right answers on the certification part."""

    target: Share
    chosen: Share


class TokensPerRound(Part):
    """On the certification part."""

    sd: Amount
    chosen: Amount


class Speed(Part):
    """Tokens a round on the certification part over the median time of a round, with `batch` prompts at a
    time, of `timed` problems; `wanted` is what --min-speed asked for."""

    target: Amount
    sd: Amount
    chosen: Amount
    batch: Natural
    timed: Natural
    wanted: Annotated[float, Field(gt=0)] | None = None
    unit: str = "tokens/s"


class Estimate(Part):
    """Where nothing was granted: the safest configuration tested, or the fastest where speed was asked for. It is
    no claim, and no decoder uses it."""

    threshold: Amount
    retention: Amount
    lower_bound: Amount | None
