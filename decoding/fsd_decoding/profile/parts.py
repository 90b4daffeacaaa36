"""The parts of a profile: records that check that their numbers agree.

Speeds, costs, effort and points of the curve are in `fields.py`, which has the whole.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NoReturn, Self

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    model_validator,
)

from fsd_common.errors import UsageError

if TYPE_CHECKING:
    from fsd_decoding.policies.threshold import ScalePolicy

LARGEST: Final = 2**53
"""The largest number of anything. Up to it every integer is a float, too, so that any reader of JSON takes it exactly,
and quotients of counts are floats."""
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Natural = Annotated[int, Field(ge=1, le=LARGEST)]
Ratio = Annotated[float, Field(ge=0, le=LARGEST)]  # of two counts; above 1 where more was solved than by the target
Share = Annotated[float, Field(ge=0, le=1)]
Change = Annotated[float, Field(ge=-1, le=1)]  # difference of two shares
Amount = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]  # tokens per second or round: every decoding emits a token, in finite time
Confidence = Annotated[float, Field(gt=0, lt=1)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
_ROUNDING = 1e-6  # tolerance between two ways to compute the same number


class Part(BaseModel):
    """An immutable record without unknown fields, NaN or infinity, so that the file is plain JSON.

    The text below a field is its description in the JSON schema, so it is written for readers of the file.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class DataInfo(Part):
    """The problems."""

    source: str
    """Where they come from."""
    fingerprint: str
    """SHA-256 of all questions, reference answers and choices, in order."""
    split: Literal["content-hash", "given"]
    """How they were divided into parts: by a hash of each problem's content, or as the source gives it."""
    tuning: Count
    """Number of problems in the tuning part."""
    certification: Count
    """Number of problems in the certification part."""


DraftKind = Literal["model", "eagle", "ngram", "vllm", "addon"]
IN_WORDS: Final[dict[DraftKind, str]] = {
    "model": "draft model", "eagle": "EAGLE head", "ngram": "n-gram draft", "vllm": "drafter of vLLM",
    "addon": "drafter",
}  # fmt: skip
"""What kinds of drafts are called."""


class ModelInfo(Part):
    """A model, or what drafts in place of one."""

    id: str
    """Its id on the hub, or its folder. Of an n-gram draft its settings, of a drafter of vLLM what --speculative-config
    says of it, of a drafter that is an add-on its name."""
    revision: str | None
    """Its commit on the hub. null: it has none, or it is not known."""
    fingerprint: str
    """Of its weights and its configuration."""
    vocab_size: Natural
    """Width of its logits, which may have a tail of padding."""
    dtype: str
    """The dtype of its weights, as torch names it."""
    quantization: str | None
    """How its weights are quantised: a name of --quantization, or the checkpoint's own method. null: they are not."""
    attention: str | None
    """The kind of attention that it was loaded with. null: it is no model."""
    kind: DraftKind
    """What it is: a model, an EAGLE head of the target, an n-gram draft, which has no weights, a drafter that vLLM
    alone runs, such as MTP or DFlash, or a drafter that is not of fsd-calib."""

    @classmethod
    def of(cls, model: Any) -> ModelInfo:
        """Describes a loaded causal LM."""
        from fsd_decoding.model_options import scheme_of
        from fsd_decoding.models.fingerprint import model_fingerprint
        from fsd_decoding.models.forward import attention_kind
        from fsd_decoding.models.runner import vocabulary_size

        return cls(
            id=model.config._name_or_path,
            revision=getattr(model.config, "_commit_hash", None),
            fingerprint=model_fingerprint(model),
            vocab_size=vocabulary_size(model),
            dtype=str(model.dtype).removeprefix("torch."),
            quantization=scheme_of(model.config),
            attention=attention_kind(model),
            kind="model",
        )


OWN_ENGINE: Final = "fsd-calib"
"""The name of our own engine."""


class EngineInfo(Part):
    """An engine that decodes."""

    name: str
    """fsd-calib, our own, or vllm."""
    version: str
    """Its version."""
    arguments: dict[str, JsonValue] = {}
    """What it was started with, by name, as far as texts may depend on it: parallelism, quantisation and the like."""

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


