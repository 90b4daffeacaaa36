"""What decides a decoding, beside prompt, id and threshold: two decodings of one key are the same text.

Knows decoders, tasks and configurations. Knows nothing of where results are kept.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
import transformers

from fsd_calib.measuring.configuration import Configuration
from fsd_decoding.acceptance.rules import rule_named
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.divergence import DIVERGENCE_VERSION
from fsd_decoding.drafters.base import DraftSource
from fsd_decoding.engine.engine import ENGINE_VERSION
from fsd_decoding.errors import UsageError
from fsd_decoding.models.fingerprint import model_fingerprint, tokenizer_fingerprint
from fsd_decoding.models.runner import context_length, vocabulary_size
from fsd_decoding.policies.registry import policy_named
from fsd_decoding.policies.stopping import StopPolicy
from fsd_decoding.policies.threshold import ScalePolicy
from fsd_decoding.sampling import Sampling

# How far D moves at one place of one text with whatever is decoded beside it: by c sqrt(D), as it must where logits
# move by rounding, since D is of second order in them. Largest |difference| / sqrt(D) over 20,000 places (the bundled
# pair on a CPU, 60 problems, greedy and at temperature 0.8, 1 at a time against 3, 16 and 60, shuffled):
#               float32   float16   bfloat16
#   js, tv      1.4e-5    .019      .087
#   ag, kl      4.0e-5    .079      .22
# It holds from D = 1e-9 to 40; a constant margin, or one relative to D, would be far too wide at one end. These are
# the figures with a half to spare. In bfloat16 3 % of texts differ anyway, by a rounded argmax: no margin mends that.
_BOUNDED = {"float64": 1e-12, "float32": 2e-5, "float16": 0.03, "bfloat16": 0.13}
_UNBOUNDED = {"float64": 1e-12, "float32": 6e-5, "float16": 0.12, "bfloat16": 0.33}
_SCALED = "scaled_by"  # in a key where a policy moves T, and nowhere else


class Asking(Protocol):
    """What of a task decides its texts."""

    @property
    def max_new_tokens(self) -> int: ...
    @property
    def stop(self) -> Sequence[str]: ...


@dataclass(frozen=True)
class CacheKey:
    """Only what has a say: a rule that does not draft has no draft, greedy decoding no seed.

    A policy belongs to fuzzy rules: what they are compared with is lossless decoding as it is. One that moves T is
    part of `divergence`: what T bounds is D over its scale.
    """

    rule: str
    draft_length: int | None
    divergence: Mapping[str, Any] | None
    models: Mapping[str, Any]
    sampling: Mapping[str, Any]
    seed: int | None
    max_new_tokens: int
    stop: Sequence[str]
    engine: Mapping[str, Any]
    policy: str | None = None  # the identity of what stops drafts early

    @cached_property
    def json(self) -> str:
        """Canonical: equal keys, and only those, have the same."""
        return json.dumps(asdict(self), sort_keys=True)

    @cached_property
    def hash(self) -> bytes:
        return hashlib.blake2b(self.json.encode(), digest_size=16).digest()

    def margin(self, threshold: float) -> float:
        """How far from the ends of an interval a threshold must lie to be answered by it; see above.

        A D of sqrt(D) c below or above: c sqrt(T) + c**2 covers both. Where T is scaled by m, D is T m, and in T that
        is c sqrt(T / m) + c**2 / m, the most where m is least; and T moves by as much as m does. Infinite in dtypes
        that were not measured.
        """
        bound, policy = max(threshold, 0.0), self._scales
        if policy is None:
            return self._spread * math.sqrt(bound) + self._spread**2
        spread = self._spread / math.sqrt(policy.least)
        return spread * math.sqrt(bound) + spread**2 + bound * policy.steepness * self._spread

    @cached_property
    def _spread(self) -> float:
        name = str((self.divergence or {}).get("name")).partition("@")[0]
        spreads = _BOUNDED if name in ("js", "tv") else _UNBOUNDED
        models = (self.models["target"], self.models["draft"])
        return max(spreads.get(m["dtype"], math.inf) for m in models if isinstance(m, Mapping))

    @cached_property
    def _scales(self) -> ScalePolicy | None:
        identity = (self.divergence or {}).get(_SCALED)
        return None if identity is None else policy_named(identity)


class CacheKeys:
    """The keys of one decoder's configurations on one task. Reads the models' fingerprints once, when it is made.

    Args:
        policies: by divergence, what ends the drafts of fuzzy rules early.

    Raises:
        UsageError: the decoder's sampling holds logits processors, whose doings no key can tell.
    """

    def __init__(
        self, decoder: SpeculativeDecoder, task: Asking, policies: Mapping[str, StopPolicy] | None = None
    ) -> None:
        if decoder.sampling.processors:
            raise UsageError(
                f"sampling has {len(decoder.sampling.processors)} logits processors of its own, which a cache of "
                "results cannot tell apart; calibrate without them"
            )
        self._decoder, self._task, self._policies = decoder, task, policies or {}
        self._models = _models(decoder)

    def of(self, configuration: Configuration, seed: int) -> CacheKey:
        """UsageError: the configuration has a threshold and its rule none, or the other way round."""
        rule, criterion, sampling = rule_named(configuration.rule), self._decoder.criterion, self._decoder.sampling
        if rule.fuzzy != (configuration.threshold is not None):
            raise UsageError(
                f"rule {rule.name!r} {'needs a' if rule.fuzzy else 'has no'} threshold, "
                f"the configuration's is {configuration.threshold}; {'give' if rule.fuzzy else 'drop'} it"
            )
        measure = {"name": configuration.divergence, "on": criterion.on, "version": DIVERGENCE_VERSION}
        if configuration.policy is not None:
            measure[_SCALED] = configuration.policy
        support = {"within_support": criterion.within_support}
        return CacheKey(
            rule=rule.name,
            draft_length=configuration.draft_length if rule.drafts else None,
            divergence=(measure | support if rule.bounds_divergence else support) if rule.fuzzy else None,
            models=self._models if rule.drafts else self._models | {"draft": None},
            sampling=_sampling(sampling),
            seed=None if sampling.greedy else seed,
            max_new_tokens=self._task.max_new_tokens,
            stop=sorted(set(self._task.stop)),
            engine=self._engine,
            policy=_identity(self._policies.get(configuration.divergence)) if rule.fuzzy else None,
        )

    @cached_property
    def _engine(self) -> dict[str, Any]:
        versions = {
            "fsd_decoding": ENGINE_VERSION,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }
        return versions | {"device": self._decoder.device.type}


def _identity(policy: StopPolicy | None) -> str | None:
    if policy is not None and policy.identity is None:
        raise UsageError(
            f"the policy {type(policy).__name__} has no identity, so a cache of results cannot tell it from another; "
            "give it one, or calibrate without it"
        )
    return None if policy is None else policy.identity


def _models(decoder: SpeculativeDecoder) -> dict[str, Any]:
    """A draft that does not draft still has a say in what the two share: vocabulary and context."""
    models = [decoder.target] if isinstance(decoder.draft, DraftSource) else [decoder.target, decoder.draft]
    return {
        "target": _model(decoder.target),
        "draft": repr(decoder.draft) if isinstance(decoder.draft, DraftSource) else _model(decoder.draft),
        "tokenizer": tokenizer_fingerprint(decoder.tokenizer),
        "eos": sorted(decoder.eos),
        "vocabulary": min(vocabulary_size(model) for model in models),
        "context": min((length for m in models if (length := context_length(m)) is not None), default=None),
    }


def _model(model: Any) -> dict[str, str]:
    return {"fingerprint": model_fingerprint(model), "dtype": str(model.dtype).removeprefix("torch.")}


def _sampling(sampling: Sampling) -> dict[str, Any]:
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    return {name: getattr(sampling, name) for name in names}
