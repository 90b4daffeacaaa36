"""`fsd-collect`: decodes a task's problems and records what both models predicted for every token.

Heavy imports are inside functions, so that `--help` prints at once.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from fsd_calib.calibrate_options import RunConfig
from fsd_calib.cli.console import check_writable, interruptible, leave, load_libraries, reply, reply_json
from fsd_calib.cli.drafters import given_or_default
from fsd_calib.cli.family import Family, Given, OptionGroup, Options, ending
from fsd_calib.cli.options import (
    LoadingOptions,
    PresetOption,
    SubjectsOption,
    check_data,
    check_found,
    check_place,
    check_sources,
    folder_name,
    named_task,
    with_preset,
)
from fsd_calib.cli.output import OutputOptions
from fsd_calib.common_options import (
    DECODING,
    DRAFT,
    MODELS,
    RULES,
    RULES_WITHOUT_T,
    SCORES,
    TASK_NAMES,
    Drawing,
    Seed,
    Target,
)
from fsd_calib.tasks.asking import PROBLEMS, PromptOptions
from fsd_calib.tasks.registry import completed_tasks, task_kind
from fsd_common.argument_checks import check_count
from fsd_common.errors import UsageError
from fsd_common.option import Option
from fsd_decoding.model_options import Loading
from fsd_decoding.workers.backends import check_answers

if TYPE_CHECKING:
    from fsd_calib.tasks.base import Task
    from fsd_collectors.store.reading import Traces

NAME = "fsd-collect"
_EPILOG = ending(
    "Exit codes: 0 done · 2 bad input · 130 interrupted (the same command continues where this one stopped)",
    "fsd collect --task arithmetic --out traces",
    "fsd collect --task arithmetic --rule fsd --threshold inf",
    "fsd collect --task gsm8k --target BIG --draft SMALL --log-probs 50",
)

_POLICY = "On-policy only"
_OF_RUN = ("device", "dtype", "data", "limit", "group", "workers", "ray", *PromptOptions.model_fields)

app = Family()


@dataclass(frozen=True)
class PolicyOptions(OptionGroup):
    """The rule that texts are decoded with, in place of the target's own."""

    rule: Annotated[
        str | None,
        Option(
            f"Collect on-policy, with this acceptance rule: {', '.join(RULES)}, or mine:Name. By default, "
            "traces are collected along the target.",
            _POLICY,
            words=RULES,
        ),
    ] = None
    threshold: Annotated[
        float | None, Option("The rule's threshold. inf with --rule fsd accepts every token.", _POLICY)
    ] = None
    score: Annotated[
        str | None,
        Option(
            "The score that the threshold bounds. By default js; all divergences are recorded either way.",
            _POLICY,
            words=SCORES,
            also="divergence",
        ),
    ] = None
    draft_length: Annotated[int | None, Option("Tokens drafted per round. By default 5.", _POLICY)] = None


