"""The parts of a profile: records that check that their numbers agree.

Speeds, costs and effort are in `costs.py`, points of the curve in `curve.py`; `threshold_profile.py` has the whole.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Count = Annotated[int, Field(ge=0)]
Natural = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Change = Annotated[float, Field(ge=-1, le=1)]  # difference of two shares
Amount = Annotated[float, Field(ge=0)]
Confidence = Annotated[float, Field(gt=0, lt=1)]
_ROUNDING = 1e-6  # tolerance between two ways to compute the same number


class Part(BaseModel):
    """An immutable record without unknown fields, NaN or infinity, so that the file is plain JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataInfo(Part):
    """The problems. `split`: how they were divided into parts; tuning, certification: number of problems in each."""

    source: str
    fingerprint: str
    split: Literal["content-hash", "given"]
    tuning: Count
    certification: Count


class ModelInfo(Part):
    """A model. `fingerprint`: by `model_fingerprint`. `revision`: commit on the hub, if any."""

    id: str
    revision: str | None
    fingerprint: str
    vocab_size: Natural
    dtype: str

    @classmethod
    def of(cls, model: Any, like: ModelInfo | None = None) -> ModelInfo:
        """Describes a loaded causal LM.

        Args:
            like: a record to compare it with: the fingerprint is of the version that this one's is of.
        """
        from fsd_decoding.models.fingerprint import fingerprint_like, model_fingerprint

        return cls(
            id=model.config._name_or_path,
            revision=getattr(model.config, "_commit_hash", None),
            fingerprint=model_fingerprint(model) if like is None else fingerprint_like(like.fingerprint, model),
            vocab_size=model.get_output_embeddings().weight.shape[0],
            dtype=str(model.dtype).removeprefix("torch."),
        )


