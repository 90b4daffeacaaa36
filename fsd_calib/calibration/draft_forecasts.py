"""What traces and costs tell of every draft: forecasts of speed, and the settings that `sd` is fastest with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fsd_calib.calibration.policy_families import Shaped
from fsd_calib.calibration.predictor import EarlyStop
from fsd_calib.calibration.session import Session
from fsd_calib.engines.base import DecodingRequest, KeyedPrompt
from fsd_calib.engines.configuration import Configuration, Drafting
from fsd_calib.engines.own.engine import OwnEngine
from fsd_calib.search.forecast import DraftForecasts, ReplayForecast
from fsd_calib.search.space import Space
from fsd_calib.search.walked_forecast import WalkedForecast
from fsd_collectors.replay import CostModel, sweep
from fsd_collectors.store.reading import Traces

LOSSLESS = "coupled"  # gives the target's own text, except for rounding, where `Engine.exact_texts`
SD_LENGTHS = range(1, 13)
"""Draft lengths of `sd`, whatever is searched."""

_WALKED = 64  # problems that trees are drafted for: enough for tokens per round to within about 1.5 per cent


@dataclass(frozen=True)
class TracedDrafts:
    """The drafts of a search, with what was read and timed of them.

    Args:
        traces: of chains, by draft.
        costs: of a round, of all of `space.compared`.
    """

    session: Session
    space: Space
    traces: Mapping[str | None, Traces]
    costs: Mapping[Drafting, CostModel]

    def forecast(self, early: EarlyStop | None, shaped: Shaped) -> DraftForecasts:
        """Returns the forecast for all drafts: of chains from traces, of trees from rounds that are decoded for it."""
        stops = early.replayed if early else None
        chains = {
            Drafting(draft): ReplayForecast(
                seen, replace(self.space, drafts=(draft,)), self.costs[Drafting(draft)], stops=stops, shapes=shaped
            )
            for draft, seen in self.traces.items()
        }
        return DraftForecasts({**chains, **{drafting: self._walked(drafting) for drafting in self._trees}})

    def fastest_for_sd(self, forecast: DraftForecasts, count: int) -> tuple[Configuration, ...]:
        """Returns the fastest `sd` settings over all drafts, shapes and draft lengths, the fastest first.

        Costs are known only to a few per cent, so where speeds are timed, the two fastest are.
        """
        speeds: dict[Configuration, float] = {}
        longest = self.session.engine.longest_draft
        for draft, seen in self.traces.items():
            lengths = SD_LENGTHS if longest is None else range(1, min(longest, max(SD_LENGTHS)) + 1)
            frame = sweep(seen, ["sd"], draft_lengths=lengths, costs=self.costs[Drafting(draft)])
            for length, speed in zip(frame["draft_length"], frame["tokens_per_second"], strict=True):
                speeds[self.session.configuration("sd", int(length), draft)] = float(speed)
        for drafting in self._trees:
            for length in self.space.lengths(drafting.tree):
                tree = self._lossless(drafting, length).under("sd")
                speeds[tree] = forecast.tokens_per_second(tree)
        return tuple(sorted(speeds, key=lambda sd: -speeds[sd])[:count])

    @property
    def _trees(self) -> list[Drafting]:
        return [drafting for drafting in self.space.draftings if drafting.tree is not None]

    def _walked(self, drafting: Drafting) -> WalkedForecast:
        """The forecast of trees from rounds of the first tuning problems, at each depth."""
        session = self.session.with_draft(drafting.draft)
        engine, problems = session.engine, session.tuning.problems[:_WALKED]
        assert isinstance(engine, OwnEngine)  # no other one drafts trees
        prompts = [KeyedPrompt(problem.id, problem.prompt) for problem in problems]
        walked, depths = {}, self.space.lengths(drafting.tree)
        with session.progress.step(f"drafting trees of {drafting.tree}", len(depths)) as advance:
            for depth in depths:
                lossless = self._lossless(drafting, depth)
                request = DecodingRequest(lossless, engine.decoding.seed, prompts, session.batch_size)
                walked[depth] = engine.walked(request, self.space.divergences)
                advance(1)
        return WalkedForecast(walked, self.space.divergences, self.costs[drafting])

    def _lossless(self, drafting: Drafting, length: int) -> Configuration:
        return replace(self.session.configuration(LOSSLESS, length, drafting.draft), tree=drafting.tree)
