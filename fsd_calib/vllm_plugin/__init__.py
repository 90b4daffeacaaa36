"""FSD inside vLLM: a plugin by which vLLM serves at the threshold of a profile.

`plugin.py` is what vLLM loads. It acts on engines whose --additional-config names a profile: `start.py` checks the
profile against the engine and chooses a worker (`worker.py`), in which `rejection_sampler.py` keeps the drafts' logits
and makes vLLM's own rejection sampler accept by score, too. An engine that a calibration starts names a first
setting to measure in place of a profile, and `calibrating.py` changes it between calls. Only files of this folder and
of `fsd_calib/engines/vllm` import vLLM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fsd_decoding.profile.parts import DraftKind

KEY = "fsd"
"""The entry of --additional-config that holds the plugin's settings."""

KINDS: Final[tuple[DraftKind, ...]] = ("model", "eagle", "vllm")
"""Kinds of drafts that vLLM runs."""

METHOD: Final = "rejection_sample_method"
"""The entry of --speculative-config that chooses vLLM's rule, and of a profile's engine where its FLy certified."""

FLY_VERSIONS: Final = ">=0.33,<0.34"
"""Versions of vLLM that have FLy of their own, on GPUs."""

RULES = ("fsd-sd", "fsd-coupled")
"""Rules that vLLM can follow: where greedy, both accept x = argmax p or a score of at most T; see also `other_law`."""
