"""`fsd-profile`: shows a profile, validates profile files, compares two, times one again, and prints how engines of
other projects decode as it says.

Heavy imports are inside functions, so that `--help` prints at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fsd_calib.cli.console import BAD_INPUT, interruptible, leave, load_libraries, reply_json, say
from fsd_calib.cli.family import AllowEditedOption, Family, VersionOption, ending
from fsd_calib.cli.output import OutputOptions
from fsd_calib.exports.engines import ENGINES, export_profile
from fsd_common.argument_checks import amount
from fsd_common.errors import UsageError
from fsd_common.option import Option

NAME = "fsd-profile"
DIFFERENT = 1
_WAYS = ("run", "careful")
_EPILOG = ending(
    "Exit codes: 0 done (validate: all files are valid; diff: no differences) · 1 diff found differences · 2 bad "
    "input or an invalid file · 130 interrupted",
    "fsd profile show fsd-profile/arithmetic",
    "fsd profile vllm fsd-profile/gsm8k",
    "fsd profile export fsd-profile/gsm8k --to sglang",
    "fsd profile validate fsd-profile/*/profile.json",
    "fsd profile diff fsd-profile/gsm8k fsd-profile/gsm8k-vllm",
    "fsd profile retime fsd-profile/gsm8k",
)
_Profile = Annotated[
    Path, typer.Argument(metavar="PATH", help="A profile.json file, or a folder that holds one.", show_default=False)
]
_A = Annotated[Path, typer.Argument(metavar="A", help="The first profile.json, or its folder.", show_default=False)]
_B = Annotated[Path, typer.Argument(metavar="B", help="The second profile.json, or its folder.", show_default=False)]
_Profiles = Annotated[
    list[Path], typer.Argument(metavar="PATH", help="Profile files, or their folders.", show_default=False)
]

app = Family(
    no_args_is_help=True,
    help="Shows, validates, compares, times again, serves and exports the profiles that fsd-calibrate writes.",
    epilog=_EPILOG,
)


@app.callback()
def common(version: VersionOption = False) -> None:
    """Options before the command's name."""


@app.command()
def show(path: _Profile, *, output: OutputOptions) -> None:
    """Prints the report, then the rest of the profile: curve, settings, models, certificate, costs and effort.

    A file that was changed after its calibration is shown, too, as not certified.
    """
    output.begin()
    from fsd_calib.report.console import print_details, print_report
    from fsd_decoding.profile.server_profile import ServerProfile, load_any

    profile = load_any(path, allow_edited=True)
    if output.as_json:
        reply_json(NAME, {"edited": profile.edited, "profile": profile.model_dump(mode="json", by_alias=True)})
        return
    if isinstance(profile, ServerProfile):
        from fsd_calib.servers.report import print_report as print_report_of_server

        print_report_of_server(profile)
        return
    print_report(profile)
    print_details(profile)


@app.command()
def validate(paths: _Profiles, *, output: OutputOptions) -> None:
    """Checks each file, and prints that it is a valid profile or, on stderr, its first fault.

    A file that was changed after its calibration is not valid.

    Exit code 0: all are valid. 2: at least one is not.
    """
    output.begin()
    from fsd_decoding.profile.server_profile import load_any

    faults: dict[str, str | None] = {}
    for path in paths:
        try:
            load_any(path)
        except UsageError as error:
            say(f"error: {error}")
            faults[str(path)] = str(error)
        else:
            faults[str(path)] = None
    valid = "\n".join(f"{path}: valid" for path, fault in faults.items() if fault is None)
    if output.as_json or valid:
        output.reply(NAME, {"files": [{"path": path, "fault": fault} for path, fault in faults.items()]}, valid)
    if any(faults.values()):
        raise typer.Exit(BAD_INPUT)


@app.command()
def diff(first: _A, second: _B, *, output: OutputOptions) -> None:
    """Shows how two profiles differ in settings, models, certificate with its measurements, and curve.

    Files that were changed after their calibration are compared, too, with a warning.

    Dates and decoding effort are not compared. Exit code 0: no differences. 1: some differences.
    """
    output.begin()
    from fsd_calib.report.diff import difference_table, differences
    from fsd_common.console import LiteralConsole
    from fsd_decoding.profile.threshold_profile import ThresholdProfile

    profiles = [ThresholdProfile.load(path, allow_edited=True) for path in (first, second)]
    for path, profile in zip((first, second), profiles, strict=True):
        if profile.edited:
            say(f"warning: {path} was changed after the calibration that wrote it, so it is not certified")
    differing = differences(*profiles)
    if output.as_json or not differing:
        output.reply(NAME, {"differences": [each._asdict() for each in differing]}, "no difference")
    else:
        console = LiteralConsole()
        console.print(difference_table(differing, (str(first), str(second)), console.width))
    if differing:
        raise typer.Exit(DIFFERENT)


