"""How speeds are to be timed: in which processes, if at all, and on how many problems."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from fsd_calib.measuring.in_turn import pieces
from fsd_calib.measuring.timing_job import Sources
from fsd_calib.wish import Wish
from fsd_calib.workbench import Workbench
from fsd_decoding.errors import UsageError
from fsd_decoding.loading import is_source

Way = Literal["run", "careful", "none"]
"""Within the calibration's own process, in fresh ones, or not at all."""

_SHARE = 20  # one problem in so many
_FEWEST = 12  # problems a stream; of one stream the first warms up
_MOST, _MOST_OF_SEVERAL = 51, 40  # of one stream, and of each of several


@dataclass(frozen=True)
class TimingAsked:
    """What a user asks for, and where the models come from.

    Raises:
        UsageError: there is no such way, or these models cannot be loaded anew.
    """

    way: Way
    sources: Sources

    def __post_init__(self) -> None:
        if self.way not in get_args(Way):
            raise UsageError(f"--timing is {self.way!r}; it must be one of {', '.join(get_args(Way))}")
        for role, model in (("target", self.sources.target), *(("draft", draft) for draft in self.sources.drafts)):
            if self.way == "careful" and not is_source(model):
                raise UsageError(
                    f"timing is 'careful', and the {role} is a loaded {type(model).__name__}, which a fresh process "
                    "cannot load: give its path or hub id, or time with 'run'"
                )

    def check(self, wish: Wish) -> None:
        """UsageError: the wish's answer is a timing, and nothing is to be timed."""
        if self.way == "none" and wish.min_speed is not None:
            raise UsageError(
                f"--min-speed is {wish.min_speed:g}, and whether that is reached is timed, which --no-timing forbids; "
                "leave one of the two out"
            )

    def check_enough(self, bench: Workbench, streams: int) -> None:
        """UsageError: too few for so many streams; better now than after the work."""
        if self.way != "none":
            pieces(bench.tuning.problems[: problems_to_time(problems_of(bench), streams)], streams)


def problems_of(bench: Workbench) -> int:
    """In both parts."""
    return len(bench.tuning.problems) + bench.sealed.problems


def problems_to_time(problems: int, streams: int) -> int:
    """Of so many: few where there are few, since a calibration of 60 problems shall not spend its time on timing."""
    most = _MOST if streams == 1 else _MOST_OF_SEVERAL * streams
    return min(max(problems // _SHARE, _FEWEST * streams), most)
