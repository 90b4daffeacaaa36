"""`fsd sweep`: accuracy and tokens a round at given thresholds, of several tasks in one table.

Heavy imports are inside functions, so that `--help` prints at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from fsd_calib.cli.console import check_writable, interruptible, leave, load_libraries, reply, reply_json
from fsd_calib.cli.drafters import Drafters
from fsd_calib.cli.family import Family, Given, Options, ending
from fsd_calib.cli.options import LoadingOptions, PresetOption, check_found, check_sources, with_preset
from fsd_calib.cli.output import OutputOptions
from fsd_calib.options.common import MODELS, RULES_WITH_T, SCORES, Drawing, Target
from fsd_calib.options.goal import Goal
from fsd_calib.options.run_config import RunConfig
from fsd_calib.options.search_space import SearchSpace
from fsd_calib.tasks.asking import PromptOptions
from fsd_calib.tasks.registry import completed_tasks, task_kind
from fsd_common.errors import UsageError
from fsd_common.option import Option, numbers, several, whole_numbers
from fsd_decoding.model_options import Loading

NAME = "fsd sweep"
_EPILOG = ending(
    "Exit codes: 0 done · 2 bad input · 130 interrupted (the same command continues where this one stopped)",
    "fsd sweep --tasks arithmetic --thresholds 0.1,0.3,0.6",
    "fsd sweep --tasks gsm8k,csqa --thresholds 0.1,0.4 --format csv",
    "fsd sweep --tasks arithmetic --score js,margin --thresholds 0.2,inf",
)
_GRID = "Grid"
_OF_RUN = ("device", "dtype", "batch_size", "limit", "seeds", "engine", "engine_args", "workers", "ray", "cache",
           "state", "compile", *PromptOptions.model_fields)  # fmt: skip

app = Family()


@app.command(epilog=_EPILOG, everyday="tasks thresholds score draft_length target draft limit format out part")
def command(
    tasks: Annotated[
        tuple[str, ...],
        Option("Tasks, with commas between them: names, or files in YAML.", _GRID, words=completed_tasks, read=several),
    ],
    thresholds: Annotated[
        tuple[float, ...],
        Option(
            "Values of T of at least 0, such as 0.1,0.3,inf (which accepts everything). The lossless rule has a row in "
            "any case.",
            _GRID,
            read=numbers,
        ),
    ],
    score: Annotated[
        tuple[str, ...] | None,
        Option(
            f"Scores that T bounds: {', '.join(SCORES)}, or mine:Name. By default js, of the rule ensemble its own.",
            _GRID,
            words=SCORES,
            read=several,
            also="divergence",
        ),
    ] = None,
    draft_length: Annotated[
        tuple[int, ...], Option("Numbers of tokens drafted a round: 5, 2-8, or 3,5.", _GRID, read=whole_numbers)
    ] = (5,),
    rule: Annotated[
        str, Option(f"Acceptance rule: {', '.join(RULES_WITH_T)}.", _GRID, words=RULES_WITH_T)
    ] = "fsd-coupled",
    part: Annotated[
        Literal["tuning", "all"],
        Option(
            "The problems to decode: those that calibrations tune on, about a fifth (of --limit, too), or all, on "
            "which none can certify afterwards.",
            _GRID,
        ),
    ] = "tuning",
    confidence: Annotated[float, Option("Confidence of the intervals.", _GRID)] = 0.95,
    target: Target = None,
    draft: Annotated[str | None, Option("The small model, with the target's tokenizer.", MODELS)] = None,
    head: Annotated[str | None, Option("An EAGLE head of the target, which drafts instead.", MODELS)] = None,
    format: Annotated[
        Literal["table", "csv", "latex", "json"], Option("table, csv, latex (with booktabs) or json.")
    ] = "table",
    out: Annotated[Path | None, Option("Write csv, latex or json to this file, and not on stdout.")] = None,
    preset: PresetOption = None,
    *,
    drawing: Annotated[Given, Options(Drawing)],
    run: Annotated[Given, Options(RunConfig, only=_OF_RUN)],
    loading: Annotated[Loading, LoadingOptions()],
    output: OutputOptions,
) -> None:
    """Decodes tasks at every T, score and draft length that are given, and prints what each keeps and gains: the
    paper's table for your models.

    Nothing is searched, tested or timed. Texts are kept, so that an interrupted sweep goes on, and a larger one decodes
    what is new alone. "× lossless" compares tokens a round with those of the lossless rule at the same draft length:
    how many times as fast it is, as a round takes as long.
    """
    progress = output.begin()
    scores = score or (("ensemble",) if rule == "ensemble" else ("js",))
    _check(scores, rule, confidence, format, out, output.as_json)
    run |= {"engine": _one(run["engine"])} if "engine" in run else {}
    check_sources({"--target": [target], "--draft": [draft], "--head": [head]})
    drafters = Drafters([draft] if draft else [], [head] if head else [], ())
    for task in tasks:
        drafters.check_pair(task, target)
        task_kind(task)
    sampling = with_preset(drawing, preset)
    config = RunConfig(
        **run, timing="none", progress=progress, model_kwargs=loading.target, draft_model_kwargs=loading.draft
    )
    load_libraries(progress)

    from fsd_calib.calibration.api import Calibration
    from fsd_calib.sweeping.sweep import Grid, sweep

    space = SearchSpace(rule=rule, score=scores, draft_length=draft_length, **sampling)
    grid = Grid(rule, scores, thresholds, draft_length, part)
    goal, rows = Goal(min_acc=0.5, explore=True), []
    with interruptible(lambda: "what was decoded is kept: the same command continues"):
        models = [drafters.with_target(task, target) for task in tasks]
        if len({large for large, _ in models}) > 1:
            raise UsageError(
                f"tasks {', '.join(tasks)} have different usual models, and a table is of one pair; give --target and "
                "--draft"
            )
        asked = [Calibration(task, *of_task, goal, space, config) for task, of_task in zip(tasks, models, strict=True)]
        for later in asked[1:]:
            later.check()  # before hours are spent on the first
        if part == "all":
            progress.note(
                "warning: all problems are decoded, so that none of them certifies these models later (--state FOLDER "
                "counts that apart)"
            )
        for of_task in asked:
            rows += sweep(of_task, grid, confidence)

    from fsd_calib.sweeping.tables import as_csv, as_json, as_latex, print_tables, records
    from fsd_common.console import LiteralConsole

    if output.as_json or (format == "json" and out is None):
        reply_json(NAME, {"rows": records(rows, confidence)})
    elif format == "table":
        print_tables(rows, confidence, LiteralConsole())
    else:
        _write({"csv": as_csv, "latex": as_latex, "json": as_json}[format](rows, confidence), out)


def _one(engines: Sequence[str]) -> str:
    """The engine. UsageError: there are several, or it is a server, which decodes as it was started."""
    if len(engines) > 1 or "server" in engines:
        raise UsageError(f"--engine is {','.join(engines)!r}; a sweep has one of fsd-calib and vllm")
    return engines[0]


def _check(scores: Sequence[str], rule: str, confidence: float, format: str, out: Path | None, as_json: bool) -> None:
    check_found("score", "--score", scores, SCORES)
    if rule not in RULES_WITH_T:
        raise UsageError(f"--rule is {rule!r}; it must be one of {', '.join(RULES_WITH_T)}")
    if not 0 < confidence < 1:
        raise UsageError(f"--confidence is {confidence}; it must be above 0 and below 1, such as 0.95")
    if format not in ("table", "csv", "latex", "json"):
        raise UsageError(f"--format is {format!r}; it must be one of table, csv, latex, json")
    if as_json and (format != "table" or out is not None):
        raise UsageError("--json prints the result on stdout, and so does --format json; leave --format and --out out")
    if out is not None and format == "table":
        raise UsageError("--out takes --format csv, latex or json; a table is printed")
    if out is not None:
        check_writable(out.parent, (out.name,))


def _write(text: str, out: Path | None) -> None:
    if out is None:
        reply(text.rstrip("\n"))
        return
    from fsd_decoding.profile.io import write_atomically

    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, text.rstrip("\n") + "\n", "the sweep")
    reply(str(out))


def main() -> None:
    leave(app, NAME)
