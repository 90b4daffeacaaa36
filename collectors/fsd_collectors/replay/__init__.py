"""What decoding would do at another threshold, rule, length or stop policy, asked of traces along the target."""

from fsd_collectors.replay.cost import CostModel
from fsd_collectors.replay.quantiles import quantiles
from fsd_collectors.replay.replaying import Replayed, replay, sweep
from fsd_collectors.replay.rounds import RoundPolicy
from fsd_collectors.replay.scaled import ScaledTraces
from fsd_collectors.replay.stop_policy import LengthPolicy, StopPolicy

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
