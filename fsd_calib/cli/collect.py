"""`fsd-collect`: decodes a task's problems and records what both models predicted for every token.

Heavy imports are inside functions, so that `--help` prints at once.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
    check_words,
    folder_name,
    named_task,
    with_preset,
)
from fsd_calib.cli.output import OutputOptions
from fsd_calib.options.common import (
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
from fsd_calib.options.run_config import RunConfig
from fsd_calib.tasks.asking import PROBLEMS, PromptOptions
from fsd_calib.tasks.registry import completed_tasks, task_kind
from fsd_common.argument_checks import check_count, named
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
    "fsd collect --task arithmetic --rule fsd --threshold inf --out traces",
    "fsd collect --task gsm8k --target BIG --draft SMALL --log-probs 50",
    "fsd collect --task arithmetic --judge outcome --budget 500 --out labels",
)

_POLICY = "On-policy only"
_JUDGE = "Labels for a judge"
_MODES = ("outcome", "self")
_SWAPS = ("left-to-right", "single")
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


@dataclass(frozen=True)
class JudgeOptions(OptionGroup):
    """What is labelled where labels are collected in the place of traces."""

    judge: Annotated[
        str | None,
        Option(
            "Collect labels instead of traces: at mismatches of tuning problems the draft's token is put in. outcome: "
            "does the right answer become wrong? self: how much less likely is the target's own text then?",
            _JUDGE,
            words=_MODES,
        ),
    ] = None
    swaps: Annotated[
        str | None,
        Option(
            "left-to-right: a swap that keeps the answer right stays in the text, the default of outcome; single: each "
            "swap is made in the target's own text, as always with self.",
            _JUDGE,
            words=_SWAPS,
        ),
    ] = None
    budget: Annotated[
        int | None,
        Option("Positions to label at most. By default 2000; with a larger one the same command goes on.", _JUDGE),
    ] = None
    per_problem: Annotated[
        int | None,
        Option("Positions to label of each problem at most, drawn at random. By default all mismatches.", _JUDGE),
    ] = None

    @property
    def settings(self) -> dict[str, Any]:
        """What is given, as arguments of `collect_labels`."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return {"mode" if name == "judge" else name: value for name, value in given.items()}


@app.command(epilog=_EPILOG, everyday="task target draft out rule threshold temperature limit log_probs judge")
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
    judging: JudgeOptions,
    drawing: Annotated[Given, Options(Drawing)],
    output: OutputOptions,
) -> None:
    """Collects traces: the predictions of the target and the draft for every token, as Parquet files; or, with --judge,
    labels of mismatches, of which a judge is trained.

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
    _check_judging(judging, {**asdict(policies), "hidden": hidden, "log_probs": log_probs})
    if log_probs is not None:
        check_count("--log-probs", log_probs)
    width = _width(hidden)
    device, dtype, data = config.device, config.dtype, config.path("data")
    check_place(device, dtype)
    check_sources({"--target": [target], "--draft": [draft]})
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
    from fsd_collectors.judging.collect import collect_labels
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
        collect = (
            partial(collect_labels, **judging.settings)
            if judging.judge is not None
            else partial(collect_traces, **on_policy, hidden=width, log_probs=log_probs)
        )
        with open_workers(config.workers, config.ray, sources, capacity, progress.note) as others:
            traces = collect(
                asked, target=large, draft=small, out=folder, **dict(drawn), seed=seed, batch_size=batch_size,
                device=device, dtype=dtype, model_kwargs=loading.target, draft_model_kwargs=loading.draft,
                progress=progress, workers=others or 1, before_fuzzy=mark,
            )  # fmt: skip
    found, said = _summary(traces) if judging.judge is None else _summary_of_labels(traces)
    if output.as_json:
        reply_json(NAME, {"folder": folder.absolute(), **found})
    else:
        reply(f"{folder} holds {said}")


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


def _check_judging(given: JudgeOptions, of_traces: dict[str, object]) -> None:
    """Raises UsageError where options do not go together, or have values that they cannot have."""
    if given.judge is None:
        for name in given.settings:
            raise UsageError(f"{named(name)} is for labels alone; give --judge too, or leave it out")
        return
    check_words(("--judge", [given.judge], _MODES), ("--swaps", [given.swaps], _SWAPS))
    for name, value in of_traces.items():
        if value is not None:
            raise UsageError(f"{named(name)} is {value}, and is for traces, not for labels; leave it or --judge out")
    for name in ("budget", "per_problem"):
        if name in given.settings:
            check_count(named(name), given.settings[name])


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


def _summary(traces: Traces) -> tuple[dict[str, int | float], str]:
    """What was collected, for --json and in words."""
    done = traces.completions.to_table(columns=["emitted", "correct"]).to_pydict()
    count = len(done["correct"])
    found = {"completions": count, "tokens": sum(done["emitted"]), "accuracy": sum(done["correct"]) / count}
    return found, f"{count} completions, {found['tokens']} tokens, accuracy {found['accuracy']:.4f}"


def _summary_of_labels(traces: Traces) -> tuple[dict[str, int | float], str]:
    """The same of labels."""
    labels = traces.to_pandas(table="labels")
    found: dict[str, int | float] = {
        "labels": len(labels), "problems": labels["problem"].nunique(), "spent": int(labels["spent"].sum()),
    }  # fmt: skip
    said = f"{found['labels']} labels of {found['problems']} problems"
    if "harmful" in labels:
        found["harmful"] = int(labels["harmful"].sum())
        said += f", of which {found['harmful']} are harmful"
    return found, f"{said}; {found['spent']} tokens behind them"


def _on_disk(folder: Path) -> str:
    from fsd_collectors.store.reading import load_traces

    try:
        traces = load_traces(folder)
    except UsageError:
        return f"{folder} holds nothing yet"
    if traces.manifest.way == "labels":
        labels = sum(shard.file("labels").rows for shard in traces.shards)
        return f"{folder} holds {labels} labels; the same command continues from there"
    problems = sum(shard.problems for shard in traces.shards)
    wanted = traces.manifest.task.problems
    return f"{folder} holds {problems} of {wanted} completions; the same command continues from there"
