"""The parts of a profile: small records, each sure that its own numbers agree.

Knows what a number may be and which ones contradict each other. What took time is in `profile_costs.py`, what was
measured where in `profile_curve.py`; `profile.py` puts the parts together.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Count = Annotated[int, Field(ge=0)]
Natural = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Change = Annotated[float, Field(ge=-1, le=1)]  # of a share
Amount = Annotated[float, Field(ge=0)]
Confidence = Annotated[float, Field(gt=0, lt=1)]
_ROUNDING = 1e-6  # what two ways to compute a number may differ by


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
        from fsd_decoding.models.fingerprint import model_fingerprint

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
    """Paired outcomes of target alone and of the fuzzy rule on the same (problem, seed) pairs (DESIGN section 10)."""

    both_right: Count
    lost: Count
    gained: Count
    both_wrong: Count

    @property
    def total(self) -> int:
        return self.both_right + self.lost + self.gained + self.both_wrong


class Certificate(Counts):
    """What the certification part showed, of the chosen configuration, of the one that passed and was no faster than
    `sd`, or of the safest where none passed.

    wanted: what --min-acc asked for, of `acc`; None where speed or the front was asked for: there `certified` says
        that `lower_bound` was computed on problems that the choice never saw.
    retention, lower_bound, accuracy, accuracy_lower_bound: of the configuration, each bound by itself at `delta`;
        None where nothing was decoded there. `lower_bound` is always retention's.
    attempt: how many times, this one included, problems of this part were used to decide. delta: the level tested
        at, at most (1 - confidence) * 6 / (pi^2 attempt^2). None: not recorded.
    seeds: noise seeds a problem; the counts are of (problem, seed) pairs.
    frozen: configurations that were frozen to be tested. Of more than one, the bounds of the one that was chosen
        hold for it by itself and are not corrected for the choice. None: not recorded.
    lossless: the numbers are of lossless decoding (the target's own), which does what was asked, or failed to.
    harm, harm_upper_bound: the share of the target's right answers that were lost, and a bound at `delta`.
    difference, difference_interval: accuracy less the target's, and a two-sided interval at `confidence`.
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
        """What the test was made at."""
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
            given, counted = getattr(self, name), count / whole if whole else None
            if given is not None and (counted is None or abs(given - counted) > _ROUNDING):
                raise ValueError(f"{name} is {given}, the counts make it {counted}")
        return self

    @model_validator(mode="after")
    def _certified_needs_a_bound(self) -> Self:
        name = "lower_bound" if self.acc == "retention" else "accuracy_lower_bound"
        bound = self.lower_bound if self.acc == "retention" else self.accuracy_lower_bound
        if not self.certified:
            return self
        if self.guarantee == "none":
            raise ValueError("certified, but guarantee is 'none'")
        if bound is None:
            raise ValueError(f"certified, but without a {name}")
        if self.wanted is not None and bound < self.wanted:
            raise ValueError(f"certified, but {name} {bound} is below wanted {self.wanted}")
        return self

    @model_validator(mode="after")
    def _attempts_share_the_level(self) -> Self:
        if self.attempt is None or self.delta is None:
            return self
        left = (1 - self.confidence) * 6 / (math.pi * self.attempt) ** 2
        if self.delta > left * (1 + _ROUNDING):
            raise ValueError(f"delta is {self.delta}; attempt {self.attempt} may be tested at {left:.6g} at most")
        return self


class Accuracy(Part):
    """Shares of right answers, on the certification part where anything was decoded there, else on the tuning part."""

    target: Share
    chosen: Share


class TokensPerRound(Part):
    """Where `Accuracy` was measured."""

    sd: Amount
    chosen: Amount


class Estimate(Part):
    """Where nothing was granted: the safest configuration tested, or the fastest where speed was asked for. Where `sd`
    suffices: what was tested, or chosen without a test, and is no faster. It is no claim, and no decoder uses it.
    `draft`: the id of the draft model where it is not the profile's own."""

    threshold: Amount
    retention: Amount
    lower_bound: Amount | None
    draft: str | None = None


class Truncation(Part):
    """How many of the `texts` of target alone and of the chosen configuration, where their accuracy was measured, had
    `max_new_tokens` tokens, so that they may be cut short."""

    max_new_tokens: Natural
    texts: Natural
    target: Count
    chosen: Count

    @model_validator(mode="after")
    def _no_more_than_there_are(self) -> Self:
        if max(self.target, self.chosen) > self.texts:
            raise ValueError(f"{max(self.target, self.chosen)} texts are truncated, of {self.texts}")
        return self


class NumericalChurn(Part):
    """What the lossless rule changed against the target alone by the last bits of floating point, in the decodings
    with the first seed: what is finer than the share of outcomes flipped says nothing of a setting."""

    problems: Natural
    texts_changed: Count
    outcomes_flipped: Count

    @model_validator(mode="after")
    def _only_a_changed_text_flips(self) -> Self:
        if not self.outcomes_flipped <= self.texts_changed <= self.problems:
            raise ValueError(
                f"outcomes_flipped {self.outcomes_flipped}, texts_changed {self.texts_changed}, problems "
                f"{self.problems}: only a changed text flips an outcome"
            )
        return self


class AcceptanceInfo(Part):
    """The accepted share of a text's drafted tokens, over texts, under the configuration that decoders of the
    profile run; texts that drafted nothing do not count. `deviation` is the standard deviation."""

    texts: Natural
    mean: Share
    deviation: Share


class RatesInfo(Part):
    """What time is worth: tokens a second achieved on traces, at rising T, which stands as logit(u) in the predictor's
    own share of drafted tokens accepted, u."""

    shares: tuple[float, ...]
    tokens_per_second: tuple[Amount, ...]


class EarlyStopInfo(Part):
    """The acceptance predictor that ends drafts early, and what it weighs (DESIGN section 12).

    predictor: its folder, relative to the profile's. fingerprint: of its files. draft_step, verify, position: seconds,
    c, v and Δv. rates: by divergence, λ.
    """

    predictor: str
    fingerprint: str
    draft_step: Amount
    verify: Amount
    position: Amount
    rates: dict[str, RatesInfo]


def check_total(counts: Counts, problems: int, seeds: int) -> None:
    """ValueError: there are not so many pairs."""
    if counts.total != problems * seeds:
        times = f" with {seeds} seeds each" if seeds > 1 else ""
        raise ValueError(f"the counts add up to {counts.total}, problems says {problems}{times}")
