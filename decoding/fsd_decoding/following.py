"""What a decoder takes over from a profile.

Knows profiles and a decoder's arguments. Knows nothing of decoding.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from fsd_decoding.profile import ThresholdProfile
from fsd_decoding.sampling import Sampling


def followed(source: Any, models: Sequence[Any], tokenizer: Any | None, stacklevel: int) -> dict[str, Any]:
    """The arguments of `SpeculativeDecoder` that a profile, or the file of one, sets.

    Warns, at `stacklevel`, where it certifies no threshold. UsageError: it is of other models.
    """
    profile = source if isinstance(source, ThresholdProfile) else ThresholdProfile.load(source)
    profile.check(models[0], models[1], tokenizer)
    if profile.threshold is None:
        warnings.warn(
            f"the profile certifies no threshold for {profile.task!r}; decoding runs the lossless "
            f"rule {profile.effective_rule!r}",
            stacklevel=stacklevel,
        )
    return {
        "rule": profile.effective_rule, "divergence": profile.divergence, "seed": profile.seed,
        "threshold": -1.0 if profile.threshold is None else profile.threshold,
        "draft_length": profile.draft_length, "sampling": Sampling(**profile.sampling.model_dump()),
        "on": profile.logits, "within_support": profile.within_support,
    }  # fmt: skip
