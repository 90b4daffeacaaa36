"""`fsd-calibrate`: finds the threshold for a task, certifies it, and writes a profile.

Heavy imports are inside functions, so that `--help` prints at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fsd_calib.calibration.goal import Goal
from fsd_calib.cli.certify import models_of, profile_to_certify
from fsd_calib.cli.console import (
    NOT_MET,
    check_at_least_one,
    check_writable,
    interruptible,
    leave,
    quiet_libraries,
    reply,
    say,
)
from fsd_calib.cli.loading_options import json_object, loads_models
from fsd_calib.cli.options import (
    DATA,
    DECODING,
    DataOption,
    DeviceOption,
    DraftsOption,
    DtypeOption,
    LimitOption,
    RayOption,
    SeedOption,
    TargetOption,
    TemperatureOption,
    TopKOption,
    TopPOption,
    VersionOption,
    WorkersOption,
    given_or_default,
    options_given,
    several,
    whole_numbers,
)
from fsd_calib.cli.task_options import (
    TASK_NAMES,
    GreedyOption,
    PresetOption,
    SamplingOptions,
    SubjectsOption,
    folder_name,
    named_task,
    sampling_options,
)
from fsd_calib.tasks.registry import task_kind
from fsd_decoding.errors import UsageError
from fsd_decoding.model_options import USUAL_LOADING, Loading, ModelOptions

if TYPE_CHECKING:
    from fsd_calib.calibration.run_config import RunConfig

NAME = "fsd-calibrate"
_EPILOG = """
Examples: fsd-calibrate --task arithmetic --min-acc 0.98 · fsd-calibrate --task gsm8k --min-acc 0.98 --plan

