"""A tenth of the usual rounds and seconds by which tests measure costs and speeds, which would take most of a tiny
calibration's time and decide nothing that tests look at."""

from __future__ import annotations

from fsd_calib.calibration import timing
from fsd_calib.engines.own import round_costs


def measure_briefly() -> None:
    """Holds from now on in this process, and in those that it forks."""
    round_costs._ROUNDS = round_costs._FEWER = 20
    timing._ALWAYS = 4.5
