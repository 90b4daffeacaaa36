"""From what was asked to frozen configurations, on the tuning part alone."""

from fsd_calib.searching.forecast import Forecast, ReplayForecast
from fsd_calib.searching.front import Front, nondominated
from fsd_calib.searching.goal import Goal
from fsd_calib.searching.history import Tried
from fsd_calib.searching.keep_accuracy import KeepAccuracy
from fsd_calib.searching.reach_speed import ReachSpeed
from fsd_calib.searching.search import Searched, freeze, search
from fsd_calib.searching.space import Space

__all__ = [
    "Forecast",
    "Front",
    "Goal",
    "KeepAccuracy",
    "ReachSpeed",
    "ReplayForecast",
    "Searched",
    "Space",
    "Tried",
    "freeze",
    "nondominated",
    "search",
]