@app.command()
def vllm(path: _Profile, allow_edited: AllowEditedOption = False, *, output: OutputOptions) -> None:
    """Prints the command that serves the profile's models with vLLM, at its threshold, draft length and sampling, with
    its chat template's arguments, and as a comment what a client sends so that prompts are the calibration's.

    vLLM follows the profile where fsd-calib is installed beside it. Exit code 2: it cannot follow this profile.
    """
    output.begin()
    from fsd_decoding.profile.io import file_of
    from fsd_decoding.profile.threshold_profile import ThresholdProfile

    profile = ThresholdProfile.load(path, allow_edited=allow_edited)

    from fsd_calib.vllm_plugin.command import request_notes, serve_command  # which import torch
    from fsd_calib.vllm_plugin.supported_vllm import SUPPORTED
    from fsd_decoding.profile.following import warning_of

    command = serve_command(profile, file_of(path))
    doubts = [profile.digest_doubt(), warning_of(profile), profile.engine_doubt("vllm"), profile.clock_doubt()]
    for doubt in filter(None, doubts):
        say(f"warning: {doubt}")
    follows = (
        f"# vLLM {SUPPORTED} follows it where fsd-calib is installed beside; the log then says fsd: following profile"
    )
    notes = [follows, *request_notes(profile)]
    output.reply(NAME, {"command": command, "notes": notes}, "\n".join([command, *notes]))


@app.command()
def export(
    path: _Profile,
    to: Annotated[
        str | None,
        Option(
            "The engine: vllm, sglang, tensorrt-llm, max or transformers. Not of a server's profile.",
            words=tuple(ENGINES),
        ),
    ] = None,
    allow_edited: AllowEditedOption = False,
    *,
    output: OutputOptions,
) -> None:
    """Prints the engine's own options for the profile's score and T, draft length and draft: a command, a file or
    Python, to be pasted. Comments say for which versions, what the engine does otherwise, and what is certified. Of a
    server's profile it prints how the knob is set.

    Exit code 2: the engine has no such score, or cannot do something else that the profile says, which the message
    names with the way out.
    """
    output.begin()
    from fsd_decoding.profile.server_profile import ServerProfile, load_any

    profile = load_any(path, allow_edited=allow_edited)
    if isinstance(profile, ServerProfile):
        from fsd_calib.servers.report import export as export_of_server

        if to is not None:
            raise UsageError(f"--to is {to!r}, and the profile is of a server, whose own knob it sets; leave it out")
        if doubt := profile.digest_doubt():
            say(f"warning: {doubt}")
        text = export_of_server(profile)
        output.reply(NAME, {"text": text}, text)
        return
    if to is None:
        raise UsageError(f"Missing option '--to': give one of {', '.join(ENGINES)}")

    from fsd_decoding.profile.following import warning_of  # which imports torch

    text = export_profile(profile, to)
    for doubt in filter(None, [profile.digest_doubt(), warning_of(profile)]):
        say(f"warning: {doubt}")
    output.reply(NAME, {"text": text}, text)


@app.command()
def retime(
    path: _Profile,
    minutes: Annotated[
        float, Option("Time for it, beside loading the models. It ends earlier once the ratio is decided.")
    ] = 2.0,
    timing: Annotated[
        str,
        Option(
            "run: in this process. careful: in five fresh processes, so that intervals include the variation "
            "between processes.",
            words=_WAYS,
        ),
    ] = "run",
    device: Annotated[
        str | None,
        typer.Option(help="Another device of the kind that the profile is of: cuda:1, …", show_default=False),
    ] = None,
    *,
    output: OutputOptions,
) -> None:
    """Times a profile's setting, sd and the target again, and writes the profile with the new speeds and the outcome
    that follows from them. For profiles that were timed on a busy machine.

    Nothing is searched or tested, and no attempt is counted. Models, task and problems are those of the run.yaml
    beside the profile; run.json and report.html beside it are adapted.

    Exit code 2: the profile was edited, has no setting that speed decides on, or is of other models or problems.
    """
    progress = output.begin()
    if timing not in _WAYS:
        raise UsageError(f"--timing is {timing!r}; it must be one of {', '.join(_WAYS)}")
    from fsd_calib.cli.options import check_place

    check_place(device, None)
    amount("--minutes", minutes, zero=False)

    from fsd_decoding.profile.threshold_profile import ThresholdProfile

    ThresholdProfile.load(path)
    load_libraries(progress)

    from fsd_calib.calibration.retime import retime as time_again
    from fsd_calib.report.console import print_report
    from fsd_decoding.profile.io import file_of

    with interruptible(lambda: f"{file_of(path)} is as it was"):
        profile = time_again(path, minutes=minutes, timing=timing, device=device, progress=progress)  # type: ignore[arg-type]
    if output.as_json:
        reply_json(NAME, {"outcome": profile.outcome, "profile": profile.model_dump(mode="json", by_alias=True)})
    else:
        print_report(profile, file_of(path))


def main() -> None:
    leave(app, NAME)