class SamplingInfo(Part):
    """Sampling settings."""

    temperature: Amount
    """0 is greedy."""
    top_k: Natural | None
    """Number of the most probable tokens to sample from. null: all."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None
    """Probability that the most probable tokens, which are sampled from, have together. null: all are."""
    min_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Least probability of a token to sample, as a share of that of the most probable one. null: none."""
    repetition_penalty: Annotated[float, Field(gt=0)] = 1.0
    """What the logits of tokens that occurred already are divided or, if negative, multiplied by."""


@dataclass(frozen=True)
class OutcomeCounts:
    """Counts of (problem, seed) pairs by whether the target alone and the fuzzy rule solved them."""

    __pydantic_config__ = ConfigDict(
        extra="forbid", use_attribute_docstrings=True,
        json_schema_extra={"description": "Paired outcomes of the target alone and of the fuzzy rule."},
    )  # fmt: skip

    both_right: Count
    """Number of (problem, seed) pairs in which both were right."""
    lost: Count
    """Number of pairs in which only the target alone was right."""
    gained: Count
    """Number of pairs in which only the fuzzy rule was right."""
    both_wrong: Count
    """Number of pairs in which both were wrong."""

    def __post_init__(self) -> None:
        if min(astuple(self)) < 0:
            raise ValueError(f"{self} has a negative count")

    @classmethod
    def of(cls, target: Iterable[Any], fuzzy: Iterable[Any]) -> Self:
        """Returns the counts of grades in the same order."""
        pairs = Counter((bool(t), bool(f)) for t, f in zip(target, fuzzy, strict=True))
        return cls(pairs[True, True], pairs[True, False], pairs[False, True], pairs[False, False])

    @property
    def total(self) -> int:
        return self.both_right + self.lost + self.gained + self.both_wrong

    @property
    def right(self) -> int:
        """Right answers of the target alone."""
        return self.both_right + self.lost

    @property
    def solved(self) -> int:
        """Right answers of the fuzzy rule."""
        return self.both_right + self.gained

    @property
    def retention(self) -> float:
        """Accuracy of the fuzzy rule over the target's. UsageError: the target solved nothing."""
        self.require_solved()
        return self.solved / self.right

    @property
    def churn(self) -> float:
        """Share of outcomes that flipped, lost or gained."""
        return (self.lost + self.gained) / self.total if self.total else 0.0

    def __str__(self) -> str:
        return f"both right {self.both_right}, lost {self.lost}, gained {self.gained}, both wrong {self.both_wrong}"

    def require_solved(self) -> None:
        """Raises UsageError where retention is not defined, since the target solved nothing."""
        if not self.right:
            raise UsageError(
                f"the target solved none of {self.total} problems, so retention is undefined; check its prompts and "
                "answers, or use another target"
            )


_FIRST = 0.9  # share of the budget of errors that the first attempt has


def attempt_level(confidence: float, number: int) -> float:
    """Returns the significance level of attempt `number`; the levels of all attempts sum to 1 - confidence.

    So all attempts at one claim, and all on one problem, together keep the promised confidence. The first has nine
    tenths of the budget, as most claims are tested once; attempt k > 1 has 6 / (pi (k - 1))^2 of the rest. An attempt
    that passes does not hand its level on to a later one, unlike in Tian and Ramdas's online fallback procedure (2021):
    that is valid for hypotheses fixed beforehand, not where a user chooses the next goal by the last result
    (docs/certificate.md has the figures).
    """
    budget = 1 - confidence
    return _FIRST * budget if number == 1 else (1 - _FIRST) * budget * 6 / (math.pi * (number - 1)) ** 2


class ClaimHistory(Part):
    """What the ledger knew when the attempt was opened. It knows what was asked with it, not elsewhere."""

    asked: Natural
    """Certificates asked for this target at this claim (task, retention or accuracy), this one included."""
    passed: Count
    """How many of the earlier ones passed."""
    attempts: Natural
    """All attempts of this target in the ledger, this one included."""
    since: AwareDatetime
    """When the first row of the ledger was written."""
    first: bool
    """Whether the ledger knew no attempt before, of any target."""


