"""`collect_traces`: collects traces of a task's problems into a folder, portion by portion."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from fsd_collectors.collection.along_target import check_draft
from fsd_collectors.collection.assembly import Completions
from fsd_collectors.collection.hidden_states import HiddenStates, Width
from fsd_collectors.collection.measures import Measures
from fsd_collectors.collection.portions import (
    Portion,
    PortionJob,
    Reading,
    ReadPortion,
    read_in_workers,
)
from fsd_collectors.collection.protocols import Advance, Problem, Progress, Task
from fsd_collectors.collection.run_facts import manifest_of, policy_of
from fsd_collectors.manifest import Manifest, Policy
from fsd_collectors.split import Part, check_ids, tuning_and_certification
from fsd_collectors.store.reading import Traces, load_traces
from fsd_collectors.store.writing import TraceWriter
from fsd_common.argument_checks import check_count
from fsd_common.errors import UnfinishedError, UsageError
from fsd_decoding.acceptance import Logits
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.divergence import DIVERGENCES
from fsd_decoding.loading import ModelSource, check_loading, is_source
from fsd_decoding.model_options import ModelKwargs
from fsd_decoding.profile.parts import ModelInfo
from fsd_decoding.sampling import Sampling
from fsd_decoding.workers.model_workers import Capacity, ModelWorkers, Sources, open_workers
from fsd_decoding.workers.models import texts_identity


def collect_traces(
    task: Task, *, target: Any, draft: Any, out: str | os.PathLike[str], tokenizer: Any = None,
    rule: str | None = None, threshold: float | None = None, divergence: str | None = None,
    draft_length: int | None = None, within_support: bool = False,
    temperature: float = 0.0, top_k: int | None = None, top_p: float | None = None, min_p: float | None = None,
    divergences: Sequence[str] | None = None, on: Logits = "raw", hidden: Width | None = None, seed: int = 0,
    batch_size: int = 32, device: str | None = None, dtype: str | None = None, model_kwargs: ModelKwargs | None = None,
    draft_model_kwargs: ModelKwargs | None = None, progress: Progress | None = None,
    workers: int | ModelWorkers | None = None, ray: str | None = None,
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
        rule, threshold, divergence, draft_length, within_support: settings of on-policy decoding; by default the
            divergence is "js" and the draft length 5. With an infinite threshold the rule "fsd" accepts every token of
            finite divergence, which on raw logits are all.
        temperature, top_k, top_p, min_p: see `Sampling`; temperature 0 is greedy.
        divergences: names of the divergences to keep; by default all.
        on: logits on which these divergences and the rule's are computed.
        hidden: also keeps the draft's last hidden state, "whole" or projected to a number of components.
        seed: seed of the noise and of that projection.
        batch_size: completions decoded at once.
        device, dtype, model_kwargs, draft_model_kwargs: see `SpeculativeDecoder.from_pretrained`.
        progress: receives the number of finished problems.
        workers: processes that decode, each with models of its own and a portion at a time; 1: this process alone, as
            by default. Loaded models need workers that are open already, and load the same ones.
        ray: address of a Ray cluster to run the workers on, by default one for each of its GPUs or CPUs.

    Raises:
        UsageError: a setting is invalid, the models cannot be used together, or the folder holds another run, is in
            use by another collector or cannot be written.
    """
    policy = policy_of(rule, threshold, divergence, draft_length, within_support)
    check_count("batch_size", batch_size)
    kept = tuple(DIVERGENCES) if divergences is None else tuple(divergences)
    measures = Measures(kept, on, Sampling(temperature, top_k, top_p, min_p))
    decoder = SpeculativeDecoder.from_pretrained(
        target, draft, tokenizer=tokenizer, rule=policy.rule if policy else "target",
        divergence=policy.divergence if policy else "js", threshold=0.0 if threshold is None else threshold,
        draft_length=policy.draft_length if policy else 1, device=device, dtype=dtype,
        model_kwargs=model_kwargs, draft_model_kwargs=draft_model_kwargs, seed=seed,
        sampling=measures.sampling, on=on, within_support=within_support,
    )  # fmt: skip
    states = _states(decoder, hidden, policy)
    problems = _unique_problems(task)
    manifest = manifest_of(decoder, task, problems, policy, kept, states, batch_size)
    reading = Reading(measures, policy is not None, task.max_new_tokens, task.stop, batch_size)
    collector = _Collector(decoder, task, manifest, reading, states)
    prompts = collector.prompts(problems)  # raises for what would otherwise stop the run late: a prompt or the draft
    if policy is None:
        check_draft(decoder)
    steps = progress.step("collecting", len(problems)) if progress else nullcontext(lambda done: None)
    loading = check_loading(target, [draft], device, model_kwargs, draft_model_kwargs)
    sources = Sources(target, (draft,), device, dtype, loading)
    with TraceWriter(out, manifest) as writer, _opened(workers, ray, sources, len(problems), batch_size) as others:
        collector = replace(collector, manifest=writer.manifest)
        job = None if others is None else PortionJob(
            others.sources, draft if is_source(draft) else _draft_source(decoder, others.sources),
            texts_identity(decoder), decoder.decoding, reading, hidden, _calls(policy),
        )  # fmt: skip
        with states or nullcontext(), steps as advance:
            advance(min(writer.finished * manifest.portion, len(problems)))
            portions = _portions(problems, prompts, manifest.portion)[writer.finished :]
            for portion, read in collector.read(portions, advance, others, job):
                if isinstance(read, UnfinishedError):
                    raise _told(read, writer, portion) from read
                begin = portion.number * manifest.portion
                writer.write(
                    portion.number, collector.tables(problems[begin : begin + manifest.portion], portion, read)
                )
    return load_traces(out)


