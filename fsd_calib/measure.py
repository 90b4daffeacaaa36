"""Decodes a task's problems under one configuration and keeps what came out.

Knows what a configuration and its measurement are. Knows nothing of searching or certifying.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor

from fsd_calib.certify import Outcomes
from fsd_calib.progress import Progress
from fsd_calib.tasks import Problem, Task
from fsd_collectors.parts import Part
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.observing import Observer, RoundRecord
from fsd_decoding.result import Result

OnFinish = Callable[[int, Result], None]


@dataclass(frozen=True)
class Configuration:
    """What decides a text, beside prompt and noise. `threshold` None: the rule has none."""

    rule: str
    divergence: str
    draft_length: int
    threshold: float | None = None

    def at(self, threshold: float) -> Configuration:
        return replace(self, threshold=threshold)

    def under(self, rule: str) -> Configuration:
        """The same with a rule that has no threshold."""
        return replace(self, rule=rule, threshold=None)

    def __str__(self) -> str:
        return self.rule if self.threshold is None else f"{self.rule} {self.divergence} <= {self.threshold:.4g}"


@dataclass(frozen=True)
class Measurement:
    """One configuration on one part."""

    configuration: Configuration
    part: Part
    correct: tuple[bool, ...]  # by problem, in the part's order
    tokens: int  # emitted, EOS included
    rounds: int

    @property
    def accuracy(self) -> float:
        return sum(self.correct) / len(self.correct)

    @property
    def tokens_per_round(self) -> float:
        return self.tokens / self.rounds

    def against(self, target: Measurement) -> Outcomes:
        return Outcomes.of(target.correct, self.correct)


Writer = Callable[[Configuration, Part, Problem, Result], None]


class Bench:
    """A decoder and a task, side by side. Every finished problem goes to `journal` at once, so that an
    interrupted run leaves what it measured."""

    def __init__(
        self,
        decoder: SpeculativeDecoder,
        task: Task,
        tuning: Sequence[Problem],
        certification: Sequence[Problem],
        batch_size: int,
        journal: Path | None,
        progress: Progress,
    ) -> None:
        self.decoder, self.task, self.progress = decoder, task, progress
        self.started = datetime.now(UTC)
        self.problems: dict[Part, Sequence[Problem]] = {"tuning": tuning, "certification": certification}
        self._batch_size, self._journal = batch_size, journal
        self._done: dict[tuple[Configuration, Part], Measurement] = {}

    def measure(self, configuration: Configuration, part: Part) -> Measurement:
        """Decodes all problems of a part; asking a second time costs nothing."""
        key = (configuration, part)
        if key not in self._done:
            self._done[key] = self._decode(configuration, part)
        return self._done[key]

    def measured(self, like: Configuration, part: Part) -> list[Measurement]:
        """What was measured of `like` on a part so far, by rising threshold."""
        found = [
            m for (c, where), m in self._done.items() if where == part and c == replace(like, threshold=c.threshold)
        ]
        return sorted(found, key=lambda m: -1.0 if m.configuration.threshold is None else m.configuration.threshold)

    def divergences(self, configuration: Configuration, problems: Sequence[Problem]) -> Tensor:
        """D of every drafted token that was decided on, sorted: (N,) in fp32 on the CPU."""
        seen: list[Tensor] = []

        def collect(round_: RoundRecord) -> None:
            seen.append(round_.proposal.divergences[round_.decided].float().cpu())

        with self.progress.step("measuring divergences", len(problems)) as advance:
            self._generate(configuration, problems, lambda i, r: advance(1), collect)
        return torch.cat(seen).sort().values

    def time_round(self, configuration: Configuration, problem: Problem) -> float:
        """Decodes one problem alone: seconds a round, its prompt's share included."""
        started = time.perf_counter()
        result = self._generate(configuration, [problem], batch_size=1)[0]
        return (time.perf_counter() - started) / result.rounds

    def _decode(self, configuration: Configuration, part: Part) -> Measurement:
        problems = self.problems[part]
        title = f"{part}: {configuration}"
        with self.progress.step(title, len(problems)) as advance, self._writing() as write:

            def finish(index: int, result: Result) -> None:
                write(configuration, part, problems[index], result)
                advance(1)

            results = self._generate(configuration, problems, finish)
        graded = tuple(self.task.grade(p, r.text) for p, r in zip(problems, results, strict=True))
        return Measurement(configuration, part, graded, sum(r.emitted for r in results), sum(r.rounds for r in results))

    def _generate(
        self,
        configuration: Configuration,
        problems: Sequence[Problem],
        on_finish: OnFinish | None = None,
        observer: Observer | None = None,
        batch_size: int | None = None,
    ) -> list[Result]:
        return self.decoder.generate(
            [p.prompt for p in problems],
            max_new_tokens=self.task.max_new_tokens,
            rule=configuration.rule,
            threshold=configuration.threshold,
            draft_length=configuration.draft_length,
            batch_size=batch_size or self._batch_size,
            ids=[p.id for p in problems],
            stop=self.task.stop,
            on_finish=on_finish,
            observer=observer,
        )

    @contextmanager
    def _writing(self) -> Iterator[Writer]:
        if self._journal is None:
            yield lambda *row: None
            return
        with self._journal.open("a") as file:

            def write(configuration: Configuration, part: Part, problem: Problem, result: Result) -> None:
                row = {"run": self.started.isoformat(), **asdict(configuration), "part": part, "problem": problem.id}
                row |= _summary(result)
                row["correct"] = self.task.grade(problem, result.text)
                file.write(json.dumps(row) + "\n")
                file.flush()

            yield write


def _summary(result: Result) -> dict[str, object]:
    return {
        "tokens": len(result.tokens),
        "rounds": result.rounds,
        "drafted": result.drafted,
        "accepted": result.accepted,
        "finish_reason": result.finish_reason,
    }
