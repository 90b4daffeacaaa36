"""What one sampling's settings share: models, problems, traces, costs and predictors.

Knows how these are made, once, and that none but the training problems train. Knows no contest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from fsd_calib import SpeculativeDecoder, collect_traces
from fsd_calib.measuring.round_costs import measure_costs
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
from lib.policies.delayed import Delayed
from lib.stopping.decode import Setting
from lib.stopping.sets import Sets, sets

RULE, DIVERGENCE = "fsd-coupled", "js"
KINDS = ("boosted", "logistic")
_COST_LENGTHS = (2, 8, 16)


@dataclass(frozen=True)
class Size:
    """Problems. test: traced; counted: of them, decoded in batches by everyone; timed: one at a time."""

    training: int
    tuning: int
    test: int
    counted: int
    timed: int
    timed_delayed: int
    repeats: int
    stepped: int  # to time single draft steps on
    trials: int  # of settings, for each model of a predictor
    random_rows: int = 10_000
    all_rivals: bool = True  # candidates of theirs, or every tenth


class World:
    """Folder: a place for traces and predictors. thresholds: all that will be asked for."""

    def __init__(self, temperature: float, thresholds: Sequence[float], size: Size, folder: Path) -> None:
        self.temperature, self.thresholds, self.size, self._folder = temperature, thresholds, size, folder
        self.decoder = SpeculativeDecoder.from_pretrained(
            *pair_paths(), rule=RULE, divergence=DIVERGENCE, sampling=Sampling(temperature)
        )
        self.sets: Sets = sets(size.training, size.tuning, size.test, self.decoder.tokenizer)
        self.kinds = TokenKinds.of(self.decoder.tokenizer, self.decoder.eos)

    def traces(self, of: str) -> Traces:
        """Along the target, of the problems to train, to tune or to test on; collected once."""
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
        """Of both kinds: they are trained on the same problems."""
        return self.predictors[KINDS[0]].scale

    def training_rows(self, ceiling: bool = False) -> tuple[Rows, Rows]:
        """Of the problems that fitted the predictors and of those that calibrated them."""
        traces = self.traces("training")
        ids = split_problems(traces)
        lay = partial(training_rows, traces, RULE, self.scale, self.kinds, seed=0, ceiling=ceiling)
        return lay(problems=ids.training), lay(problems=ids.calibration)

    @cached_property
    def costs(self) -> CostModel:
        return self.measured(self.decoder)

    @cached_property
    def slower(self) -> SpeculativeDecoder:
        """The same with a draft step that takes three times as long, about."""
        delayed = Delayed(self.decoder.draft, 2 * self.costs.draft_step)
        return SpeculativeDecoder(
            self.decoder.target, delayed, self.decoder.tokenizer, rule=RULE, divergence=DIVERGENCE,
            sampling=Sampling(self.temperature),
        )  # fmt: skip

    @cached_property
    def slower_costs(self) -> CostModel:
        return self.measured(self.slower)

    def measured(self, decoder: SpeculativeDecoder) -> CostModel:
        """At batch 1, on the problems to tune on."""
        task = self.sets.tuning
        prompts, ids = [p.prompt for p in task.problems], [p.id for p in task.problems]
        return measure_costs(
            decoder, prompts, ids, task.max_new_tokens, task.stop, batch_size=1, draft_lengths=_COST_LENGTHS
        ).model

    def setting(self, threshold: float, of: Task, decoder: Any = None) -> Setting:
        return Setting(decoder or self.decoder, of, threshold)

    def few(self, count: int) -> Sequence[Any]:
        """The first problems to test on."""
        return self.sets.test.problems[:count]
