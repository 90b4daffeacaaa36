"""The parts of a profile: records that check that their numbers agree.

The certificate is in `certificate.py`; speeds, costs, effort and points of the curve are in `fields.py`, which has the
whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NoReturn, Self

from pydantic import (
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
