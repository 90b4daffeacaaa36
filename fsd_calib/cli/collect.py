"""`fsd-collect`: decodes a task's problems and records what both models predicted for every token.

Heavy imports are inside functions, so that `--help` prints at once.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fsd_calib.cli.beforehand import check_cluster, check_place, check_sources, check_words, divergences
from fsd_calib.cli.choices import DIVERGENCES, RULES
from fsd_calib.cli.completion import tasks
from fsd_calib.cli.console import check_at_least_one, check_writable, interruptible, leave, load_libraries, reply
from fsd_calib.cli.family import Family
from fsd_calib.cli.groups import grouped
from fsd_calib.cli.loading_options import loads_models
from fsd_calib.cli.on_policy_options import PolicyOptions
from fsd_calib.cli.options import DATA, DECODING, PairOptions, ProcessOptions, given_or_default, options_given
from fsd_calib.cli.output_options import OutputOptions, reply_json
from fsd_calib.cli.task_options import (
    TASK_NAMES,
    AskingOptions,
    DrawingOptions,
    ProblemOptions,
    folder_name,
    named_task,
)
from fsd_calib.tasks.registry import task_kind
from fsd_common.argument_checks import check_sampling
from fsd_common.errors import UsageError
from fsd_decoding.model_options import USUAL_LOADING, Loading

if TYPE_CHECKING:
    from fsd_calib.tasks.base import Task
    from fsd_collectors.store.reading import Traces

NAME = "fsd-collect"
_EPILOG = """
Examples: fsd-collect --task arithmetic --out traces · fsd-collect --task arithmetic --rule fsd --threshold inf

