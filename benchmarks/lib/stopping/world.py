"""Models, problems, traces, costs and predictors that all cells of one temperature share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from fsd_calib import SpeculativeDecoder, collect_traces
from fsd_calib.engines.own.round_costs import measure_costs
from fsd_calib.tasks.base import Task
from fsd_collectors.replay.cost import CostModel
from fsd_collectors.store.reading import Traces
from fsd_data import pair_paths
from fsd_decoding.sampling import Sampling
from fsd_predictors.datasets.rows import Rows, training_rows
from fsd_predictors.datasets.split import split_problems
from fsd_predictors.features.share_scale import ShareScale
from fsd_predictors.features.token_kinds import TokenKinds
from fsd_predictors.predictor import Predictor
from fsd_predictors.training.api import train
from lib.common.delayed_draft import Delayed
from lib.common.problem_sets import ProblemSets, problem_sets
from lib.stopping.decode import Setting

RULE, DIVERGENCE = "fsd-coupled", "js"
KINDS = ("boosted", "logistic")
_COST_LENGTHS = (2, 8, 16)


@dataclass(frozen=True)
class Size:
    """How many problems each part uses, and other sizes."""

    training: int
    tuning: int
    test: int  # problems that are traced
    counted: int  # test problems that all contestants decode in batches
    timed: int  # test problems that they decode one at a time
    timed_delayed: int  # the same, with a slower draft
    repeats: int
    stepped: int  # test problems that single draft steps are timed on
    trials: int  # hyperparameter trials for each model of a predictor
    random_rows: int = 10_000  # to check monotonicity on
    all_rivals: bool = True  # False: every tenth candidate of the rivals


class World:
    """What all cells of one temperature share; each part is made once, when it is first needed.

    Args:
        thresholds: of all cells.
        folder: where traces and predictors are kept.
    """

    def __init__(self, temperature: float, thresholds: Sequence[float], size: Size, folder: Path) -> None:
        self.temperature, self.thresholds, self.size, self._folder = temperature, thresholds, size, folder
        self.decoder = SpeculativeDecoder.from_pretrained(
            *pair_paths(), rule=RULE, divergence=DIVERGENCE, sampling=Sampling(temperature)
        )
        self.sets: ProblemSets = problem_sets(size.training, size.tuning, size.test, self.decoder.tokenizer)
        self.kinds = TokenKinds.of(self.decoder.tokenizer, self.decoder.eos)

    def traces(self, of: str) -> Traces:
        """Returns traces along the target of a set: "training", "tuning" or "test"."""
        return collect_traces(
            getattr(self.sets, of), target=self.decoder.target, draft=self.decoder.draft,
            tokenizer=self.decoder.tokenizer, out=self._folder / of, divergences=(DIVERGENCE,),
            temperature=self.temperature,
        )  # fmt: skip

    @cached_property
    def predictors(self) -> dict[str, Predictor]:
        traces = self.traces("training")
        return {
            kind: train(
                traces, self._folder / kind, kind, RULE, [DIVERGENCE], trials=self.size.trials,
                tokenizer=self.decoder.tokenizer,
            )
            for kind in KINDS
        }  # fmt: skip

    @property
    def scale(self) -> ShareScale:
        """The scale of both kinds of predictors, which are trained on the same problems."""
        return self.predictors[KINDS[0]].scale

    def training_rows(self, ceiling: bool = False) -> tuple[Rows, Rows]:
        """Returns the rows of the problems that predictors are fitted on, and of those that calibrate them."""
        traces = self.traces("training")
        ids = split_problems(traces)
        rows = partial(training_rows, traces, RULE, self.scale, self.kinds, seed=0, ceiling=ceiling)
        return rows(problems=ids.training), rows(problems=ids.calibration)

    @cached_property
    def costs(self) -> CostModel:
        return self._costs_of(self.decoder)

    @cached_property
    def slower(self) -> SpeculativeDecoder:
        """A decoder whose draft steps take about three times as long."""
        delayed = Delayed(self.decoder.draft, 2 * self.costs.draft_step)
        return SpeculativeDecoder(
            self.decoder.target, delayed, self.decoder.tokenizer, rule=RULE, divergence=DIVERGENCE,
            sampling=Sampling(self.temperature),
        )  # fmt: skip

    @cached_property
    def slower_costs(self) -> CostModel:
        return self._costs_of(self.slower)

    def _costs_of(self, decoder: SpeculativeDecoder) -> CostModel:
        """Measures costs at batch 1 on the tuning problems."""
        task = self.sets.tuning
        prompts, ids = [p.prompt for p in task.problems], [p.id for p in task.problems]
        return measure_costs(
            decoder, prompts, ids, task.max_new_tokens, task.stop, batch_size=1, draft_lengths=_COST_LENGTHS
        ).model

    def setting(self, threshold: float, of: Task, decoder: Any = None) -> Setting:
        return Setting(decoder or self.decoder, of, threshold)

    def few(self, count: int) -> Sequence[Any]:
        """Returns the first test problems."""
        return self.sets.test.problems[:count]
