"""The key of a cached result: all that determines a decoded text, besides prompt, id and threshold."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Protocol

from fsd_common.errors import UsageError
from fsd_decoding.config import DecodingConfig
from fsd_decoding.meanings import family_of
from fsd_decoding.policies.composed import policy_named
from fsd_decoding.policies.stopping import StopPolicy
from fsd_decoding.profile.setting import Setting
from fsd_decoding.rules import rule_named
from fsd_decoding.sampling import SETTINGS
from fsd_decoding.scores import SCORES_VERSION

# Numerical noise of D at one position of one text, depending on what else is in the batch: at most c sqrt(D), since
# logits move by rounding and D is of second order in them (tv and hellinger are of first order, but small only where
# both models are certain, and then rounding moves little). Measured over 75,000 positions by benchmarks/margins.py,
# which commit 63a8be76 is the last to hold: the bundled pair on a CPU, 180 problems, greedy and at temperature 0.8, 1
# at a time compared with 3, 16 and 60, shuffled, in the plain form and "@50". In float32 constants c are the largest
# |difference| / sqrt(D), rounded up, so no position of that pair lies outside; of another pair, one may. In float16 and
# bfloat16 a few positions with D of 0.1 to 10 are three to eight times as noisy as all others. To cover them too would
# leave nothing to reuse (at T = 0.1 the margin of js would be 0.2), and texts differ there anyway, by a rounded argmax,
# 3 % of them in bfloat16: these constants cover every position with D < 0.1, half as far again as the first 25,000
# positions went.
_DTYPES = ("float64", "float32", "float16", "bfloat16")
_NOISE = {
    "js": (1e-12, 1.2e-04, 0.083, 0.11),
    "ag": (1e-12, 2.0e-04, 0.18, 0.27),
    "kl_qp": (1e-12, 2.8e-04, 0.24, 0.48),
    "kl_pq": (1e-12, 3.7e-04, 0.36, 0.71),
    "tv": (1e-12, 1.2e-04, 0.095, 0.17),
    "hellinger": (1e-12, 8.1e-05, 0.06, 0.13),
    "doubt": (1e-12, 4.9e-04, 0.083, 0.15),
    "cactus": (1e-12, 2e-05, math.inf, math.inf),
}  # as _DTYPES
# Scores that are of first order in the logits move as much where they are small. The largest |difference| over 9,000
# positions of the bundled pair below a score of 1, twice; in 16 bits it is too much to reuse anything.
_FIRST_ORDER = {
    "margin": (1e-12, 1e-05), "relaxed": (1e-12, 1.4e-05), "fly": (1e-12, 2.4e-05), "accept-threshold": (1e-12, 5e-06),
    "typical": (1e-12, 1.3e-05), "posterior": (1e-12, 2.1e-05), "ensemble": (1e-12, 8e-05),
}  # fmt: skip  # as _DTYPES, of which the first two


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
    fuzzy rules only; lossless decoding, which they are compared with, has none.

    Attributes:
        setting: Without its threshold, and without the name of its draft, which is among `models`.
        criterion: What the score is computed on, and by which definitions; None: no threshold is compared with it.
        stop_policy: Identity of the policy that stops drafts early.
    """

    setting: Setting
    criterion: Mapping[str, Any] | None
    models: Mapping[str, Any]
    sampling: Mapping[str, Any]
    seed: int | None
    max_new_tokens: int
    stop: Sequence[str]
    engine: Mapping[str, Any]
    stop_policy: str | None = None

    @cached_property
    def json(self) -> str:
        """Canonical JSON: equal for equal keys only."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return json.dumps(values | {"setting": self.setting.values}, sort_keys=True)

    @cached_property
    def hash(self) -> bytes:
        return hashlib.blake2b(self.json.encode(), digest_size=16).digest()

    def margin(self, threshold: float) -> float:
        """Returns how far inside an interval a threshold must lie to be a hit, by the numerical noise of D (see above).

        The noise is c sqrt(D) below or above D: c sqrt(T) + c**2 covers both. Where T is scaled by m, D is compared
        with T m; in T that is c sqrt(T / m) + c**2 / m, largest where m is smallest; and T moves as much as m does.
        The noise of other scores is the same at every T. Infinite for dtypes and scores that were not measured, and for
        those others under a policy: their results are hits at their own T only.
        """
        bound = max(threshold, 0.0)
        if self._family in _FIRST_ORDER:
            return self._noise(_FIRST_ORDER) if self.setting.policy is None else math.inf
        policy = None if self.setting.policy is None else policy_named(self.setting.policy.identity)
        if policy is None:
            return self._deviation * math.sqrt(bound) + self._deviation**2
        deviation = self._deviation / math.sqrt(policy.least)
        return deviation * math.sqrt(bound) + deviation**2 + bound * policy.steepness * self._deviation

    @property
    def _family(self) -> str:
        return family_of(self.setting.score)

    @cached_property
    def _deviation(self) -> float:
        return self._noise(_NOISE)

    def _noise(self, known: Mapping[str, Sequence[float]]) -> float:
        noise = dict(zip(_DTYPES, known.get(self._family, ()), strict=False))
        models = (self.models["target"], self.models["draft"])
        return max((noise.get(m["dtype"], math.inf) for m in models if isinstance(m, Mapping)), default=math.inf)


def key_of(
    setting: Setting, seed: int, decoding: DecodingConfig, limits: GenerationLimits, *,
    models: Mapping[str, Any], engine: Mapping[str, Any], policy: StopPolicy | None = None,
) -> CacheKey:  # fmt: skip
    """Returns the key of a setting's texts under a seed.

    Args:
        decoding: Supplies sampling, and the logits that scores are computed on.
        models: What of the models texts depend on, with "target" and "draft".
        engine: What of the engine they depend on under this rule: versions, device, kernels; add-ons are added.
        policy: Ends drafts early.

    Raises:
        UsageError: The setting has a threshold and its rule none, or vice versa; or the policy has no identity.
    """
    rule, sampling = rule_named(setting.rule), decoding.sampling
    if rule.fuzzy != (setting.threshold is not None):
        raise UsageError(
            f"rule {rule.name!r} {'needs a' if rule.fuzzy else 'has no'} threshold, and the setting's is "
            f"{setting.threshold}; {'give one' if rule.fuzzy else 'drop it'}"
        )
    kept = replace(setting.arm, draft=None)
    if not (rule.fuzzy and rule.bounds_score):
        kept = replace(kept, score="", policy=None)
    if not rule.drafts:
        kept = replace(kept, draft_length=1, tree=None)
    criterion: dict[str, Any] = {"within_support": decoding.within_support}
    if rule.bounds_score:
        criterion |= {"on": decoding.on, "version": SCORES_VERSION}
    if addons := kept.addons:
        engine = {**engine, "addons": [each.facts for each in addons]}
    return CacheKey(
        setting=kept,
        criterion=criterion if rule.fuzzy else None,
        models=models if rule.drafts else {**models, "draft": None},
        sampling={name: getattr(sampling, name) for name in SETTINGS},
        seed=None if sampling.greedy else seed,
        max_new_tokens=limits.max_new_tokens,
        stop=sorted(set(limits.stop)),
        engine=engine,
        stop_policy=_identity(policy) if rule.fuzzy else None,
    )


def _identity(policy: StopPolicy | None) -> str | None:
    if policy is not None and policy.identity is None:
        raise UsageError(
            f"the policy {type(policy).__name__} has no identity, which the result cache needs; give it one, or "
            "calibrate without it"
        )
    return None if policy is None else policy.identity
