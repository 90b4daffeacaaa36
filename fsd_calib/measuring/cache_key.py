"""The key of a cached result: all that determines a decoded text, besides prompt, id and threshold."""

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
from fsd_decoding.models.attention import attention_kind
from fsd_decoding.models.fingerprint import model_fingerprint, tokenizer_fingerprint
from fsd_decoding.models.runner import context_length, vocabulary_size
from fsd_decoding.policies.registry import policy_named
from fsd_decoding.policies.stopping import StopPolicy
from fsd_decoding.policies.threshold import ScalePolicy
from fsd_decoding.sampling import SETTINGS, Sampling

# Numerical noise of D at one position of one text, depending on what else is in the batch: at most c sqrt(D), since
# logits move by rounding and D is of second order in them (tv and hellinger are of first order, but small only where
# both models are certain, and then rounding moves little). Measured (benchmarks/results/margins.json) over 75,000
# positions: the bundled pair on a CPU, 180 problems, greedy and at temperature 0.8, 1 at a time compared with 3, 16 and
# 60, shuffled, in the plain form and "@50". In float32 constants c are the largest |difference| / sqrt(D), rounded up,
# so no position of that pair lies outside; of another pair, one may. In float16 and bfloat16 a few positions with D of
# 0.1 to 10 are three to eight times as noisy as all others. To cover them too would leave nothing to reuse (at T = 0.1
# the margin of js would be 0.2), and texts differ there anyway, by a rounded argmax, 3 % of them in bfloat16: these
# constants cover every position with D < 0.1, half as far again as the first 25,000 positions went.
_DTYPES = ("float64", "float32", "float16", "bfloat16")
_NOISE = {
    "js": (1e-12, 1.2e-04, 0.083, 0.11),
    "ag": (1e-12, 2.0e-04, 0.18, 0.27),
    "kl_qp": (1e-12, 2.8e-04, 0.24, 0.48),
    "kl_pq": (1e-12, 3.7e-04, 0.36, 0.71),
    "tv": (1e-12, 1.2e-04, 0.095, 0.17),
    "hellinger": (1e-12, 8.1e-05, 0.06, 0.13),
    "doubt": (1e-12, 4.9e-04, 0.083, 0.15),
}  # as _DTYPES
_SCALED_BY = "scaled_by"  # a field of the divergence, present only where a policy moves T


class GenerationLimits(Protocol):
    """The part of a task that determines its texts."""

    @property
    def max_new_tokens(self) -> int: ...
    @property
    def stop(self) -> Sequence[str]: ...


