"""`fsd-calibrate`: finds the threshold for a task, certifies it, and writes a profile.

Heavy imports are inside functions, so that `--help` prints at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fsd_calib.cli.console import NOT_MET, check_writable, interruptible, leave, load_libraries, reply, reply_json, say
from fsd_calib.cli.drafters import BUNDLED, default_pair
from fsd_calib.cli.family import Family, Given, Options, ending
from fsd_calib.cli.options import (
    LoadingOptions,
    PresetOption,
    SubjectsOption,
    check_data,
    check_sources,
    with_preset,
)
from fsd_calib.cli.output import OutputOptions
from fsd_calib.cli.request import SERVER, Request
from fsd_calib.options.common import GOAL
from fsd_calib.options.goal import Goal
from fsd_calib.options.job import Job
from fsd_calib.options.run_config import RunConfig
from fsd_calib.options.search_space import SearchSpace
from fsd_calib.tasks.asking import PROBLEMS
from fsd_common.option import Option
from fsd_decoding.model_options import Loading

if TYPE_CHECKING:
    from fsd_calib.calibration.run_file import RunFile
    from fsd_common.progress.base import Progress

NAME = "fsd-calibrate"
_EPILOG = ending(
    "Exit codes: 0 goal met, planned or explored · 2 bad input · 3 could not be certified, or the speed was not "
    "reached (decoders then run losslessly, unless what is too slow is certified and faster than that), "
    "or there is less to gain than --min-gain · 130 interrupted",
    "fsd calibrate --task arithmetic --min-acc 0.98",
    "fsd calibrate --task gsm8k --min-acc 0.98 --plan",
    "fsd calibrate --task my.yaml --min-acc 0.98 --target BIG --draft SMALL",
)
_EARLIER = ("profile.json", "run.yaml", "study.log")  # files of an earlier run, which this one continues

app = Family()


@app.command(epilog=_EPILOG, everyday="task data min_acc min_speed target draft engine score temperature plan")
def command(
    given: Annotated[Given, Options(Job, Goal, SearchSpace, RunConfig)],
    config: Annotated[
        Path | None,
        Option(
            "Take what is not given here from this file in YAML, such as the run.yaml that is saved beside each "
            "profile, or from the one in this folder.",
            GOAL,
        ),
    ] = None,
    plan: Annotated[
        bool,
        Option(
            "Print how many problems the goal needs, what the given ones can show, which attempt a run is, how long it "
            "will take and how much memory, then exit.",
            GOAL,
        ),
    ] = False,
    show_prompt: Annotated[bool, Option("Print the first prompt and exit.", PROBLEMS)] = False,
    subjects: SubjectsOption = None,
    preset: PresetOption = None,
    *,
    loading: Annotated[Loading, LoadingOptions()],
    output: OutputOptions,
) -> None:
    """Finds how lossy speculative decoding can be on a task: the fastest threshold that keeps the accuracy
    you ask for (or the most accurate one at the speed you ask for).

    A small draft model proposes tokens and the target checks them. Accepting tokens that an exact check would
    reject makes decoding faster and may cost accuracy. This command measures that cost, certifies its choice on
    problems that were not used to make it, and writes profile.json, which fsd-generate, vLLM and Python follow.
    """
    progress = output.begin()
    asked = Request(with_preset(given, preset), loading, subjects, None if config is None else _read(config))
    if not show_prompt:
        asked.check()
        check_writable(asked.run.path("out") or asked.usual_folder, _EARLIER)
    else:
        check_sources({"--target": [asked.target]} if asked.server is None else {}, configured=False)
        check_data(asked.kind, asked.run.path("data"))
    if asked.engines == (SERVER,):
        _server(asked, progress, plan=plan, show_prompt=show_prompt, output=output)
        return
    if asked.target is None and asked.task != BUNDLED:
        progress.note(f"no --target is given, so the target is {default_pair(asked.task)[0]}")
    load_libraries(progress, "fsd_calib.cli.in_turn")

    from fsd_calib.calibration.plan import NotWorthItError
    from fsd_calib.calibration.run_file import save_run
    from fsd_calib.cli import in_turn

    if show_prompt:
        prompt = in_turn.first_prompt(asked)
        reply_json(NAME, {"prompt": prompt}) if output.as_json else reply(prompt)
        return
    calibration = in_turn.calibration_of(asked, progress)
    with interruptible(lambda: _kept(calibration.config)):
        if plan:
            plans = in_turn.planned(calibration, asked.engines, silent=output.as_json)
            if output.as_json:
                reply_json(NAME, {"plans": plans})
            return
        try:
            profiles, untested = in_turn.run(
                calibration, asked.engines, plan=not output.quiet, report=not output.as_json
            )
        except NotWorthItError as reason:
            say(str(reason))
            raise typer.Exit(NOT_MET) from reason
    save_run(calibration, next(iter(profiles), None), asked.certify, asked.engines)
    result = in_turn.result(profiles, untested)
    if output.as_json:
        reply_json(NAME, result)
    if not result["met"] and not calibration.goal.explore:
        raise typer.Exit(NOT_MET)


def _server(asked: Request, progress: Progress, *, plan: bool, show_prompt: bool, output: OutputOptions) -> None:
    load_libraries(progress, "fsd_calib.cli.of_server")

    from fsd_calib.cli import of_server

    calibration = of_server.calibration_of(asked, progress)
    with interruptible(lambda: _kept(calibration.config)):
        if show_prompt:
            prompt = of_server.first_prompt(calibration)
            reply_json(NAME, {"prompt": prompt}) if output.as_json else reply(prompt)
            return
        if plan:
            plans = of_server.planned(calibration, silent=output.as_json)
            if output.as_json:
                reply_json(NAME, {"plans": plans})
            return
        profile = of_server.run(calibration, plan=not output.quiet, report=not output.as_json)
    if output.as_json:
        reply_json(NAME, of_server.result(profile))
    if not profile.met and not calibration.goal.explore:
        raise typer.Exit(NOT_MET)


def main() -> None:
    leave(app, NAME)


def _read(config: Path) -> RunFile:
    from fsd_calib.calibration.run_file import read_run_file

    return read_run_file(config)


def _kept(config: RunConfig) -> str:
    """Returns what an interrupted calibration keeps."""
    from fsd_calib.calibration.session import DECODINGS
    from fsd_calib.search.storage_url import is_url, without_password
    from fsd_common.user_folders import default_cache

    cache, storage = config.path("cache") or default_cache(), config.study_storage
    kept = [f"the decodings in {cache}"] if (cache / DECODINGS).exists() else []
    if storage is not None and (is_url(storage) or Path(storage).exists()):
        kept.append(f"the search in {without_password(storage)}")
    if not kept:
        return "nothing was measured yet; the same command begins anew"
    return f"{' and '.join(kept)} are kept; the same command resumes from there"
