"""Fewer rounds by which tests measure what a round costs: a fifth of the usual, which takes a third of a tiny
calibration's time and decides nothing that tests look at."""

from __future__ import annotations

from fsd_calib.engines import own as round_costs


def measure_few_rounds() -> None:
    """Holds from now on in this process, and in those that it forks."""
    round_costs._ROUNDS = round_costs._FEWER = 40
