"""What the project claims of its engine beside its peers, compared with what `engines.py` measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lib.common.claims import Claim
from lib.engines.contest import SD, TARGET, TRANSFORMERS, VLLM, ratio

_OVER_VLLM = {1: 2.0, 32: 1.1}  # by batch size
_OVER_ASSISTED = 2.0


def engine_claims(contests: Mapping[int, Mapping[str, Any]]) -> Iterator[Claim]:
    """Claims of the bundled pair.

    Args:
        contests: what was measured, by batch size.
    """
    wanted = [(way, VLLM, batch, times) for way in (TARGET, SD) for batch, times in _OVER_VLLM.items()]
    for way, peer, batch, times in [*wanted, (SD, TRANSFORMERS, 1, _OVER_ASSISTED)]:
        name = ratio(way, peer)
        yield Claim.faster(f"{name}, tokens per CPU second, batch {batch}", times, contests[batch]["speed_ups"][name])