@dataclass(frozen=True)
class CacheKey:
    """The key of a decoding.

    It holds only what matters: no draft for a rule that does not draft, no seed for greedy decoding. Policies apply to
    fuzzy rules only; lossless decoding, which they are compared with, has none. A policy that moves T is part of
    `divergence`: D divided by its scale is compared with T.
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
    policy: str | None = None  # identity of the policy that stops drafts early

    @cached_property
    def json(self) -> str:
        """Canonical JSON: equal for equal keys only."""
        return json.dumps(asdict(self), sort_keys=True)

    @cached_property
    def hash(self) -> bytes:
        return hashlib.blake2b(self.json.encode(), digest_size=16).digest()

    def margin(self, threshold: float) -> float:
        """Returns how far inside an interval a threshold must lie to be a hit, by the numerical noise of D (see above).

        The noise is c sqrt(D) below or above D: c sqrt(T) + c**2 covers both. Where T is scaled by m, D is compared
        with T m; in T that is c sqrt(T / m) + c**2 / m, largest where m is smallest; and T moves as much as m does.
        Infinite for dtypes and divergences that were not measured: their results are hits at their own T only.
        """
        bound, policy = max(threshold, 0.0), self._scale_policy
        if policy is None:
            return self._deviation * math.sqrt(bound) + self._deviation**2
        deviation = self._deviation / math.sqrt(policy.least)
        return deviation * math.sqrt(bound) + deviation**2 + bound * policy.steepness * self._deviation

    @cached_property
    def _deviation(self) -> float:
        name = str((self.divergence or {}).get("name")).partition("@")[0]
        noise = dict(zip(_DTYPES, _NOISE[name], strict=True)) if name in _NOISE else {}
        models = (self.models["target"], self.models["draft"])
        return max(noise.get(m["dtype"], math.inf) for m in models if isinstance(m, Mapping))

    @cached_property
    def _scale_policy(self) -> ScalePolicy | None:
        identity = (self.divergence or {}).get(_SCALED_BY)
        return None if identity is None else policy_named(identity)


class CacheKeys:
    """The keys of one decoder's configurations on one task; computes the models' fingerprints once.

    Args:
        policies: By divergence, the policy that stops the drafts of fuzzy rules early.

    Raises:
        UsageError: The decoder's sampling has logits processors, which no key can identify.
    """

    def __init__(
        self, decoder: SpeculativeDecoder, task: GenerationLimits, policies: Mapping[str, StopPolicy] | None = None
    ) -> None:
        if decoder.sampling.processors:
            raise UsageError(
                f"sampling has {len(decoder.sampling.processors)} custom logits processors, which the result cache "
                "cannot identify; calibrate without them"
            )
        self._decoder, self._task, self._policies = decoder, task, policies or {}
        self._models = _models(decoder)

    def of(self, configuration: Configuration, seed: int) -> CacheKey:
        """Returns the key of a configuration under a seed.

        Raises:
            UsageError: The configuration has a threshold and its rule none, or vice versa.
        """
        rule, criterion, sampling = rule_named(configuration.rule), self._decoder.criterion, self._decoder.sampling
        if rule.fuzzy != (configuration.threshold is not None):
            raise UsageError(
                f"rule {rule.name!r} {'needs a' if rule.fuzzy else 'has no'} threshold, and the configuration's is "
                f"{configuration.threshold}; {'give one' if rule.fuzzy else 'drop it'}"
            )
        divergence = {"name": configuration.divergence, "on": criterion.on, "version": DIVERGENCE_VERSION}
        if configuration.policy is not None:
            divergence[_SCALED_BY] = configuration.policy
        support = {"within_support": criterion.within_support}
        return CacheKey(
            rule=rule.name,
            draft_length=configuration.draft_length if rule.drafts else None,
            divergence=(divergence | support if rule.bounds_divergence else support) if rule.fuzzy else None,
            models=self._models if rule.drafts else self._models | {"draft": None},
            sampling=_sampling(sampling),
            seed=None if sampling.greedy else seed,
            max_new_tokens=self._task.max_new_tokens,
            stop=sorted(set(self._task.stop)),
            engine=self._engine | {"run_by": self._run_by if rule.drafts else self._run_by | {"draft": None}},
            policy=_identity(self._policies.get(configuration.divergence)) if rule.fuzzy else None,
        )

    @cached_property
    def _engine(self) -> dict[str, Any]:
        versions = {
            "fsd_decoding": ENGINE_VERSION,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }
        # Graphs of PyTorch's own kernels give the same texts; compiled kernels round differently.
        kernels = {"kernels": "compiled"} if self._decoder.compile is True else {}
        return versions | {"device": self._decoder.device.type} | kernels

    @cached_property
    def _run_by(self) -> dict[str, str | None]:
        return {role: runs.partition(":")[0] for role, runs in self._decoder.run_by.items()}


def _identity(policy: StopPolicy | None) -> str | None:
    if policy is not None and policy.identity is None:
        raise UsageError(
            f"the policy {type(policy).__name__} has no identity, which the result cache needs; give it one, or "
            "calibrate without it"
        )
    return None if policy is None else policy.identity


def _models(decoder: SpeculativeDecoder) -> dict[str, Any]:
    """Returns the models' part of the key. A draft model that is not used still limits the vocabulary and the
    context."""
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
    dtype = str(model.dtype).removeprefix("torch.")
    return {"fingerprint": model_fingerprint(model), "dtype": dtype, "attention": attention_kind(model)}


def _sampling(sampling: Sampling) -> dict[str, Any]:
    return {name: getattr(sampling, name) for name in SETTINGS}
