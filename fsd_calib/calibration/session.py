"""The resources of a calibration: engines, the two parts of a task, the cache of decodings and the attempt ledger."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from fsd_calib.certification.attempt_ledger import AttemptLedger
from fsd_calib.certification.claim import Acc
from fsd_calib.certification.holdout import EngineSequence, Holdout, TuningRecord
from fsd_calib.certification.marking import LEDGER
from fsd_calib.engines.base import Engine, TextEngine
from fsd_calib.engines.own import OwnEngine, round_seconds
from fsd_calib.engines.workers import EngineWorkers
from fsd_calib.measuring.evaluator import CachedDecoder, Evaluator
from fsd_calib.measuring.result_cache import ResultCache
from fsd_calib.measuring.threads import Threads
from fsd_calib.options.run_config import MOST_AT_ONCE, RunConfig
from fsd_calib.tasks.base import Task
from fsd_calib.tasks.near_duplicates import held
from fsd_calib.tasks.split import Parts, parts_of
from fsd_collectors.split import content_key
from fsd_common.progress.base import Progress
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.policies.stopping import StopPolicy
from fsd_decoding.profile.fields import COMPILE, Rounds
from fsd_decoding.profile.parts import EarlyStopInfo
from fsd_decoding.profile.setting import Setting
from fsd_decoding.rules import rule_named
from fsd_decoding.workers.model_workers import ModelWorkers

DECODINGS = "decodings.sqlite"
_COMPARED = 2000  # certification problems, the first in the order of a hash, with what the ledger knows
_EXCERPT = 60  # characters of a problem in a note


@dataclass(frozen=True)
class TextSession:
    """The resources of a calibration by texts alone.

    Args:
        identity: what determines texts besides prompts and the searched settings: models, sampling, seeds, versions.
        guards: other tasks on which the chosen setting is measured.
    """

    engine: TextEngine
    task: Task
    decode: CachedDecoder
    identity: str
    tuning: Evaluator
    tuned: TuningRecord
    holdout: Holdout
    batch_size: int
    progress: Progress
    guards: tuple[Task, ...] = ()

    @property
    def engines(self) -> Sequence[TextEngine]:
        """All engines: one for each draft."""
        return (self.engine,)

    @property
    def models(self) -> str:
        """Architectures and sizes of the models, in words."""
        drafts = " or ".join(engine.short_names[1] for engine in self.engines)
        return f"{self.engines[0].short_names[0]} with {drafts}"

    def setting(self, rule: str, draft_length: int = 1, draft: str | None = None) -> Setting:
        """The setting of a rule without a threshold."""
        return Setting(rule, self.engine.score, draft_length, draft=draft)

    def certifying(self, run: str, trained: frozenset[int]) -> Self:
        """Returns a copy whose holdout is limited to the problems that this run may use, see `Holdout.of_run`."""
        trained = trained.union(*(engine.trained_on for engine in self.engines))
        holdout = self.holdout.of_run(run, trained)
        out = self.holdout.problems - holdout.problems
        if out:
            grouped = any(problem.group is not None for problem in self.holdout.part)
            self.progress.note(
                f"{out} of {self.holdout.problems} certification problems were tuned"
                f"{' or trained' if trained else ''} on before{', or share a group with one,' if grouped else ''} and "
                "are left out"
            )
        self._note_known(holdout)
        return replace(self, holdout=holdout)

    def _note_known(self, holdout: Holdout) -> None:
        """Notes certification problems that hold what was seen before of other tasks, in another wrapper."""
        texts = [content_key(problem.question) for problem in holdout.part[:_COMPARED]]
        found = held(texts, [content_key(text) for text in holdout.other_questions(self.task.problems)])
        if found is not None:
            first = "the first " if len(texts) < holdout.problems else ""
            one, other = (f"{text[:_EXCERPT]!r}" for text in found.closest)
            self.progress.note(
                f"{found.count} of {first}{len(texts)} certification problems closely resemble one that was tuned or "
                "certified on before, with other words around it; the closest, at a similarity of "
                f"{found.similarity:.2f}: {one} and {other}. Leave out what is the same problem"
            )


@dataclass(frozen=True)
class Session(TextSession):
    """The resources shared by the steps of a calibration whose engines are known from inside.

    Args:
        engine: the engine with the first draft.
        cache: folder of decodings and traces; None stores nothing.
        drafts: the engines by the names of their drafts, if there are several drafts.
        workers: processes that decode too; None: there are none.
        threads: chooses those of this process; None: an engine that has its own, or no CPU, decodes.
    """

    engine: Engine
    cache: Path | None = None
    drafts: Mapping[str, Engine] = field(default_factory=dict)
    workers: ModelWorkers | None = None
    threads: Threads | None = None

    @property
    def engines(self) -> Sequence[Engine]:
        return [*self.drafts.values()] or [self.engine]

    @property
    def decoder(self) -> SpeculativeDecoder:
        """The decoder of our own engine, for what that alone can do."""
        assert isinstance(self.engine, OwnEngine)
        return self.engine.decoder

    def with_draft(self, name: str | None) -> Session:
        """Returns a copy whose `engine` drafts with the model of that name; None: the only draft."""
        if name is None:
            return self
        engine = self.drafts[name]
        return replace(self, engine=engine, identity=_identity(engine, self.decode, name, self.task))

    @property
    def processes(self) -> int:
        """How many processes decode side by side, once workers are due."""
        return 1 if self.workers is None else self.workers.pool.workers

    def as_one_worker(self) -> AbstractContextManager[None]:
        """Inside, this process computes as one of the processes that will decode."""
        return nullcontext() if self.workers is None else self.workers.as_one()

    def threads_for(self, rows: int) -> AbstractContextManager[int | None]:
        """Inside, this process computes with as many CPU threads as are fastest now, with so many rows at once.

        Yields their number; None: see `threads`.
        """
        return nullcontext() if self.threads is None else self.threads.chosen_for(rows)

    def engine_of(self, setting: Setting) -> Engine:
        """The engine that runs a setting."""
        return self.with_draft(setting.draft).engine

    def call_rounds(self, rounds: Rounds) -> None:
        """Makes the engines of all drafts, and workers, call rounds this way from now on."""
        self.decode.call_rounds(COMPILE[rounds])

    def stopping_early(
        self, policies: Mapping[str, StopPolicy], source: tuple[Path, EarlyStopInfo] | None = None
    ) -> Session:
        """Returns a copy in which fuzzy rules end drafts by their score's stop policy, before any measurement.

        Args:
            source: see `CachedDecoder.stopping_early`.
        """
        decode = self.decode.stopping_early(policies, source)
        names = {d: policy.identity for d, policy in policies.items()}
        how = f"stopping drafts by {json.dumps(names, sort_keys=True)} "
        return replace(
            self, decode=decode, identity=self.identity + how, holdout=self.holdout.decoded_by(decode, how),
            tuning=Evaluator(self.tuned.before(decode), self.tuning.problems, self.tuning.part),
        )  # fmt: skip

    def with_seeds(self, seeds: int) -> Session:
        """Returns a copy in which each problem is decoded so many times."""
        decode = self.decode.with_seeds(seeds)
        identity = _identity_of_all(self.engine, self.drafts, decode, self.task)
        tuning = Evaluator(self.tuned.before(decode), self.tuning.problems, self.tuning.part)
        holdout = self.holdout.of_identity(decode, identity)
        return replace(self, decode=decode, identity=identity, tuning=tuning, holdout=holdout)


@contextmanager
def open_session(
    engine: Engine,
    task: Task,
    config: RunConfig,
    drafts: Mapping[str, Engine] | None = None,
    parts: Parts | None = None,
    workers: EngineWorkers | None = None,
    sequence: EngineSequence | None = None,
    acc: Acc = "retention",
    guards: tuple[Task, ...] = (),
) -> Iterator[Session]:
    """Opens a session and closes its files on exit.

    Args:
        engine: the engine with the first draft.
        config: its `cache` and `state` are the folders of decodings and of the ledger; None stores nothing.
        drafts: if there are several drafts, the engines of all of them by name, including the first.
        parts: the task's, where they are known already.
        workers: processes that decode too.
        sequence: engines that certify one setting in turn; None: this one alone does.
        acc: what is claimed of.
        guards: see `Session`.

    Raises:
        UsageError: the problems do not make two parts, or a folder cannot be used.
    """
    cache, state, progress = config.path("cache"), config.path("state"), config.reporter
    seeds = 1 if engine.decoding.sampling.greedy else config.seeds
    batch_size, parts = config.batch_size or MOST_AT_ONCE, parts or parts_of(task)
    for note in parts.notes:
        progress.note(note)
    family = engine.family
    with ResultCache(cache and cache / DECODINGS) as store, AttemptLedger(state and state / LEDGER) as ledger:
        decode = CachedDecoder(engine, task, store, batch_size, progress, seeds, drafts, workers)
        identity = _identity_of_all(engine, drafts or {}, decode, task)
        tuned = TuningRecord(ledger, family)
        certifying = Evaluator(decode, parts.certification, "certification")
        holdout = Holdout(certifying, ledger, family, f"{task.claim}, {acc}", identity, sequence)
        yield Session(
            engine, task, decode, identity, Evaluator(tuned.before(decode), parts.tuning, "tuning"), tuned, holdout,
            batch_size, progress, guards, cache, drafts or {}, None if workers is None else workers.models,
            _threads(engine, parts, progress),
        )  # fmt: skip


def _threads(engine: Engine, parts: Parts, progress: Progress) -> Threads | None:
    if not isinstance(engine, OwnEngine) or engine.decoder.device.type != "cpu":
        return None

    def seconds(rows: int) -> float:
        problems = [parts.tuning[i % len(parts.tuning)] for i in range(rows)]
        return round_seconds(engine.decoder, [p.prompt for p in problems], [p.id for p in problems])

    return Threads(seconds, progress.note)


def _identity_of_all(engine: Engine, drafts: Mapping[str, Engine], decode: CachedDecoder, task: Task) -> str:
    names: list[str | None] = [*sorted(drafts)] or [None]
    return " and ".join(_identity(engine, decode, name, task) for name in names)


def _identity(engine: Engine, decode: CachedDecoder, draft: str | None, task: Task) -> str:
    drafting = Setting(rule_named(engine.rule).lossless, engine.score, 1, draft=draft)
    graded = f"graded by {task.graded} " if task.graded else ""
    ending = f"ending drafts by {engine.ending.identity} " if engine.ending else ""
    return f"{decode.key(drafting).json} with {decode.seeds} seeds {graded}{ending}"
