"""`collect_traces`: collects traces of a task's problems into a folder, portion by portion."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from fsd_collectors.collection.along_target import Completion, check_draft, trace_completions
from fsd_collectors.collection.assembly import Completions
from fsd_collectors.collection.hidden_states import HiddenStates, Width
from fsd_collectors.collection.measures import Measures
from fsd_collectors.collection.on_policy import OnPolicy
from fsd_collectors.collection.protocols import Advance, Problem, Progress, Task
from fsd_collectors.collection.run_facts import manifest_of, policy_of
from fsd_collectors.manifest import Manifest, Policy
from fsd_collectors.split import Part, check_ids, tuning_and_certification
from fsd_collectors.store.reading import Traces, load_traces
from fsd_collectors.store.writing import TraceWriter
from fsd_decoding.acceptance.proposal import Logits
from fsd_decoding.argument_checks import check_count
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.divergence import DIVERGENCES
from fsd_decoding.engine.result import attach_finished
from fsd_decoding.errors import UnfinishedError, UsageError
from fsd_decoding.observers.round_record import Observer
from fsd_decoding.sampling import Sampling


def collect_traces(
    task: Task, *, target: Any, draft: Any, out: str | os.PathLike[str], tokenizer: Any = None,
    rule: str | None = None, threshold: float | None = None, divergence: str | None = None,
    draft_length: int | None = None, within_support: bool = False,
    temperature: float = 0.0, top_k: int | None = None, top_p: float | None = None,
    divergences: Sequence[str] | None = None, on: Logits = "raw", hidden: Width | None = None, seed: int = 0,
    batch_size: int = 32, device: str | None = None, dtype: str | None = None, progress: Progress | None = None,
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
        temperature, top_k, top_p: see `Sampling`; temperature 0 is greedy.
        divergences: names of the divergences to keep; by default all.
        on: logits on which these divergences and the rule's are computed.
        hidden: also keeps the draft's last hidden state, "whole" or projected to a number of components.
        seed: seed of the noise and of that projection.
        batch_size: completions decoded at once.
        device, dtype: see `SpeculativeDecoder.from_pretrained`.
        progress: receives the number of finished problems.

    Raises:
        UsageError: a setting is invalid, the models cannot be used together, or the folder holds another run, is in
            use by another collector or cannot be written.
    """
    policy = policy_of(rule, threshold, divergence, draft_length, within_support)
    check_count("batch_size", batch_size)
    kept = tuple(DIVERGENCES) if divergences is None else tuple(divergences)
    measures = Measures(kept, on, Sampling(temperature, top_k, top_p))
    decoder = SpeculativeDecoder.from_pretrained(
        target, draft, tokenizer=tokenizer, rule=policy.rule if policy else "target",
        divergence=policy.divergence if policy else "js", threshold=0.0 if threshold is None else threshold,
        draft_length=policy.draft_length if policy else 1, device=device, dtype=dtype, seed=seed,
        sampling=measures.sampling, on=on, within_support=within_support,
    )  # fmt: skip
    states = _states(decoder, hidden, policy)
    problems = _unique_problems(task)
    manifest = manifest_of(decoder, task, problems, policy, kept, states, batch_size)
    collector = _Collector(decoder, task, manifest, measures, states)
    collector.check(problems)
    steps = progress.step("collecting", len(problems)) if progress else nullcontext(lambda done: None)
    with TraceWriter(out, manifest) as writer, states or nullcontext(), steps as advance:
        collector = replace(collector, manifest=writer.manifest)
        advance(min(writer.finished * manifest.portion, len(problems)))
        for portion in range(writer.finished, manifest.portions):
            begin = portion * manifest.portion
            with _report_finished_portions(writer):
                tables = collector.tables(problems[begin : begin + manifest.portion], advance)
            writer.write(portion, tables)
    return load_traces(out)