class Certificate(Part):
    """Results on the certification part for one configuration: the chosen one, or the safest one if none passed."""

    counts: OutcomeCounts
    """What was counted."""
    certified: bool
    """Whether what was wanted is certified."""
    wanted: Annotated[float, Field(gt=0)] | None
    """What --min-acc requested of `acc`. null: speed or the front was requested; then `certified` says that
    `lower_bound` was computed on problems that played no part in the choice."""
    retention: Ratio | None
    """Right answers of the configuration, divided by those of the target. null: nothing was decoded."""
    lower_bound: Ratio | None
    """Lower bound of retention, by itself at `delta`; see `given_passing`, with which it may be below `wanted`, the
    claim. null: nothing was decoded, or accuracy is certified."""
    confidence: Confidence
    """Confidence over all attempts at this claim, and over all that share a problem."""
    problems: Count
    """Number of problems that were decoded."""
    method: str
    """Name of the test."""
    acc: Literal["retention", "absolute"] = "retention"
    """What `wanted` is of: retention, or accuracy itself."""
    guarantee: Literal["population", "dataset", "none"] = "population"
    """What the certificate is about: new problems like these, these problems alone, or nothing."""
    attempt: Natural | None = None
    """How many times, including this one, this was claimed of the target, or problems of this part were used to decide.
    null: nothing was tested."""
    delta: Confidence | None = None
    """Significance level of the test, over all `looks`, at most that of its attempt, with those that it `extends`: nine
    tenths of 1 - confidence for the first, and 0.6 / (pi^2 (attempt - 1)^2) of it for a later one. null: nothing was
    tested."""
    seeds: Natural = 1
    """Number of noise seeds per problem; the counts are of (problem, seed) pairs."""
    accuracy: Share | None = None
    """Share of right answers. null: nothing was decoded."""
    accuracy_lower_bound: Share | None = None
    """Lower bound of accuracy, as `lower_bound`. null: nothing was decoded, or retention is certified."""
    groups: Natural | None = None
    """Number of groups of problems, which the test takes as its unit. null: each problem is one."""
    frozen: Natural | None = None
    """Number of configurations that were frozen to be tested. If there were several, the bounds of the chosen one hold
    for it by itself and are not corrected for the choice. null: nothing was tested."""
    lossless: bool = False
    """Whether the numbers are of lossless decoding (those of the target), which fulfils the request or failed to."""
    harm: Share | None = None
    """Share of the target's right answers that were lost."""
    harm_upper_bound: Share | None = None
    """Upper bound of harm, as `lower_bound`."""
    difference: Change | None = None
    """Accuracy minus the target's."""
    difference_interval: tuple[Change, Change] | None = None
    """Two-sided interval of the difference, at `confidence`."""
    history: ClaimHistory | None = None
    """What was asked before. null: nothing was tested."""
    given_passing: bool = False
    """Whether the bounds hold given that the test passed, together at `confidence`."""
    dropped: Count = 0
    """Problems that count as lost in the test and its bounds, beside `counts`: an earlier attempt lost them, and they
    are not among these any more."""
    looks: tuple[Natural, ...] = ()
    """Numbers of problems after which outcomes were to be tested, the last of them all; `problems` is the one that
    decided. Empty: nothing was tested."""
    extends: tuple[Natural, ...] = ()
    """Numbers of the attempts that this one goes on from, with what they froze, on their problems and more."""

    @property
    def level(self) -> float:
        """The significance level of the test."""
        return 1 - self.confidence if self.delta is None else self.delta

    @model_validator(mode="after")
    def _counts_agree(self) -> Self:
        c = self.counts
        check_total(c, self.problems, self.seeds)
        for name, count, whole in (
            ("retention", c.solved, c.right),
            ("accuracy", c.solved, c.total),
            ("harm", c.lost, c.right),
            ("difference", c.solved - c.right, c.total),
        ):
            check_quotient(name, getattr(self, name), count, whole)
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
        return self

    @model_validator(mode="after")
    def _decided_at_a_look(self) -> Self:
        if list(self.looks) != sorted({*self.looks}):
            raise ValueError(f"looks are {self.looks}; they must rise")
        if self.looks and self.problems not in (0, *self.looks):
            raise ValueError(f"problems is {self.problems}, which is none of the looks {self.looks}")
        return self

    @model_validator(mode="after")
    def _attempts_share_the_level(self) -> Self:
        if self.attempt is None or self.delta is None:
            return self
        if list(self.extends) != sorted({*self.extends}) or any(each >= self.attempt for each in self.extends):
            raise ValueError(f"extends is {self.extends}; they must be attempts before {self.attempt}, and rise")
        most = sum(attempt_level(self.confidence, number) for number in (*self.extends, self.attempt))
        if self.delta > most * (1 + _ROUNDING):
            raise ValueError(f"delta is {self.delta}, but attempt {self.attempt} may be tested at {most:.6g} at most")
        return self


