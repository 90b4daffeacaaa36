"""The problems of a task at one temperature, in blocks: what is decoded of them, and where it is stored.

A block is decoded by the target alone, by the draft alone, and by scores at each draft length. Each problem is stored
when it is finished, so that a run that is cut off loses minutes, but a block counts when all of it is: short texts
finish first and would stand for all. What is stored has no texts, only when they end and whether they are right, so
that it can be kept for long and elsewhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fsd_calib import SpeculativeDecoder, collect_traces
from fsd_calib.calibration.auto_scores import of_rejected
from fsd_calib.tasks.base import Problem, Task
from fsd_collectors.replay.cases import REPLAYABLE
from fsd_collectors.store.reading import Traces
from lib.common.results import write_json
from lib.real.along import Along
from lib.rules.curves import Columns
from lib.rules.judges import Judge, Panel
from lib.rules.stored import Stored, folder_of
from lib.rules.texts import write

SHARES = (0.05, 0.15, 0.3, 0.5, 0.75)
"""Of the tokens that the exact rule rejects along the target's own texts; T keeps so many. A last T keeps all."""
_ROWS = 16  # problems decoded at once, whose texts are lost with the process
_LOSSLESS = "coupled"  # whose noise is the target's own, so that flips are not of other draws
RULE = f"fsd-{_LOSSLESS}"
"""The rule with the scores."""
_GREEDY = ("js", "margin"), ("doubt", "fly@2"), ("relaxed@10", "gated-js@0.9", "typical")
_SAMPLED = (*_GREEDY, ("accept-threshold", "cactus", "posterior@0.4", "ensemble"))
"""In passes. Texts of the scores of a pass are decoded once as far as they are the same."""


class Pass(NamedTuple):
    """What one run over a block decodes: the lossless rule, and scores on it."""

    draft_length: int
    scores: tuple[str, ...]


@dataclass(frozen=True)
class Blocks:
    """The problems of a task at a temperature.

    Args:
        decoder: of that temperature.
        task: with all problems, in the order in which they are taken.
        folder: where what was seen is stored.
        traces_in: where traces are stored; they are large, and are made again if they are gone.
        size: problems of a block.
    """

    decoder: SpeculativeDecoder
    task: Task
    folder: Path
    traces_in: Path
    size: int

    @property
    def temperature(self) -> float:
        return self.decoder.sampling.temperature

    @property
    def scores(self) -> tuple[str, ...]:
        return tuple(chain.from_iterable(self._groups))

    @property
    def _groups(self) -> tuple[tuple[str, ...], ...]:
        return _GREEDY if self.temperature == 0.0 else _SAMPLED

    def passes(self, draft_length: int, most: int | None = None) -> list[Pass]:
        """Returns all passes at a draft length, or the first ones. The first has the other lossless rules too."""
        return [Pass(draft_length, scores) for scores in self._groups[:most]]

    def problems(self, block: int) -> tuple[Problem, ...]:
        return self.task.problems[block * self.size : (block + 1) * self.size]

    def traces(self, block: int, drafts_alone: bool = False) -> Traces:
        """Returns traces along the target's texts, or along those of the draft alone; collects them if need be."""
        task, draft = replace(self.task, problems=self.problems(block)), self.decoder.draft
        name = "draft" if drafts_alone else "target"
        return collect_traces(
            task, target=draft if drafts_alone else self.decoder.target, draft=draft,
            out=self.traces_in / f"{name}-{task.fingerprint[:16]}-{self.temperature:g}",
            tokenizer=self.decoder.tokenizer, temperature=self.temperature, scores=() if drafts_alone else self.scores,
            seed=self.decoder.seed, batch_size=self.size,
        )  # fmt: skip

    @cached_property
    def thresholds(self) -> dict[str, tuple[float, ...]]:
        """The T of each score that are decoded, by the traces of the first block, so that they stay as blocks join."""
        path = self.folder / f"{self.task.name}-{self.temperature:g}.json"
        if not path.exists():
            _, scores = of_rejected(self.traces(0), RULE, self.scores)
            write_json({name: list(_at_shares(values)) for name, values in scores.items()}, path)
        return {name: tuple(values) for name, values in json.loads(path.read_text()).items()}

    def panel(self, of: Pass) -> Panel:
        """Those who judge the rounds of a pass."""
        first = of.scores == self._groups[0] and self.temperature > 0.0  # greedily the lossless rules are one
        others = (Judge("sd"), Judge("sd-block")) if first else ()
        return Panel(_LOSSLESS, of.scores, others, tuple(self.thresholds[score] for score in of.scores))

    def along(self, block: int) -> Along:
        """Returns what target and draft alone show of a block; decodes them if need be."""
        path = self.folder / f"{self.task.name}-{self.temperature:g}-{block}.json"
        if not path.exists():
            ids = [problem.id for problem in self.problems(block)]
            lossless = [judge.rule for judge in self.panel(self.passes(1)[0]).lossless]
            rules = [RULE, *(rule for rule in lossless if rule in REPLAYABLE)]
            traces = self.traces(block), self.traces(block, drafts_alone=True)
            write_json(Along.of(ids, *traces, rules, self.thresholds)._asdict(), path)
        return Along.read(path)

    def stored(self, block: int, of: Pass) -> Stored:
        panel, task = self.panel(of), replace(self.task, problems=self.problems(block))
        decoder = self.decoder.with_config(draft_length=of.draft_length)
        return Stored(folder_of(self.folder, decoder, task.fingerprint, panel), panel)

    def is_whole(self, block: int, of: Pass) -> bool:
        """Whether all texts of a block are stored."""
        return self.stored(block, of).numbers == set(range(len(self.problems(block))))

    def decode(self, block: int, of: Pass, until: float = math.inf) -> None:
        """Decodes those texts of a block that are not stored.

        Args:
            until: no problem is begun after this time, in seconds since the epoch.
        """
        stored = self.stored(block, of)
        finished = stored.numbers
        missing = [each for each in enumerate(self.problems(block)) if each[0] not in finished]
        decoder = self.decoder.with_config(draft_length=of.draft_length)
        if missing:
            stored.add_all(write(decoder, self.task, missing, self.panel(of), _ROWS, until), in_file=1)

    def texts(self, blocks: Sequence[int], of: Pass) -> dict[Judge, Columns]:
        """Returns the texts of blocks by judge, with problems numbered through."""
        parts = [self.stored(block, of).columns() for block in blocks]
        starts = np.cumsum([0, *(len(self.problems(block)) for block in blocks)])
        joined = [_joined(each, starts) for each in zip(*parts, strict=True)]
        return dict(zip(self.panel(of).judges, joined, strict=True))


def _at_shares(scores: np.ndarray) -> Iterator[float]:
    """Yields the T that keep each share, as far as there are so many that any T keeps."""
    ordered = np.sort(scores)
    found = [float(ordered[int(share * len(ordered))]) for share in SHARES if len(ordered)]
    yield from sorted({each for each in found if math.isfinite(each)})
    yield math.inf


def _joined(parts: Sequence[Columns], starts: np.ndarray) -> Columns:
    numbered = [part | {"problem": part["problem"] + start} for part, start in zip(parts, starts, strict=False)]
    return {name: np.concatenate([part[name] for part in numbered]) for name in numbered[0]}