@contextmanager
def _report_finished_portions(writer: TraceWriter) -> Iterator[None]:
    """Adds to the error of an unfinished run what its folder keeps."""
    try:
        with attach_finished({}, writer.manifest.batch_size):
            yield
    except UnfinishedError as error:
        first = writer.finished * writer.manifest.portion
        others = "other settings need another folder" if first else "other settings may use this folder too"
        raise type(error)(
            f"{error} (prompts are counted from the task's {first}). Folder {str(writer.folder)!r} keeps its "
            f"{writer.finished} finished portions; the same settings continue there, {others}"
        ) from error


@dataclass(frozen=True)
class _Collector:
    """Collects the tables of portions."""

    decoder: SpeculativeDecoder
    task: Task
    manifest: Manifest
    measures: Measures
    states: HiddenStates | None

    def check(self, problems: Sequence[Problem]) -> None:
        """Raises UsageError for what would otherwise stop the run late: a prompt that is too long, or the draft."""
        self._prompts(problems)
        if self.manifest.policy is None:
            check_draft(self.decoder)

    def tables(self, problems: Sequence[Problem], advance: Advance) -> Mapping[str, pa.Table]:
        return (self._along_target if self.manifest.policy is None else self._on_policy)(problems, advance)

    def _along_target(self, problems: Sequence[Problem], advance: Advance) -> Mapping[str, pa.Table]:
        done = self._decode(problems, advance)
        texts = [Completion.of(*each) for each in zip(done.problems, done.prompts, done.results, strict=True)]
        traced = trace_completions(self.decoder, texts, self.measures, self.manifest.batch_size, self.states)
        measured = dict(zip(self.measures.columns, traced.measured, strict=True))
        tokens = done.along_target(traced.owner, traced.position, measured, traced.states)
        return {"tokens": tokens, "completions": done.table()}

    def _on_policy(self, problems: Sequence[Problem], advance: Advance) -> Mapping[str, pa.Table]:
        observer = OnPolicy(self.measures, self.states)
        done = self._decode(problems, advance, observer)
        rounds, drafted = observer.collect()
        measured = dict(zip(self.measures.columns, drafted.measured, strict=True))
        tokens = done.on_policy(rounds, drafted, measured)
        return {"tokens": tokens, "completions": done.table(), "rounds": done.rounds(rounds)}

    def _decode(self, problems: Sequence[Problem], advance: Advance, observer: Observer | None = None) -> Completions:
        ids, prompts = [problem.id for problem in problems], self._prompts(problems)
        results = self.decoder.generate(
            prompts, self.task.max_new_tokens, batch_size=self.manifest.batch_size, ids=ids, stop=self.task.stop,
            on_finish=lambda index, result: advance(1), observer=observer,
        )  # fmt: skip
        correct = [self.task.grade(problem, result.text) for problem, result in zip(problems, results, strict=True)]
        tuning = {problem.id for problem in tuning_and_certification(problems)[0]}
        splits: list[Part] = ["tuning" if problem.id in tuning else "certification" for problem in problems]
        return Completions(self.manifest, ids, splits, prompts, results, correct)

    def _prompts(self, problems: Sequence[Problem]) -> list[list[int]]:
        texts = [problem.prompt for problem in problems]
        requests = self.decoder.requests(texts, self.task.max_new_tokens, None, None, None, None)
        return [request.prompt for request in requests]


def _states(decoder: SpeculativeDecoder, hidden: Width | None, policy: Policy | None) -> HiddenStates | None:
    if hidden is None:
        return None
    if policy is not None and decoder.draft is decoder.target:
        raise UsageError(f"hidden is {hidden!r}, but the target is its own draft; load the draft as a separate model")
    return HiddenStates(decoder.draft, hidden, decoder.seed, calls=policy.draft_length if policy else 1)


def _unique_problems(task: Task) -> list[Problem]:
    if not task.problems:
        raise UsageError(f"task {task.name!r} has no problems; it needs at least one")
    check_ids(task.problems)
    first: dict[int, Problem] = {}
    for problem in task.problems:
        first.setdefault(problem.id, problem)
    return list(first.values())
