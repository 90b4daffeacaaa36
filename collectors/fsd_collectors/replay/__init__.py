"""Replay of traces: what decoding would do at another threshold, rule, draft length or stop policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsd_common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from fsd_collectors.replay.blocks import ScaledTraces
    from fsd_collectors.replay.cases import quantiles
    from fsd_collectors.replay.cost import CostModel
    from fsd_collectors.replay.counting import LengthPolicy, StopPolicy
    from fsd_collectors.replay.rounds import RoundPolicy
    from fsd_collectors.replay.simulation import Replayed, replay, sweep

__all__ = [
    "CostModel",
    "LengthPolicy",
    "Replayed",
    "RoundPolicy",
    "ScaledTraces",
    "StopPolicy",
    "quantiles",
    "replay",
    "sweep",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "CostModel": "fsd_collectors.replay.cost",
        "LengthPolicy": "fsd_collectors.replay.counting",
        "Replayed": "fsd_collectors.replay.simulation",
        "RoundPolicy": "fsd_collectors.replay.rounds",
        "ScaledTraces": "fsd_collectors.replay.blocks",
        "StopPolicy": "fsd_collectors.replay.counting",
        "quantiles": "fsd_collectors.replay.cases",
        "replay": "fsd_collectors.replay.simulation",
        "sweep": "fsd_collectors.replay.simulation",
    },
)