@app.command(epilog=_EPILOG, everyday="task target draft out rule threshold temperature limit batch_size log_probs")
def command(
    task: Annotated[str, Option(f"Task whose problems are decoded: {TASK_NAMES}.", PROBLEMS, words=completed_tasks)],
    target: Target = None,
    draft: Annotated[str | None, Option(DRAFT, MODELS)] = None,
    subjects: SubjectsOption = None,
    seed: Seed = 0,
    out: Annotated[Path | None, Option("Folder for the traces. By default fsd-traces/TASK.", PROBLEMS)] = None,
    hidden: Annotated[
        str | None,
        Option(
            "Also record the draft's last hidden state: 'whole', or a number of dimensions to project it to.", PROBLEMS
        ),
    ] = None,
    log_probs: Annotated[
        int | None,
        Option(
            "Also record the log-probabilities of so many of the likeliest tokens of both models, such as 50, of which "
            "further scores are computed later (fsd-traces describe --score).",
            PROBLEMS,
        ),
    ] = None,
    batch_size: Annotated[int, Option("Problems decoded at once.", DECODING)] = 32,
    preset: PresetOption = None,
    *,
    run: Annotated[Given, Options(RunConfig, only=_OF_RUN)],
    loading: Annotated[Loading, LoadingOptions()],
    policies: PolicyOptions,
    drawing: Annotated[Given, Options(Drawing)],
    output: OutputOptions,
) -> None:
    """Collects traces: the predictions of the target and the draft for every token, as Parquet files.

    Along the target (the default), both models read the target's own completions; this is cheap, and one trace serves
    every rule and threshold. On-policy (with --rule), texts are decoded with that rule, and every drafted token is
    recorded, including rejected ones. Inspect the result with fsd-traces, or read it with load_traces, pandas,
    datasets or DuckDB.
    """
    progress = output.begin()
    task = named_task(task, subjects)
    kind = task_kind(task)
    drawn = Drawing.over({}, with_preset(drawing, preset))
    config = RunConfig(
        **run, batch_size=batch_size, progress=progress, model_kwargs=loading.target,
        draft_model_kwargs=loading.draft, compile="off",
    )  # fmt: skip
    _check_policy(policies)
    if log_probs is not None:
        check_count("--log-probs", log_probs)
    width = _width(hidden)
    device, dtype, data = config.device, config.dtype, config.path("data")
    check_place(device, dtype)
    check_sources({"model": [target, draft]})
    check_data(kind, data)
    if config.ray is not None:
        check_answers(config.ray)
    large, small = given_or_default(task, target, draft)
    folder = out if out is not None else Path("fsd-traces") / folder_name(task)
    check_writable(folder, ())
    load_libraries(progress)

    from fsd_calib.calibration.memory import capacity_of, context_of, plan_memory, usable
    from fsd_calib.certification.marking import mark
    from fsd_calib.tasks.registry import load_task
    from fsd_collectors.collection.run import collect_traces, policy_of
    from fsd_decoding.loading import check_device, check_loading, load_tokenizer
    from fsd_decoding.sampling import Sampling
    from fsd_decoding.workers.model_workers import Sources, open_workers

    on_policy = asdict(policies)
    if device is not None:
        check_device(device)
    policy = policy_of(**on_policy, within_support=False)
    check_loading(large, [small], device, loading.target, loading.draft)
    with interruptible(lambda: _on_disk(folder)):
        tokenizer = load_tokenizer(large, loading.target)
        loaded = load_task(task, seed, config.limit, data, tokenizer, config.group, **dict(config.prompts))
        _check_graded(loaded, policy)
        asked = usable(loaded, tokenizer, context_of(large, loading.target), progress.note)
        memory = plan_memory(
            large, [small], tokenizer, [asked], Sampling(**dict(drawn)),
            policy.draft_length if policy else 1, 1, config,
        )  # fmt: skip
        sources = Sources(large, (small,), device, dtype, loading)
        capacity = capacity_of(asked.problems, memory, batch_size)
        with open_workers(config.workers, config.ray, sources, capacity, progress.note) as others:
            traces = collect_traces(
                asked, target=large, draft=small, out=folder, **on_policy, **dict(drawn), hidden=width,
                log_probs=log_probs, seed=seed, batch_size=batch_size, device=device, dtype=dtype,
                model_kwargs=loading.target, draft_model_kwargs=loading.draft, progress=progress, workers=others or 1,
                before_fuzzy=mark,
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


def _check_policy(given: PolicyOptions) -> None:
    """Raises UsageError where a setting has a value that it cannot have, or no rule that it is for."""
    check_found("rule", "--rule", [given.rule], RULES)
    check_found("score", "--score", [given.score], SCORES)
    if given.draft_length is not None:
        check_count("--draft-length", given.draft_length)
    for name, value in asdict(given).items():
        if given.rule is None and value is not None:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{option} is {value}, and is for on-policy traces alone; give --rule too, or leave it out"
            )
    if given.rule in RULES_WITHOUT_T and given.threshold is not None:
        raise UsageError(f"--threshold is {given.threshold}, and --rule {given.rule!r} has none; leave it out")
    if given.rule in RULES and given.rule not in RULES_WITHOUT_T and given.threshold is None:
        raise UsageError(f"--rule {given.rule!r} needs a --threshold; inf accepts all that a threshold can")


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