Exit codes: 0 done · 2 bad input · 130 interrupted (the same command continues where this one stopped)
"""

app = Family()


@app.command(epilog=_EPILOG)
@loads_models
@grouped
def command(
    context: typer.Context,
    task: Annotated[
        str,
        typer.Option(
            help=f"Task whose problems are decoded: {TASK_NAMES}.", rich_help_panel=DATA, autocompletion=tasks
        ),
    ],
    models: PairOptions,
    loading: Loading = USUAL_LOADING,
    *,
    problems: ProblemOptions,
    asking: AskingOptions,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the traces. By default fsd-traces/TASK.", rich_help_panel=DATA),
    ] = None,
    hidden: Annotated[
        str | None,
        typer.Option(
            help="Also record the draft's last hidden state: 'whole', or a number of dimensions to project it to.",
            rich_help_panel=DATA,
        ),
    ] = None,
    policies: PolicyOptions,
    drawing: DrawingOptions,
    batch_size: Annotated[int, typer.Option(help="Problems decoded at once.", rich_help_panel=DECODING)] = 32,
    processes: ProcessOptions,
    output: OutputOptions,
) -> None:
    """Collects traces: the predictions of the target and the draft for every token, as Parquet files.

    Along the target (the default), both models read the target's own completions; this is cheap, and one trace serves
    every rule and threshold. On-policy (with --rule), texts are decoded with that rule, and every drafted token is
    recorded, including rejected ones. Inspect the result with fsd-traces, or read it with load_traces, pandas,
    datasets or DuckDB.
    """
    progress = output.begin()
    task = named_task(task, problems.subjects)
    task_kind(task)  # raises UsageError if it is unknown
    sampling = drawing.sampling(options_given(context))
    check_at_least_one({
        "--limit": problems.limit, "--draft-length": policies.draft_length, "--batch-size": batch_size,
        "--workers": processes.workers,
    })  # fmt: skip
    width = _width(hidden)
    check_sampling(*sampling)
    check_words(
        ("--rule", [policies.rule], RULES), ("--divergence", divergences([policies.divergence]), DIVERGENCES)
    )  # fmt: skip
    check_place(models.device, models.dtype)
    check_sources({"model": [models.target, models.draft]}, problems.data)
    check_cluster(processes.ray)
    large, small = given_or_default(task, models.target, models.draft)
    folder = out if out is not None else Path("fsd-traces") / folder_name(task)
    check_writable(folder, ())
    load_libraries(progress)

    from fsd_calib.calibration.memory import capacity_of, plan_memory
    from fsd_calib.calibration.run_config import RunConfig
    from fsd_calib.calibration.usable import context_of, usable
    from fsd_calib.tasks.registry import load_task
    from fsd_collectors.collection.run import collect_traces, policy_of
    from fsd_decoding.loading import check_device, check_loading, load_tokenizer
    from fsd_decoding.sampling import Sampling
    from fsd_decoding.workers.model_workers import Sources, open_workers

    device, dtype, on_policy = models.device, models.dtype, asdict(policies)
    if device is not None:
        check_device(device)
    policy = policy_of(**on_policy, within_support=False)
    check_loading(large, [small], device, loading.target, loading.draft)
    with interruptible(lambda: _on_disk(folder)):
        tokenizer = load_tokenizer(large, loading.target)
        loaded = load_task(task, problems.seed, problems.limit, problems.data, tokenizer, **asking.keywords)
        _check_graded(loaded, policy)
        asked = usable(
            loaded, tokenizer, context_of([(large, loading.target), (small, loading.draft)], dtype), progress.note
        )
        memory = plan_memory(
            large, [small], tokenizer, asked, asked.problems, Sampling(*sampling),
            policy.draft_length if policy else 1, 1,
            RunConfig(
                batch_size, device, dtype, progress=progress, model_kwargs=loading.target,
                draft_model_kwargs=loading.draft,
            ),
        )  # fmt: skip
        sources = Sources(large, (small,), device, dtype, loading)
        capacity = capacity_of(asked.problems, memory, batch_size)
        with open_workers(processes.workers, processes.ray, sources, capacity, progress.note) as others:
            traces = collect_traces(
                asked, target=large, draft=small, out=folder, **on_policy, **sampling._asdict(), hidden=width,
                seed=problems.seed, batch_size=batch_size, device=device, dtype=dtype, model_kwargs=loading.target,
                draft_model_kwargs=loading.draft, progress=progress, workers=others or 1,
            )  # fmt: skip
    found = _summary(traces)
    if output.as_json:
        reply_json(NAME, {"folder": folder.absolute(), **found})
    else:
        reply(
            f"{folder} holds {found['completions']} completions, {found['tokens']} tokens, accuracy "
            f"{found['accuracy']:.4f}"
        )


def main() -> None:
    leave(app, NAME)


def _check_graded(task: Task, policy: object) -> None:
    """UsageError: texts are graded by the target's own, and texts of another rule are collected without those."""
    if task.by_agreement and policy is not None:
        raise UsageError(
            f"task {task.name} grades texts by the target's own, which traces on-policy lack; leave --rule out to "
            "collect along the target"
        )


def _width(hidden: str | None) -> int | Literal["whole"] | None:
    if hidden is None:
        return None
    if hidden == "whole":
        return "whole"
    if not hidden.isdecimal() or int(hidden) < 1:
        raise UsageError(f"--hidden is {hidden!r}; it must be 'whole', or a whole number of at least 1")
    return int(hidden)


def _summary(traces: Traces) -> dict[str, int | float]:
    done = traces.completions.to_table(columns=["emitted", "correct"]).to_pydict()
    count = len(done["correct"])
    return {"completions": count, "tokens": sum(done["emitted"]), "accuracy": sum(done["correct"]) / count}


def _on_disk(folder: Path) -> str:
    from fsd_collectors.store.reading import load_traces

    try:
        traces = load_traces(folder)
    except UsageError:
        return f"{folder} holds nothing yet"
    problems = sum(shard.problems for shard in traces.shards)
    wanted = traces.manifest.task.problems
    return f"{folder} holds {problems} of {wanted} completions; the same command continues from there"
