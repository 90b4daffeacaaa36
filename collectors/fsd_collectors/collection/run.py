"""`collect_traces`: collects traces of a task's problems into a folder, portion by portion."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib.metadata import version
from typing import Any, Protocol

import pyarrow as pa

from fsd_collectors.collection.along_target import check_draft
from fsd_collectors.collection.measures import HiddenStates, Measures, Width
from fsd_collectors.collection.portions import Completions, Portion, PortionJob, Reading, ReadPortion, read_in_workers
from fsd_collectors.manifest import Manifest, Policy, TaskInfo
from fsd_collectors.split import Identified, check_ids, tuning_and_certification
from fsd_collectors.store.reading import Traces, load_traces
from fsd_collectors.store.writing import TraceWriter
from fsd_common.addons import Addon
from fsd_common.argument_checks import check_count, check_settings, named
from fsd_common.errors import UnfinishedError, UsageError
from fsd_common.progress.base import Advance, Progress
from fsd_decoding import rules
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.divergence import DIVERGENCES
from fsd_decoding.engine.engine import ENGINE_VERSION
from fsd_decoding.loading import ModelSource, check_loading, is_source
from fsd_decoding.model_options import ModelKwargs
from fsd_decoding.models.fingerprint import tokenizer_fingerprint
from fsd_decoding.profile.drafts import info_of
from fsd_decoding.profile.parts import ModelInfo, SamplingInfo
from fsd_decoding.rules import rule_named
from fsd_decoding.sampling import Sampling
from fsd_decoding.scores import Logits, addon_of
from fsd_decoding.workers.model_workers import Capacity, ModelWorkers, Sources, open_workers
from fsd_decoding.workers.models import texts_identity


class Task(Protocol):
    """Problems and the grading of answers, such as `fsd_calib.tasks.Task`; `stop` holds strings that end an answer."""

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def problems(self) -> Sequence[Identified]: ...
    @property
    def max_new_tokens(self) -> int: ...
    @property
    def stop(self) -> tuple[str, ...]: ...

    def grade(self, problem: Any, text: str) -> bool: ...


def collect_traces(
    task: Task, *, target: Any, draft: Any, out: str | os.PathLike[str], tokenizer: Any = None,
    rule: str | None = None, threshold: float | None = None, score: str | None = None,
    draft_length: int | None = None, within_support: bool = False,
    temperature: float = 0.0, top_k: int | None = None, top_p: float | None = None, min_p: float | None = None,
    scores: Sequence[str] | None = None, on: Logits = "raw", hidden: Width | None = None,
    log_probs: int | None = None, seed: int = 0, batch_size: int = 32, device: str | None = None,
    dtype: str | None = None, model_kwargs: ModelKwargs | None = None,
    draft_model_kwargs: ModelKwargs | None = None, progress: Progress | None = None,
    workers: int | ModelWorkers | None = None, ray: str | None = None,
    before_fuzzy: Callable[[Any, Sequence[Any]], None] | None = None,
) -> Traces:  # fmt: skip
    """Collects traces of a task's problems, or continues an unfinished run of the same settings.

    Without a rule, traces are collected along the target: both models read the target's own completions, so that every
    token has p and q. With a rule they are collected on-policy: texts are decoded under the rule, and every drafted
    token is kept.

    Args:
        task: problems whose prompts suit the target; a problem that occurs twice is collected once.
        target, draft: hub ids, paths, or loaded models (then `tokenizer` is needed). On-policy, the draft may be
            `NGram()`.
        out: folder to write.
        tokenizer: tokenizer of loaded models.
        rule, threshold, score, draft_length, within_support: settings of on-policy decoding; by default the
            score is "js" and the draft length 5. With an infinite threshold the rule "fsd" accepts every token of
            finite score, which on raw logits are all.
        temperature, top_k, top_p, min_p: see `Sampling`; temperature 0 is greedy.
        scores: names of the scores to keep; by default all divergences.
        on: logits on which these scores and the rule's are computed.
        hidden: also keeps the draft's last hidden state, "whole" or projected to a number of components.
        log_probs: also keeps the likeliest tokens of p and of q, so many of each, of which further scores are computed
            later (`with_scores`).
        seed: seed of the noise and of that projection.
        batch_size: completions decoded at once.
        device, dtype, model_kwargs, draft_model_kwargs: see `SpeculativeDecoder.from_pretrained`.
        progress: receives the number of finished problems.
        workers: processes that decode, each with models of its own and a portion at a time; 1: this process alone, as
            by default. Loaded models need workers that are open already, and load the same ones.
        ray: address of a Ray cluster to run the workers on, by default one for each of its GPUs or CPUs.
        before_fuzzy: called with the target and the problems before they are decoded under a threshold: what was looked
            at so cannot be certified on.

    Raises:
        UsageError: a setting is invalid, the models cannot be used together, or the folder holds another run, is in
            use by another collector or cannot be written.
    """
    policy = policy_of(rule, threshold, score, draft_length, within_support)
    check_count("batch_size", batch_size)
    kept = tuple(DIVERGENCES) if scores is None else tuple(scores)
    if log_probs is not None:
        check_count(named("log_probs"), log_probs)
    measures = Measures(kept, on, Sampling(temperature, top_k, top_p, min_p), log_probs or 0)
    decoder = SpeculativeDecoder.from_pretrained(
        target, draft, tokenizer=tokenizer, rule=policy.rule if policy else "target",
        score=policy.score if policy else "js", threshold=0.0 if threshold is None else threshold,
        draft_length=policy.draft_length if policy else 1, device=device, dtype=dtype,
        model_kwargs=model_kwargs, draft_model_kwargs=draft_model_kwargs, seed=seed,
        sampling=measures.sampling, on=on, within_support=within_support, progress=progress,
    )  # fmt: skip
    states = None if hidden is None else _states(decoder, hidden, policy)
    problems = unique_problems(task)
    manifest = manifest_of(decoder, task, problems, policy, kept, states, batch_size, measures.log_probs)
    reading = Reading(measures, policy is not None, task.max_new_tokens, task.stop, batch_size)
    # These two raise for what would otherwise stop the run late: a prompt or the draft.
    requests = decoder.requests([problem.prompt for problem in problems], task.max_new_tokens)
    if policy is None:
        check_draft(decoder)
    if before_fuzzy is not None and policy is not None and not decoder.setting.lossless:
        before_fuzzy(decoder.target, problems)
    steps = progress.step("collecting", len(problems)) if progress else nullcontext(lambda done: None)
    loading = check_loading(target, [draft], device, model_kwargs, draft_model_kwargs)
    sources = Sources(target, (draft,), device, dtype, loading)
    with TraceWriter(out, manifest) as writer, opened(workers, ray, sources, len(problems), batch_size) as others:
        job = None if others is None else PortionJob(
            others.sources, draft if is_source(draft) else draft_source(decoder, others.sources),
            texts_identity(decoder), decoder.decoding, reading, hidden, _calls(policy),
        )  # fmt: skip
        size = manifest.portion
        portions = [
            Portion(begin // size, [problem.id for problem in problems[begin : begin + size]],
                    [request.prompt for request in requests[begin : begin + size]])
            for begin in range(writer.finished * size, len(problems), size)
        ]  # fmt: skip
        with states or nullcontext(), steps as advance, _telling(writer):
            advance(min(writer.finished * size, len(problems)))
            read_here = partial(reading.read, decoder, states, advance)
            for portion, read in _read(portions, read_here, advance, others, job):
                part = problems[portion.number * size : (portion.number + 1) * size]
                writer.write(portion.number, _tables(task, writer.manifest, part, portion, read, measures))
    return load_traces(out)


@contextmanager
def _telling(writer: TraceWriter) -> Iterator[None]:
    """Adds to the error of an unfinished run what its folder keeps."""
    try:
        yield
    except UnfinishedError as error:
        begin = writer.finished * writer.manifest.portion
        raise type(error)(f"{error} (prompts are counted from the task's {begin}). {kept_by(writer)}") from error


def kept_by(writer: TraceWriter) -> str:
    """Returns what the folder of an unfinished run keeps, in words."""
    others = "other settings need another folder" if writer.finished else "other settings may use this folder too"
    return (
        f"Folder {str(writer.folder)!r} keeps its {writer.finished} finished portions; the same settings continue "
        f"there, {others}"
    )


def _read(
    portions: Sequence[Portion],
    read_here: Callable[[Portion], ReadPortion],
    advance: Advance,
    others: ModelWorkers | None,
    job: PortionJob | None,
) -> Iterator[tuple[Portion, ReadPortion]]:
    """Yields the portions as they were read, in their order: here until workers are due, then by those."""
    for at, portion in enumerate(portions):
        if others is not None and others.due:
            assert job is not None
            for done, read in read_in_workers(others.pool, job, portions[at:]):
                advance(len(done.ids))
                yield done, read
            return
        with others.decoding_here() if others else nullcontext():
            read = read_here(portion)
        yield portion, read


def _tables(
    task: Task,
    manifest: Manifest,
    problems: Sequence[Identified],
    portion: Portion,
    read: ReadPortion,
    measures: Measures,
) -> dict[str, pa.Table]:
    """Grades the texts of a portion and returns its tables; `measures` are those that it was read with."""
    tuning = {problem.id for problem in tuning_and_certification(problems)[0]}
    splits = ["tuning" if problem.id in tuning else "certification" for problem in problems]
    correct = [task.grade(problem, result.text) for problem, result in zip(problems, read.results, strict=True)]
    done = Completions(manifest, portion.ids, splits, portion.prompts, read.results, correct)
    if read.along_target is not None:
        traced = read.along_target
        measured = measures.by_name(traced.measured)
        tokens = done.along_target(traced.owner, traced.position, measured, traced.states)
        return {"tokens": tokens, "completions": done.table()}
    assert read.on_policy is not None
    rounds, drafted = read.on_policy
    tokens = done.on_policy(rounds, drafted, measures.by_name(drafted.measured))
    return {"tokens": tokens, "completions": done.table(), "rounds": done.rounds(rounds)}


def draft_source(decoder: SpeculativeDecoder, sources: Sources) -> ModelSource | None:
    """The name of a loaded draft, if there are several: it is what the draft is loaded from."""
    return ModelInfo.of(decoder.draft).id if len(sources.drafts) > 1 else None


@contextmanager
def opened(
    workers: int | ModelWorkers | None, ray: str | None, sources: Sources, problems: int, batch_size: int
) -> Iterator[ModelWorkers | None]:
    """Yields workers that are open already, or opens them meanwhile."""
    if isinstance(workers, ModelWorkers):
        yield workers
        return
    if workers is None and ray is None:
        workers = 1
    if workers is not None:
        check_count("workers", workers)
    with open_workers(workers, ray, sources, Capacity(problems, batch_size)) as others:
        yield others


def _calls(policy: Policy | None) -> int:
    """Forward passes of the draft whose hidden states are read together."""
    return policy.draft_length if policy else 1


def _states(decoder: SpeculativeDecoder, hidden: Width, policy: Policy | None) -> HiddenStates:
    if policy is not None and decoder.draft is decoder.target:
        raise UsageError(f"hidden is {hidden!r}, but the target is its own draft; load the draft as a separate model")
    return HiddenStates(decoder.draft, hidden, decoder.seed, calls=_calls(policy))


def unique_problems(task: Task) -> list[Identified]:
    if not task.problems:
        raise UsageError(f"task {task.name!r} has no problems; it needs at least one")
    check_ids(task.problems)
    first: dict[int, Identified] = {}
    for problem in task.problems:
        first.setdefault(problem.id, problem)
    return list(first.values())


_PACKAGES = ("fsd-calib", "torch", "transformers", "pyarrow")
_ROWS = 250_000  # rows of a shard, at most, if every text has the maximum length
_WIDTH = 10  # likeliest tokens of p and of q that take as much room as the rest of a row
# Batches of a portion. Few leave rows of the batch empty at each portion's end; many are repeated if the run is killed.
_FEWEST, _MOST = 2, 8
_PROBLEMS = 32  # a portion may have as many batches as make this many problems, since each file has a cost of its own


def policy_of(
    rule: str | None, threshold: float | None, score: str | None, draft_length: int | None, within_support: bool
) -> Policy | None:
    """Returns the policy that on-policy texts are decoded under, or None, along the target, where no rule is given.

    Raises:
        UsageError: a setting is missing, or does not apply to this way of collecting or to the rule.
    """
    if rule is None:
        given = {"threshold": threshold, "score": score, "draft_length": draft_length,
                 "within_support": within_support or None}  # fmt: skip
        for name, value in given.items():
            if value is not None:
                raise UsageError(
                    f"{name} is {value}, but it applies to on-policy traces only; give a rule too, or leave {name} out"
                )
        return None
    properties = rule_named(rule, lambda known: known.drafts)
    if not properties.drafts:
        raise UsageError(f"rule {rule!r} drafts nothing; leave the rule out to collect along the target")
    if properties.fuzzy and threshold is None:
        raise UsageError(f"rule {rule!r} needs a threshold; give one (infinity accepts all that a threshold can)")
    if not properties.fuzzy and threshold is not None:
        raise UsageError(f"threshold is {threshold}, but rule {rule!r} has none; leave it out")
    length = 5 if draft_length is None else draft_length
    check_settings([length], [] if threshold is None else [threshold])
    shown = "none" if threshold is None else repr(float(threshold))
    return Policy(
        rule=rule,
        score=rule_named(rule).score or score or "js",
        threshold=shown,
        draft_length=length,
        within_support=within_support,
    )


def manifest_of(
    decoder: SpeculativeDecoder,
    task: Task,
    problems: Sequence[Identified],
    policy: Policy | None,
    scores: Sequence[str],
    states: HiddenStates | None,
    batch_size: int,
    log_probs: int = 0,
) -> Manifest:
    """Returns the manifest of a run. UsageError: more of the likeliest tokens are to be kept than there are."""
    manifest = Manifest(
        way="on-policy" if policy else "along-target",
        policy=policy,
        target=ModelInfo.of(decoder.target),
        draft=info_of(decoder.draft, decoder.target),
        tokenizer=tokenizer_fingerprint(decoder.tokenizer),
        eos=tuple(sorted(decoder.eos)),
        task=task_info(task, problems),
        sampling=SamplingInfo.model_validate(decoder.sampling, from_attributes=True),
        seed=decoder.seed,
        scores=tuple(scores),
        addons=_addons(policy, scores),
        on=decoder.criterion.on,
        hidden=states.width if states else 0,
        projected=states is not None and states.projected,
        log_probs=log_probs,
        batch_size=batch_size,
        portion=_portion(batch_size, task.max_new_tokens * (policy.draft_length if policy else 1), log_probs),
        device=str(decoder.device),
        versions=versions(str(ENGINE_VERSION)),
    )  # fmt: skip
    if log_probs > manifest.vocabulary:
        raise UsageError(
            f"{named('log_probs')} is {log_probs}, and the models have {manifest.vocabulary} tokens; give fewer"
        )
    return manifest


def _addons(policy: Policy | None, scores: Sequence[str]) -> tuple[Addon, ...]:
    """The code that is not of fsd-calib and that rows depend on."""
    found = [*map(addon_of, scores)]
    if policy is not None:
        found += rules.addon_of(policy.rule), addon_of(policy.score)
    return tuple(dict.fromkeys(each for each in found if each is not None))


def task_info(task: Task, problems: Sequence[Identified]) -> TaskInfo:
    """Returns what a manifest holds of a task, of which these problems are collected."""
    digest = hashlib.sha256()
    for problem in problems:
        group = getattr(problem, "group", None)  # which decides the part
        content = [problem.id, problem.prompt, problem.part, *([] if group is None else [group])]
        digest.update(json.dumps(content).encode() + b"\n")
    return TaskInfo(
        name=task.name, source=task.source, fingerprint=task.fingerprint, prompts=digest.hexdigest(),
        problems=len(problems), max_new_tokens=task.max_new_tokens, stop=task.stop,
    )  # fmt: skip


def versions(engine: str) -> dict[str, str]:
    """Returns the versions of Python, of the packages that rows depend on, and of the engine that decodes."""
    packages = {name: version(name) for name in _PACKAGES}
    return {"python": platform.python_version(), **packages, "engine": engine}


def _portion(batch_size: int, most_rows: int, log_probs: int) -> int:
    """Returns the problems of a portion: whole batches whose rows, at most `most_rows` a problem, fit into a shard."""
    width = 1 + log_probs // _WIDTH
    fitting = _ROWS // (most_rows * batch_size * width)
    most = max(_MOST, -(-_PROBLEMS // batch_size))
    return batch_size * min(max(fitting, _FEWEST), most)