class GuardEstimate(Part):
    """What the chosen configuration keeps on another task: an estimate, of which nothing is certified."""

    task: str
    """Name of the task."""
    source: str
    """Where its problems come from."""
    problems: Natural
    """Number of problems that were decoded, of its tuning part."""
    counts: OutcomeCounts
    """What was counted."""
    seeds: Natural = 1
    """Number of noise seeds per problem; the counts are of (problem, seed) pairs."""
    retention: Ratio | None
    """Right answers of the configuration, divided by those of the target. null: the target solved nothing."""
    interval: tuple[Ratio, Ratio] | None
    """Two-sided interval of retention, by itself at `confidence`. null: the target solved nothing."""
    confidence: Confidence
    """Confidence of the interval."""

    @model_validator(mode="after")
    def _counts_agree(self) -> Self:
        check_total(self.counts, self.problems, self.seeds)
        check_quotient("retention", self.retention, self.counts.solved, self.counts.right)
        return self


class Accuracy(Part):
    """Shares of right answers, on the certification part if anything was decoded there, else on the tuning part."""

    target: Share
    """Of the target alone."""
    chosen: Share
    """Of the chosen configuration."""


class TokensPerRound(Part):
    """Tokens per round, on the same part as `Accuracy`."""

    lossless: Positive
    """Of the fastest lossless rule at its own best draft length."""
    chosen: Positive
    """Of the chosen configuration."""


class Estimate(Part):
    """A configuration that no decoder uses: the certified one, if slower than lossless. If nothing was certified: the
    safest one tested, or the fastest if speed was requested."""

    threshold: Amount
    """Its T."""
    retention: Ratio
    """Its measured retention."""
    lower_bound: Ratio | None
    """Lower bound of its retention. null: it was not tested."""
    draft: str | None = None
    """The id of its draft model, if it is not the profile's own."""


class TextCounts(Part):
    """How many of the texts whose accuracy was measured are of some kind."""

    texts: Natural
    """Number of texts, of each, whose accuracy was measured."""
    target: Count
    """How many texts of the target alone are."""
    chosen: Count
    """How many texts of the chosen configuration are."""

    @model_validator(mode="after")
    def _no_more_than_there_are(self) -> Self:
        if max(self.target, self.chosen) > self.texts:
            raise ValueError(f"{max(self.target, self.chosen)} texts are counted, but there are only {self.texts}")
        return self


class Truncation(TextCounts):
    """How many texts reached the limit on new tokens, or the end of the models' context, and may be cut short."""

    max_new_tokens: Natural
    """The limit."""


class Repetition(TextCounts):
    """How many texts end in a loop: in one passage, three times or more in a row, over at least 60 characters."""


class Lengths(Part):
    """Mean numbers of new tokens of the texts whose accuracy was measured."""

    target: Positive
    """Of the target alone."""
    chosen: Positive
    """Of the chosen configuration."""

    @property
    def ratio(self) -> float:
        """How many times as long the texts of the chosen configuration are as the target's."""
        return self.chosen / self.target


class NumericalChurn(Part):
    """What the lossless rule changed compared with the target alone, by the last bits of floating point, in the
    decodings with the first seed. Differences between settings below the share of flipped outcomes are noise."""

    problems: Natural
    """Number of problems that were compared."""
    texts_changed: Count
    """Number of problems whose text was another."""
    outcomes_flipped: Count
    """Number of problems whose answer became right or wrong."""

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
    """Number of texts."""
    mean: Share
    """Mean of the rate."""
    deviation: Share
    """Standard deviation of the rate."""


class KeptScoresInfo(AcceptanceInfo):
    """The same of how near to T scores come: the largest one that kept a token of a text, as a share of T, and 0 where
    none did."""


class RatesInfo(Part):
    """Tokens per second achieved on traces at rising T."""

    shares: tuple[float, ...]
    """T as logit(u), where u is the predictor's own share of drafted tokens accepted at T."""
    tokens_per_second: tuple[Amount, ...]
    """What is achieved at each T."""


BeamAnswer = Literal["best", "majority"]
"""Which of a prompt's beams answers: the best-scored, or the best-scored of those with the answer that most have."""