Exit codes: 0 goal met · 2 bad input · 3 could not be certified, or the speed was not reached (the profile
then holds an uncertified estimate, and decoders run losslessly) · 130 interrupted
"""
_GOAL, _DATA, _DECODING = "Goal", DATA, DECODING
_EARLIER = ("profile.json", "study.log")  # files of an earlier run, which this one continues

app = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)


@app.command(epilog=_EPILOG)
@loads_models
def command(
    context: typer.Context,
    task: Annotated[
        str | None,
        typer.Option(help=f"Task to calibrate on: {TASK_NAMES}.", rich_help_panel=_GOAL, show_default=False),
    ] = None,
    min_acc: Annotated[
        float | None,
        typer.Option(
            help="Find the fastest setting that keeps at least this share of the target's accuracy (0.98: 98 %).",
            rich_help_panel=_GOAL,
        ),
    ] = None,
    acc: Annotated[
        str,
        typer.Option(
            help="Meaning of --min-acc: retention (a share of the target's accuracy) or absolute (plain accuracy).",
            rich_help_panel=_GOAL,
        ),
    ] = "retention",
    min_speed: Annotated[
        float | None,
        typer.Option(
            help="Find the most accurate setting with at least this many tokens/s per stream.", rich_help_panel=_GOAL
        ),
    ] = None,
    serve_batch: Annotated[
        int, typer.Option(help="Streams decoded at once when speed is measured.", rich_help_panel=_GOAL)
    ] = 1,
    timing: Annotated[
        str,
        typer.Option(
            help="run: time speeds in this process. careful: time them in five fresh processes, so that intervals "
            "include the variation between processes.",
            rich_help_panel=_GOAL,
        ),
    ] = "run",
    no_timing: Annotated[
        bool,
        typer.Option(
            "--no-timing",
            help="Do not time any setting; forecast speeds from the number of rounds and the cost of a round.",
            rich_help_panel=_GOAL,
        ),
    ] = False,
    pareto: Annotated[
        bool,
        typer.Option(
            "--pareto",
            help="Find the whole Pareto front of accuracy and speed, to choose from later.",
            rich_help_panel=_GOAL,
        ),
    ] = False,
    certify: Annotated[
        Path | None,
        typer.Option(
            help="Certify the setting of this profile, with its task, models and sampling: nothing is searched. For a "
            "setting that was found elsewhere, with another engine, or (--engine fsd-calib,vllm) for both. Counts as "
            "an attempt like any other.",
            rich_help_panel=_GOAL,
        ),
    ] = None,
    confidence: Annotated[
        float, typer.Option(help="Confidence level of the certificate.", rich_help_panel=_GOAL)
    ] = 0.95,
    guarantee: Annotated[
        str,
        typer.Option(
            help="What the certificate covers: population (problems like these), dataset (exactly these problems), "
            "or none (search only, test nothing).",
            rich_help_panel=_GOAL,
        ),
    ] = "population",
    test: Annotated[
        str,
        typer.Option(
            help="score: decide once, on all certification problems. betting: decide as soon as the evidence suffices.",
            rich_help_panel=_GOAL,
        ),
    ] = "score",
    plan: Annotated[
        bool,
        typer.Option(
            "--plan",
            help="Print how many problems the goal needs, what the given ones can show, how long the run will take and "
            "how much memory, then exit.",
            rich_help_panel=_GOAL,
        ),
    ] = False,
    target: TargetOption = None,
    draft: DraftsOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    loading: Loading = USUAL_LOADING,
    data: DataOption = None,
    subjects: SubjectsOption = None,
    limit: LimitOption = None,
    seed: SeedOption = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for profile.json and the measurements. By default fsd-profile/TASK, with -vllm or -certified "
            "behind it for --engine vllm and --certify.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            help="Folder for cached decodings and traces, shared by all runs. By default $FSD_CALIB_CACHE, else "
            "~/.cache/fsd-calib.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the ledger of attempts, which must not be deleted; machines that work on the same "
            "problems should share it. By default $FSD_CALIB_STATE, else the user's state folder, on Linux "
            "~/.local/state/fsd-calib.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            help="Optuna storage for the search: a file, or a URL (postgresql://…) that several processes can share. "
            "By default study.log in the output folder.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    show_prompt: Annotated[
        bool, typer.Option("--show-prompt", help="Print the first prompt and exit.", rich_help_panel=_DATA)
    ] = False,
    rule: Annotated[
        str,
        typer.Option(
            help="Acceptance rule: fsd, fsd-sd, fsd-coupled, or several, separated by commas.",
            rich_help_panel=_DECODING,
        ),
    ] = "fsd-coupled",
    divergence: Annotated[
        str,
        typer.Option(
            help="Divergence between the two models that the threshold bounds: js, ag, kl_qp, kl_pq, tv, hellinger, "
            "doubt, or several, separated by commas. js@50 uses only the target's 50 likeliest tokens and one bucket "
            "for the rest.",
            rich_help_panel=_DECODING,
        ),
    ] = "js,doubt",
    threshold_policy: Annotated[
        list[str] | None,
        typer.Option(
            "--threshold-policy",
            help="How T changes over a text: constant (the default), schedule (stricter at the beginning, or towards "
            "the end), entropy (looser where the target is unsure), per-prompt (predicted from the prompt and the "
            "draft's first token; learned on the tuning part, even with --plan), or several, separated by commas or by "
            "repeating the option. Each policy has a handful of shapes; how loose a shape may be is searched and "
            "certified like a constant T.",
            rich_help_panel=_DECODING,
        ),
    ] = None,
    draft_length: Annotated[
        str | None,
        typer.Option(
            help="Tokens drafted per round: a number such as 5, or several to search over, such as 2-8 or 4,6,8. By "
            "default 1-12, or at most 16 with --predictor.",
            rich_help_panel=_DECODING,
        ),
    ] = None,
    predictor: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a predictor from fsd-train-predictor, which ends drafts early; auto trains one on the "
            "tuning part.",
            rich_help_panel=_DECODING,
        ),
    ] = None,
    temperature: TemperatureOption = 0.0,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    preset: PresetOption = None,
    greedy: GreedyOption = False,
    seeds: Annotated[
        int,
        typer.Option(
            help="Noise seeds to decode each problem with when the temperature is above 0.", rich_help_panel=_DECODING
        ),
    ] = 1,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Problems decoded at once while calibrating. By default as many as fit in memory, at most 32.",
            rich_help_panel=_DECODING,
        ),
    ] = None,
    compile: Annotated[
        str,
        typer.Option(
            help="How rounds are called in all that is decoded and timed. off: directly. capture: as graphs, which "
            "removes Python and keeps the texts. on: as graphs of compiled kernels, which round differently. auto: "
            "capture, where that saves more time within the planned work than it takes.",
            rich_help_panel=_DECODING,
        ),
    ] = "auto",
    engine: Annotated[
        str,
        typer.Option(
            help="What decodes, times and is certified: fsd-calib, our own engine, or vllm, for profiles that vLLM "
            "serves (needs vLLM in this environment). With --certify also fsd-calib,vllm: the second is tested once "
            "the first has passed, in the same attempt, and each has a profile in a folder of its name in --out.",
            rich_help_panel=_DECODING,
        ),
    ] = "fsd-calib",
    engine_args: Annotated[
        str | None,
        typer.Option(
            help="Arguments of vLLM's engine, as JSON: '{\"tensor_parallel_size\": 4}'.",
            rich_help_panel=_DECODING,
        ),
    ] = None,
    workers: WorkersOption = None,
    ray: RayOption = None,
    version: VersionOption = False,
    policy: Annotated[list[str] | None, typer.Option("--policy", hidden=True)] = None,
) -> None:
    """Finds how lossy speculative decoding can be on a task: the fastest threshold that keeps the accuracy
    you ask for (or the most accurate one at the speed you ask for).

    A small draft model proposes tokens and the target checks them. Accepting more tokens than an exact check
    would makes decoding faster and may cost accuracy. This command measures that cost, certifies its choice on
    problems that were not used to make it, and writes profile.json, which fsd-generate and SpeculativeDecoder
    follow.
    """
    given = options_given(context)
    found = None if certify is None else profile_to_certify(certify, given)
    if found is not None:
        task, min_acc = task or found.task, found.certificate.wanted if min_acc is None else min_acc
        acc, seed = acc if "acc" in given else found.certificate.acc, seed if "seed" in given else found.seed
    if task is None:
        raise UsageError(f"Missing option '--task': give one of {TASK_NAMES}, or --certify with a profile")
    task = named_task(task, subjects)
    task_kind(task)  # raises UsageError if it is unknown
    sampling = sampling_options(given, SamplingOptions(temperature, top_k, top_p), preset, greedy)
    if show_prompt:
        reply(_first_prompt(task, seed, limit, data, _models(task, target, draft)[0], loading.target))
        return
    goal = Goal(min_acc, min_speed, pareto, acc, confidence, guarantee, test, serve_batch)  # type: ignore[arg-type]
    way = _way(timing, no_timing)
    check_at_least_one({"--limit": limit, "--batch-size": batch_size, "--seeds": seeds, "--workers": workers})
    lengths = None if draft_length is None else whole_numbers("--draft-length", draft_length)
    engines = several("--engine", engine)
    folder = out if out is not None else Path("fsd-profile") / _folder(task, engines, found is not None)
    check_writable(folder, _EARLIER)
    policies = _policies(threshold_policy, policy)

    from fsd_decoding.divergence import check_name
    from fsd_decoding.loading import as_dtype, check_device

    for name in (names := several("--divergence", divergence)):
        check_name(name)
    as_dtype(dtype)
    if device is not None:
        check_device(device)

    from fsd_calib.calibration.api import Calibration
    from fsd_calib.calibration.recertify import decoding_of
    from fsd_calib.calibration.run_config import RunConfig
    from fsd_calib.cli.in_turn import print_plans, run_and_report
    from fsd_calib.display.chosen import stderr_progress
    from fsd_decoding.config import DecodingConfig
    from fsd_decoding.sampling import Sampling

    quiet_libraries()
    large, small = _models(task, target, draft) if found is None else models_of(found, target, draft)
    decoding = replace(decoding_of(found), seed=seed) if found is not None else DecodingConfig(
        rule=several("--rule", rule), divergence=names, draft_length=lengths,
        sampling=Sampling(*sampling), seed=seed, stop_policy=predictor, threshold_policy=policies,
    )  # fmt: skip
    config = RunConfig(
        batch_size=batch_size, device=device, dtype=dtype, model_kwargs=loading.target,
        draft_model_kwargs=loading.draft, limit=limit, data=data, seeds=seeds, timing=way, out=folder, cache=cache,
        state=state, workers=workers, ray=ray, storage=storage, progress=stderr_progress(),
        engine_args=None if engine_args is None else json_object("--engine-args", engine_args),
        compile=compile, engine="vllm" if "vllm" in engines else engines[0],  # type: ignore[arg-type]
    )  # fmt: skip
    calibration = Calibration(task, large, small, goal, decoding, config, fixed=found)
    with interruptible(lambda: _kept(config)):
        if plan:
            print_plans(calibration, engines)
            return
        met = run_and_report(calibration, engines)
    if not met:
        raise typer.Exit(NOT_MET)


def main() -> None:
    leave(app, NAME)


def _policies(present: list[str] | None, former: list[str] | None) -> tuple[str, ...]:
    """The threshold policies by name. UsageError: the option is given under both of its names."""
    if former:
        if present:
            raise UsageError("--policy and --threshold-policy are the same option; leave --policy, its old name, out")
        say(NAME, "--policy is now called --threshold-policy")
    return several("--threshold-policy", ",".join(present or former or ["constant"]))


def _folder(task: str, engines: Sequence[str], certifies: bool) -> str:
    """The default folder: one engine's profile does not replace another's, nor a certified setting a searched one."""
    of_engine = "-vllm" if engines == ("vllm",) else ""  # of several each has a folder of its own in it
    return folder_name(task) + of_engine + ("-certified" if certifies else "")


def _way(timing: str, no_timing: bool) -> Any:
    """Returns the `timing` of `RunConfig`. UsageError: both options are given."""
    if no_timing and timing != "run":
        raise UsageError(f"--timing {timing} and --no-timing contradict each other; leave one of them out")
    return "none" if no_timing else timing


def _first_prompt(
    task: str, seed: int, limit: int | None, data: Path | None, target: str, options: ModelOptions
) -> str:
    from fsd_calib.tasks.registry import load_task
    from fsd_decoding.loading import load_tokenizer

    return load_task(task, seed, limit, data, load_tokenizer(target, options)).problems[0].prompt


def _models(task: str, target: str | None, drafts: list[str] | None) -> tuple[str, list[str]]:
    """Target and drafts, without repeats: those given, or the task's defaults."""
    large, small = given_or_default(task, target, drafts[0] if drafts else None)
    return large, list(dict.fromkeys(drafts or [small]))


def _kept(config: RunConfig) -> str:
    """Returns what an interrupted calibration keeps."""
    from fsd_calib.calibration.session import DECODINGS
    from fsd_calib.search.storage_url import is_url, without_password
    from fsd_calib.storage.user_folders import default_cache

    cache, storage = config.path("cache") or default_cache(), config.study_storage
    kept = [f"the decodings in {cache}"] if (cache / DECODINGS).exists() else []
    if storage is not None and (is_url(storage) or Path(storage).exists()):
        kept.append(f"the search in {without_password(storage)}")
    if not kept:
        return "nothing was measured yet; the same command begins anew"
    return f"{' and '.join(kept)} are kept; the same command resumes from there"