def _told(error: UnfinishedError, writer: TraceWriter, portion: Portion) -> UnfinishedError:
    """The error of an unfinished run, with what its folder keeps."""
    first = portion.number * writer.manifest.portion
    others = "other settings need another folder" if writer.finished else "other settings may use this folder too"
    return type(error)(
        f"{error} (prompts are counted from the task's {first}). Folder {str(writer.folder)!r} keeps its "
        f"{writer.finished} finished portions; the same settings continue there, {others}"
    )


@dataclass(frozen=True)
class _Collector:
    """Reads portions, here or in workers, and makes their tables."""

    decoder: SpeculativeDecoder
    task: Task
    manifest: Manifest
    reading: Reading
    states: HiddenStates | None

    def prompts(self, problems: Sequence[Problem]) -> list[list[int]]:
        """Returns the encoded prompts. Raises UsageError where one is too long."""
        texts = [problem.prompt for problem in problems]
        requests = self.decoder.requests(texts, self.task.max_new_tokens, None, None, None, None)
        return [request.prompt for request in requests]

    def read(
        self, portions: Sequence[Portion], advance: Advance, others: ModelWorkers | None, job: PortionJob | None
    ) -> Iterator[tuple[Portion, ReadPortion | UnfinishedError]]:
        """Yields the portions as they were read, in their order: here until workers are due, then by those."""
        for at, portion in enumerate(portions):
            if others is not None and others.due:
                assert job is not None
                for done, read in read_in_workers(others.pool, job, portions[at:]):
                    advance(len(done.ids))
                    yield done, read
                return
            with others.decoding_here() if others else nullcontext():
                read_here = self._read_here(portion, advance)
            yield portion, read_here

    def _read_here(self, portion: Portion, advance: Advance) -> ReadPortion | UnfinishedError:
        try:
            return self.reading.read(self.decoder, self.states, portion, advance)
        except UnfinishedError as error:
            return error

    def tables(self, problems: Sequence[Problem], portion: Portion, read: ReadPortion) -> Mapping[str, pa.Table]:
        """Grades the texts of a portion and returns its tables."""
        results = read.results
        correct = [self.task.grade(problem, result.text) for problem, result in zip(problems, results, strict=True)]
        tuning = {problem.id for problem in tuning_and_certification(problems)[0]}
        splits: list[Part] = ["tuning" if problem.id in tuning else "certification" for problem in problems]
        done = Completions(self.manifest, portion.ids, splits, portion.prompts, results, correct)
        columns = self.reading.measures.columns
        if read.along_target is not None:
            traced = read.along_target
            measured = dict(zip(columns, traced.measured, strict=True))
            tokens = done.along_target(traced.owner, traced.position, measured, traced.states)
            return {"tokens": tokens, "completions": done.table()}
        assert read.on_policy is not None
        rounds, drafted = read.on_policy
        tokens = done.on_policy(rounds, drafted, dict(zip(columns, drafted.measured, strict=True)))
        return {"tokens": tokens, "completions": done.table(), "rounds": done.rounds(rounds)}


@contextmanager
def _opened(
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
    with open_workers(workers, ray, sources, Capacity(problems, batch_size)) as opened:
        yield opened


def _portions(problems: Sequence[Problem], prompts: Sequence[list[int]], size: int) -> list[Portion]:
    begins = range(0, len(problems), size)
    return [
        Portion(number, [problem.id for problem in problems[begin : begin + size]], prompts[begin : begin + size])
        for number, begin in enumerate(begins)
    ]


def _draft_source(decoder: SpeculativeDecoder, sources: Sources) -> ModelSource | None:
    """The name of a loaded draft, if there are several: it is what the draft is loaded from."""
    return ModelInfo.of(decoder.draft).id if len(sources.drafts) > 1 else None


def _calls(policy: Policy | None) -> int:
    """Forward passes of the draft whose hidden states are read together."""
    return policy.draft_length if policy else 1


def _states(decoder: SpeculativeDecoder, hidden: Width | None, policy: Policy | None) -> HiddenStates | None:
    if hidden is None:
        return None
    if policy is not None and decoder.draft is decoder.target:
        raise UsageError(f"hidden is {hidden!r}, but the target is its own draft; load the draft as a separate model")
    return HiddenStates(decoder.draft, hidden, decoder.seed, calls=_calls(policy))


def _unique_problems(task: Task) -> list[Problem]:
    if not task.problems:
        raise UsageError(f"task {task.name!r} has no problems; it needs at least one")
    check_ids(task.problems)
    first: dict[int, Problem] = {}
    for problem in task.problems:
        first.setdefault(problem.id, problem)
    return list(first.values())