class BeamsInfo(Part):
    """Beams that each prompt is decoded to. Speeds, lengths and drafts count layers, a token of each beam."""

    number: Annotated[int, Field(ge=2, le=LARGEST)]
    """Number of beams, W."""
    width: Natural
    """Pairs of a beam and a token that the draft proposes for a layer, W or more."""
    answer: BeamAnswer
    """What was graded: the best-scored text, or the best-scored of those with the answer that most texts have."""
    replacement: bool = False
    """Whether pairs were drawn with replacement."""

    @model_validator(mode="after")
    def _is_as_wide_as_it_has_beams(self) -> Self:
        if self.width < self.number:
            raise ValueError(f"width is {self.width}, but number is {self.number}; it must be at least that")
        return self

    def __str__(self) -> str:
        drawn = " drawn with replacement" if self.replacement else ""
        return f"{self.number} beams{drawn}, {'the best answers' if self.answer == 'best' else 'answers by majority'}"

    def refuse(self, task: str, what: str) -> NoReturn:
        """Raises UsageError: the profile of a task is of these, and `what` decodes single texts."""
        raise UsageError(
            f"the profile of {task!r} is of {self.number} beams, which {what} does not decode; use "
            "SpeculativeDecoder.generate_beams, or generate(num_beams=…) with fsd_generate, or calibrate without beams"
        )


class EarlyStopInfo(Part):
    """The acceptance predictor that ends drafts early, and its cost model (see docs/predictor.md)."""

    predictor: str
    """Its folder, relative to the profile's."""
    fingerprint: str
    """Of its files."""
    draft_step: Amount
    """Seconds of a draft step, c."""
    verify: Amount
    """Seconds of a verification, v."""
    position: Amount
    """Seconds that each position verified adds, Δv."""
    rates: dict[str, RatesInfo]
    """Tokens per second λ, by score."""


def check_total(counts: OutcomeCounts, problems: int, seeds: int) -> None:
    """Raises ValueError if the counts are not of `problems` times `seeds` pairs."""
    if counts.total != problems * seeds:
        times = f" with {seeds} seeds each" if seeds > 1 else ""
        raise ValueError(f"the counts add up to {counts.total}, but problems is {problems}{times}")


def check_quotient(name: str, value: float | None, count: int, whole: int) -> None:
    """Raises ValueError if a value is not count / whole."""
    counted = count / whole if whole else None
    if value is not None and (counted is None or abs(value - counted) > _ROUNDING):
        raise ValueError(f"{name} is {value}, but the counts give {counted}")


_LONGEST = 60  # characters of parameters that are shown


class PolicyInfo(Part):
    """The shape of a policy that multiplies T by a scale: everything but T."""

    name: str
    """Name of the policy."""
    version: Natural
    """Version of its definition."""
    parameters: dict[str, JsonValue]
    """Its numbers, by name."""

    @classmethod
    def of(cls, identity: str) -> Self:
        parameters = json.loads(identity)
        return cls(name=parameters.pop("name"), version=parameters.pop("version"), parameters=parameters)

    def __hash__(self) -> int:
        return hash((self.name, self.version))  # parameters are a dict, and few policies differ in them alone

    @property
    def identity(self) -> str:
        """The `ScalePolicy.identity` of the policy."""
        return json.dumps({"name": self.name, "version": self.version, **self.parameters}, sort_keys=True)

    def at(self, threshold: float) -> ScalePolicy:
        """Returns the policy with this T. Raises UsageError if there is none of that name and version."""
        from fsd_decoding.policies.composed import policy_named

        return policy_named(self.identity).at(threshold)

    def __str__(self) -> str:
        """The name with its parameters, or with a digest of them if they are long."""
        shown = _shown(self.parameters)
        if len(shown) > _LONGEST:
            shown = hashlib.sha256(self.identity.encode()).hexdigest()[:8]
        return f"{self.name} ({shown})"


def brief(identity: str) -> str:
    """Returns a short description of the policy with this identity."""
    return str(PolicyInfo.of(identity))


def moved(threshold: float, policy: PolicyInfo | None) -> float | ScalePolicy:
    """Returns T in the form that decoders take: a number, or the policy at this T."""
    return threshold if policy is None else policy.at(threshold)


def _shown(parameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_shown_value(value)}" for name, value in parameters.items())


def _shown_value(value: Any) -> str:
    if isinstance(value, str) and not value.isidentifier():
        return repr(value)  # a marker of a phase, which may hold spaces and line breaks
    return f"{value:.4g}" if isinstance(value, float) else str(value)