class SamplingInfo(Part):
    """Sampling settings; temperature 0 is greedy."""

    temperature: Amount
    top_k: Natural | None
    top_p: Annotated[float, Field(gt=0, le=1)] | None
    min_p: Annotated[float, Field(gt=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] = 1.0


class Counts(Part):
    """Paired outcomes of the target alone and of the fuzzy rule on the same (problem, seed) pairs.

    lost: only the target alone was right. gained: only the fuzzy rule was right.
    """

    both_right: Count
    lost: Count
    gained: Count
    both_wrong: Count

    @property
    def total(self) -> int:
        return self.both_right + self.lost + self.gained + self.both_wrong


class Certificate(Counts):
    """Results on the certification part for one configuration: the chosen one, the one that passed but was no faster
    than `sd`, or the safest one if none passed.

    wanted: what --min-acc requested of `acc`; None if speed or the front was requested: then `certified` says that
        `lower_bound` was computed on problems that played no part in the choice.
    retention, lower_bound, accuracy, accuracy_lower_bound: of the configuration, each bound by itself at `delta`;
        None if nothing was decoded. `lower_bound` is always that of retention.
    attempt: how many times, including this one, problems of this part were used to decide. delta: the significance
        level of the test, at most (1 - confidence) * 6 / (pi^2 attempt^2). None: not recorded.
    seeds: noise seeds per problem; the counts are of (problem, seed) pairs.
    frozen: number of configurations that were frozen to be tested. If there were several, the bounds of the chosen one
        hold for it by itself and are not corrected for the choice. None: not recorded.
    lossless: the numbers are of lossless decoding (those of the target), which fulfils the request or failed to.
    harm, harm_upper_bound: share of the target's right answers that were lost, and its bound at `delta`.
    difference, difference_interval: accuracy minus the target's, and its two-sided interval at `confidence`.
    """

    certified: bool
    wanted: Annotated[float, Field(gt=0)] | None
    retention: Amount | None
    lower_bound: Amount | None
    confidence: Confidence
    problems: Count
    method: str
    acc: Literal["retention", "absolute"] = "retention"
    guarantee: Literal["population", "dataset", "none"] = "population"
    attempt: Natural | None = None
    delta: Confidence | None = None
    seeds: Natural = 1
    accuracy: Share | None = None
    accuracy_lower_bound: Share | None = None
    frozen: Natural | None = None
    lossless: bool = False
    harm: Share | None = None
    harm_upper_bound: Share | None = None
    difference: Change | None = None
    difference_interval: tuple[Change, Change] | None = None

    @property
    def level(self) -> float:
        """The significance level of the test."""
        return 1 - self.confidence if self.delta is None else self.delta

    @model_validator(mode="after")
    def _counts_agree(self) -> Self:
        check_total(self, self.problems, self.seeds)
        solved, right = self.both_right + self.gained, self.both_right + self.lost
        for name, count, whole in (
            ("retention", solved, right),
            ("accuracy", solved, self.total),
            ("harm", self.lost, right),
            ("difference", solved - right, self.total),
        ):
            value, counted = getattr(self, name), count / whole if whole else None
            if value is not None and (counted is None or abs(value - counted) > _ROUNDING):
                raise ValueError(f"{name} is {value}, but the counts give {counted}")
        return self

    @model_validator(mode="after")
    def _certified_needs_a_bound(self) -> Self:
        name = "lower_bound" if self.acc == "retention" else "accuracy_lower_bound"
        bound = self.lower_bound if self.acc == "retention" else self.accuracy_lower_bound
        if not self.certified:
            return self
        if self.guarantee == "none":
            raise ValueError("certified is true, but guarantee is 'none'")
        if bound is None:
            raise ValueError(f"certified is true, but {name} is null")
        if self.wanted is not None and bound < self.wanted:
            raise ValueError(f"certified is true, but {name} {bound} is below wanted {self.wanted}")
        return self

    @model_validator(mode="after")
    def _attempts_share_the_level(self) -> Self:
        if self.attempt is None or self.delta is None:
            return self
        most = (1 - self.confidence) * 6 / (math.pi * self.attempt) ** 2
        if self.delta > most * (1 + _ROUNDING):
            raise ValueError(f"delta is {self.delta}, but attempt {self.attempt} may be tested at {most:.6g} at most")
        return self


class Accuracy(Part):
    """Shares of right answers, on the certification part if anything was decoded there, else on the tuning part."""

    target: Share
    chosen: Share


class TokensPerRound(Part):
    """Tokens per round, on the same part as `Accuracy`."""

    sd: Amount
    chosen: Amount


class Estimate(Part):
    """A configuration without a guarantee, which no decoder uses. If nothing was certified: the safest one tested, or
    the fastest if speed was requested. If `sd` suffices: the one that was tested, or chosen without a test, and is no
    faster. `draft`: the id of the draft model if it is not the profile's own."""

    threshold: Amount
    retention: Amount
    lower_bound: Amount | None
    draft: str | None = None


class Truncation(Part):
    """How many of the `texts` whose accuracy was measured reached `max_new_tokens` tokens and may be cut short, of the
    target alone and of the chosen configuration."""

    max_new_tokens: Natural
    texts: Natural
    target: Count
    chosen: Count

    @model_validator(mode="after")
    def _no_more_than_there_are(self) -> Self:
        if max(self.target, self.chosen) > self.texts:
            raise ValueError(f"{max(self.target, self.chosen)} texts are truncated, but there are only {self.texts}")
        return self


class NumericalChurn(Part):
    """What the lossless rule changed compared with the target alone, by the last bits of floating point, in the
    decodings with the first seed. Differences between settings below the share of flipped outcomes are noise."""

    problems: Natural
    texts_changed: Count
    outcomes_flipped: Count

    @model_validator(mode="after")
    def _only_a_changed_text_flips(self) -> Self:
        if not self.outcomes_flipped <= self.texts_changed <= self.problems:
            raise ValueError(
                f"outcomes_flipped is {self.outcomes_flipped}, texts_changed {self.texts_changed} and problems "
                f"{self.problems}; each must be at most the next, as only a changed text flips an outcome"
            )
        return self


class AcceptanceInfo(Part):
    """Mean and standard deviation, over texts, of the acceptance rate: the accepted share of a text's drafted tokens,
    under the configuration that decoders of the profile run. Texts without drafted tokens do not count."""

    texts: Natural
    mean: Share
    deviation: Share


class RatesInfo(Part):
    """Tokens per second achieved on traces at rising T. `shares` holds T as logit(u), where u is the predictor's own
    share of drafted tokens accepted at T."""

    shares: tuple[float, ...]
    tokens_per_second: tuple[Amount, ...]


class EarlyStopInfo(Part):
    """The acceptance predictor that ends drafts early, and its cost model (see docs/predictor.md).

    predictor: its folder, relative to the profile's. fingerprint: of its files. draft_step, verify, position: seconds
    c of a draft step, v of verification and Δv of each position verified. rates: tokens per second λ, by divergence.
    """

    predictor: str
    fingerprint: str
    draft_step: Amount
    verify: Amount
    position: Amount
    rates: dict[str, RatesInfo]


def check_total(counts: Counts, problems: int, seeds: int) -> None:
    """Raises ValueError if the counts are not of `problems` times `seeds` pairs."""
    if counts.total != problems * seeds:
        times = f" with {seeds} seeds each" if seeds > 1 else ""
        raise ValueError(f"the counts add up to {counts.total}, but problems is {problems}{times}")
