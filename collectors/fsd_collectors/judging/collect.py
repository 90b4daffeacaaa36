"""`collect_labels`: labels mismatches of a task's tuning problems, portion by portion."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from fsd_collectors.collection.along_target import check_draft
from fsd_collectors.collection.run import Task, draft_source, kept_by, manifest_of, opened, unique_problems
from fsd_collectors.judging.plan import Plan
from fsd_collectors.judging.portion import LabelledPortion
from fsd_collectors.judging.schedule import Schedule
from fsd_collectors.judging.work import Done, LabelJob, Piece, do, do_in_worker
from fsd_collectors.manifest import LabelManifest, LabelMode, Swaps
from fsd_collectors.split import Identified, tuning_and_certification
from fsd_collectors.store.reading import Traces, load_traces
from fsd_collectors.store.writing import TraceWriter
from fsd_common.argument_checks import check_count, named
from fsd_common.errors import UnfinishedError, UsageError
from fsd_common.progress.base import Progress, Silent
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.judging.features import FEATURES
from fsd_decoding.loading import check_loading, is_source
from fsd_decoding.model_options import ModelKwargs
from fsd_decoding.policies.markers import automaton, thinking_markers
from fsd_decoding.sampling import Sampling
from fsd_decoding.workers.model_workers import ModelWorkers, Sources
from fsd_decoding.workers.models import texts_identity

_PORTION = 32
"""Problems of a portion. It does not depend on the batch size, so that labels do not."""


def collect_labels(
    task: Task, *, target: Any, draft: Any, out: str | os.PathLike[str], mode: LabelMode = "outcome",
    swaps: Swaps | None = None, budget: int = 2000, per_problem: int | None = None, tokenizer: Any = None,
    temperature: float = 0.0, top_k: int | None = None, top_p: float | None = None, min_p: float | None = None,
    seed: int = 0, batch_size: int = 32, device: str | None = None, dtype: str | None = None,
    model_kwargs: ModelKwargs | None = None, draft_model_kwargs: ModelKwargs | None = None,
    progress: Progress | None = None, workers: int | ModelWorkers | None = None, ray: str | None = None,
    before_fuzzy: Callable[[Any, Sequence[Any]], None] | None = None,
) -> Traces:  # fmt: skip
    """Labels mismatches of a task's tuning problems, or continues a run of the same settings.

    At a mismatch the draft's token x is put in the place of the target's y, and with mode "outcome" the target goes on:
    the swap is harmful where the answer is wrong then. Problems whose own text is wrong have no such labels. With mode
    "self" the label is the change of the mean log-likelihood, under raw p, of the target's own text behind y; no answer
    is graded, and nothing is decoded but the target's own texts.

    Problems are used in the order of the tuning part, which is random, as long as the budget lasts; see `chains` for
    which of their mismatches are labelled.

    Args:
        task: as in `collect_traces`; problems of the certification part are left out.
        target, draft, out, tokenizer, seed, batch_size, device, dtype, model_kwargs, draft_model_kwargs, progress,
            workers, ray: as in `collect_traces`.
        mode: what labels are.
        swaps: "left-to-right", where a swap that keeps the answer right stays in the text, or "single". None:
            left-to-right, but single with mode "self", which has no right or wrong.
        budget: positions to label at most; a folder of a smaller one is continued, and keeps its labels.
        per_problem: the same of each problem; None: all of its mismatches.
        temperature, top_k, top_p, min_p: see `Sampling`; temperature 0 is greedy.
        before_fuzzy: called with the target and the problems, as their answers under swaps are looked at.

    Raises:
        UsageError: as in `collect_traces`; or no problem is for tuning.
    """
    way = _swaps_of(mode, swaps)
    check_count(named("budget"), budget)
    if per_problem is not None:
        check_count(named("per_problem"), per_problem)
    check_count("batch_size", batch_size)
    decoder = SpeculativeDecoder.from_pretrained(
        target, draft, tokenizer=tokenizer, rule="target", device=device, dtype=dtype, draft_length=1,
        model_kwargs=model_kwargs, draft_model_kwargs=draft_model_kwargs, seed=seed,
        sampling=Sampling(temperature, top_k, top_p, min_p), progress=progress,
    )  # fmt: skip
    check_draft(decoder)
    problems = _tuning(task)
    manifest = LabelManifest.model_validate(
        manifest_of(decoder, task, problems, None, (), None, batch_size).model_dump() | {
            "way": "labels", "portion": _PORTION, "mode": mode, "swaps": way, "budget": budget,
            "per_problem": per_problem, "features": FEATURES,
            "phase": thinking_markers(decoder.tokenizer) or getattr(task, "phase", None),
        }
    )  # fmt: skip
    portions = _Portions(decoder, task, problems, manifest)
    if before_fuzzy is not None:
        before_fuzzy(decoder.target, problems)
    loading = check_loading(target, [draft], device, model_kwargs, draft_model_kwargs)
    sources = Sources(target, (draft,), device, dtype, loading)
    with TraceWriter(out, manifest) as writer, opened(workers, ray, sources, len(problems), batch_size) as others:
        portions.manifest = _own(writer)
        job = None if others is None else LabelJob(
            others.sources, draft if is_source(draft) else draft_source(decoder, others.sources),
            texts_identity(decoder), decoder.decoding, task.stop, batch_size,
        )  # fmt: skip
        work = partial(do, decoder, task.stop, batch_size)
        _label(writer, portions, budget, progress or Silent(), work, others, job)
    return load_traces(out)


def _label(
    writer: TraceWriter, portions: _Portions, budget: int, progress: Progress, work: Callable[[Piece], Done],
    others: ModelWorkers | None, job: LabelJob | None,
) -> None:  # fmt: skip
    """Labels the portions that the folder lacks, as far as the budget lasts."""
    spent, have = _used(writer)
    left = max(budget - spent, 0)
    plan = Plan(left, len(portions) - writer.problems, others.pool.workers if others else 1, progress.note)
    with progress.step("labelling", budget) as advance:
        advance(have)
        schedule = Schedule(
            portions.after(writer.finished), left, plan.shared, advance,
            lambda portion: writer.write(portion.number, portion.tables()),
        )  # fmt: skip
        try:
            for piece, done in _done(schedule, work, others, job):
                plan.done(piece, done)
                schedule.take(piece, done)
        except UnfinishedError as error:
            raise type(error)(f"{error}. {kept_by(writer)}") from error


def _done(
    schedule: Schedule, work: Callable[[Piece], Done], others: ModelWorkers | None, job: LabelJob | None
) -> Iterator[tuple[Piece, Done]]:
    """Yields pieces with what became of them: done here until workers are due, then by those."""
    while not (others is not None and others.due):
        if (piece := schedule.next()) is None:
            return
        with others.decoding_here() if others else nullcontext():
            done = work(piece)
        yield piece, done
    assert others is not None
    assert job is not None
    schedule.ahead = others.pool.workers
    for piece, returned in others.pool.run(partial(do_in_worker, job), _pieces(schedule)):
        if isinstance(returned, UnfinishedError):
            raise returned
        yield piece, returned
        if schedule.over:
            return


def _pieces(schedule: Schedule) -> Iterator[Piece | None]:
    """Yields pieces as they become due, without end."""
    while True:
        yield schedule.next()


class _Portions:
    """The portions of a run, made as they are begun."""

    def __init__(
        self, decoder: SpeculativeDecoder, task: Task, problems: Sequence[Identified], manifest: LabelManifest
    ) -> None:
        self._task, self._problems, self.manifest = task, problems, manifest
        ids, prompts = [problem.id for problem in problems], [problem.prompt for problem in problems]
        self._reading = None if manifest.phase is None else automaton(decoder.tokenizer, manifest.phase)
        self._requests = decoder.requests(prompts, task.max_new_tokens, ids)

    def __len__(self) -> int:
        """The number of problems."""
        return len(self._problems)

    def after(self, finished: int) -> Iterator[LabelledPortion]:
        """Yields those behind the finished ones."""
        for begin in range(finished * _PORTION, len(self._problems), _PORTION):
            part = slice(begin, begin + _PORTION)
            number = begin // _PORTION
            portion = self._problems[part], self._requests[part], self._grade, self._reading
            yield LabelledPortion(self.manifest, number, *portion)

    def _grade(self, problem: Identified, text: str, own: str) -> bool:
        by_agreement = getattr(self._task, "by_agreement", False)
        return self._task.grade(problem, text, *((own,) if by_agreement else ()))


def _swaps_of(mode: str, swaps: Swaps | None) -> Swaps:
    """How mismatches are swapped. UsageError: the mode is unknown, or swaps cannot stay in it."""
    if mode not in ("outcome", "self"):
        raise UsageError(f"mode is {mode!r}; it must be outcome or self")
    if swaps not in (None, "left-to-right", "single"):
        raise UsageError(f"{named('swaps')} is {swaps!r}; it must be left-to-right or single")
    if mode == "self" and swaps == "left-to-right":
        raise UsageError(
            f"{named('swaps')} is left-to-right, and of labels by the likelihood of the target's own text (self) none "
            "says which swaps may stay in it; give single, or label outcomes"
        )
    return swaps or ("single" if mode == "self" else "left-to-right")


def _tuning(task: Task) -> list[Identified]:
    problems = unique_problems(task)
    tuning = tuning_and_certification(problems)[0]
    if not tuning:
        raise UsageError(
            f"task {task.name!r} has {len(problems)} problems, and none of them is for tuning, which labels are of; "
            f"give more ({named('limit')}), or other data"
        )
    return tuning


def _own(writer: TraceWriter) -> LabelManifest:
    """The manifest of the folder."""
    assert isinstance(writer.manifest, LabelManifest)
    return writer.manifest


def _used(writer: TraceWriter) -> tuple[int, int]:
    """Returns how much of the budget the finished portions have, and how many labels they hold."""
    if not writer.finished:
        return 0, 0
    traces = load_traces(writer.folder)
    quotas = traces.to_pandas(["quota"], table="completions")["quota"]
    return int(quotas.sum()), sum(shard.file("labels").rows for shard in traces.shards)
