"""`fsd`: all commands under one name."""

from __future__ import annotations

from fsd_calib.cli.console import leave
from fsd_calib.cli.family import Family, VersionOption, ending, group_of

NAME = "fsd"
_EPILOG = ending(
    "fsd-calibrate, fsd-generate and the like are other names of the same commands.",
    "fsd calibrate --task arithmetic --min-acc 0.98",
    "fsd profile show fsd-profile/arithmetic",
    "fsd check --url http://a:8000/v1 --reference http://b:8000/v1 --model M",
)

COMMANDS = {
    "calibrate": "calibrate", "generate": "generate", "inspect": "inspect", "profile": "profile", "report": "report",
    "sweep": "sweep", "tasks": "tasks", "collect": "collect", "traces": "traces", "train": "train", "check": "check",
    "tune": "tune",
}  # fmt: skip
"""Modules by the commands' names."""

app = Family(
    cls=group_of(COMMANDS),
    no_args_is_help=True,
    help="Makes speculative decoding faster than lossless, and measures and certifies what that costs on a task.",
    epilog=_EPILOG,
)  # fmt: skip


@app.callback()
def common(version: VersionOption = False) -> None:
    """Options before the command's name."""


def main() -> None:
    leave(app, NAME)
