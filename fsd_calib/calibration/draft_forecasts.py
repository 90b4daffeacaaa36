"""What traces and costs tell of every draft: forecasts of speed, and the lossless settings that are fastest."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from fsd_calib.calibration.policy_families import Shaped
from fsd_calib.calibration.session import Session
from fsd_calib.calibration.worth import Ceiling, with_prompts
from fsd_calib.engines.base import DecodingRequest, Engine, KeyedPrompt
from fsd_calib.engines.beams import BeamEngine, Layers
from fsd_calib.search.beam_forecast import BeamForecast
from fsd_calib.search.forecast import DraftForecasts, ReplayForecast, WalkedForecast
from fsd_calib.search.space import Space
from fsd_collectors.replay import CostModel, sweep
from fsd_collectors.replay.walks import Walked, Walks
from fsd_collectors.store.reading import Traces
from fsd_common.files import atomic_write, make_private_folder, naming
from fsd_decoding.profile.setting import Drafting, Setting
from fsd_decoding.scores import SCORES_VERSION, addon_of

SD_LENGTHS = range(1, 13)
"""Draft lengths of lossless rules, whatever is searched."""

_FREE = "fsd-coupled"  # with T infinite it accepts everything, as all fuzzy rules do
_LAYERED = 32  # problems whose beams are drafted: some hundred layers that the exact rule rejects
_WALKED = 64  # problems that are drafted for: enough for tokens per round to within about 1.5 per cent


@dataclass(frozen=True)
class TracedDrafts:
    """The drafts of a search, with what was read and timed of them.

    Args:
        traces: of chains, by draft; of models alone.
        costs: of a round, of all of `space.compared`.
    """

    session: Session
    space: Space
    traces: Mapping[str | None, Traces]
    costs: Mapping[Drafting, CostModel]

    def forecast(self, stops: Mapping[str, Any] | None, shaped: Shaped) -> DraftForecasts:
        """Returns the forecast for all drafts: of a model's chains from traces, else from rounds decoded for it.

        Args:
            stops: by score, how replay ends drafts early; None: they are taken as a whole.
        """
        chains = {
            Drafting(draft): ReplayForecast(
                seen, replace(self.space, drafts=(draft,)), self.costs[Drafting(draft)], stops=stops, shapes=shaped
            )
            for draft, seen in self.traces.items()
        }
        others = {each: self._beams(each) if each.width else self._walked(each) for each in self._untraced}
        return DraftForecasts({**chains, **others})

    def rival_speeds(self, forecast: DraftForecasts) -> dict[Setting, float]:
        """Returns the forecast tokens/s of lossless rules with all drafts, shapes and lengths, the fastest first."""
        speeds: dict[Setting, float] = {}
        longest = self.session.engine.longest_draft
        lengths = SD_LENGTHS if longest is None else range(1, min(longest, max(SD_LENGTHS)) + 1)
        for draft, seen in self.traces.items():
            frame = sweep(seen, self._rules, draft_lengths=lengths, costs=self.costs[Drafting(draft)])
            columns = (frame[name] for name in ("rule", "draft_length", "tokens_per_second"))
            for rule, length, speed in zip(*columns, strict=True):
                speeds[self.session.setting(rule, int(length), draft)] = float(speed)
        for drafting in self._untraced:
            for length in self.space.lengths(drafting.tree) if drafting.tree or drafting.width else lengths:
                for rule in self._rules:
                    setting = self._lossless(drafting, length).under(rule)
                    speeds[setting] = forecast.tokens_per_second(setting)
        return dict(sorted(speeds.items(), key=lambda speed: -speed[1]))

    def ceiling(self, rival_speeds: Mapping[Setting, float], prefill: float) -> Ceiling | None:
        """Returns what accepting everything could gain; None: there are drafts that cannot be traced.

        Args:
            rival_speeds: see `rival_speeds`.
            prefill: seconds of a text's prompt, for each of its tokens.
        """
        if self._untraced:
            return None
        all_accepted: list[tuple[float, int]] = []
        for draft, seen in self.traces.items():
            scores, lengths = self.space.scores[:1], self.space.draft_lengths
            frame = sweep(seen, [_FREE], scores, [math.inf], lengths, costs=self.costs[Drafting(draft)])
            all_accepted += zip(frame["tokens_per_second"].map(float), frame["draft_length"].map(int), strict=True)
        alone = max(float(costs.tokens_per_second(1, 1, 0)) for costs in self.costs.values())
        lossless, speed = max(
            [(self.session.setting("target"), alone), *rival_speeds.items()], key=lambda each: each[1]
        )
        fastest, length = max(all_accepted)
        speed, fastest = (with_prompts(each, prefill) for each in (speed, fastest))
        return Ceiling(lossless, speed, length, fastest / speed)

    @property
    def _rules(self) -> tuple[str, ...]:
        """Lossless rules that differ. Greedily all accept alike; with sampling `sd` has trees of its own too, and beams
        have one alone."""
        engine = self.session.engine
        if self.space.widths != (None,):
            return (engine.lossless,)
        return ("sd",) if engine.decoding.sampling.greedy else ("sd", engine.lossless)

    @property
    def _untraced(self) -> list[Drafting]:
        """Beams, trees, and the chains of drafts that are no models, also where trees alone are searched: lossless
        ones are compared."""
        return [each for each in self.space.compared if each.tree is not None or each.draft not in self.traces]

    def _walked(self, drafting: Drafting) -> WalkedForecast:
        """The forecast from rounds of the first tuning problems, at some draft lengths."""
        session = self.session.with_draft(drafting.draft)
        engine, problems = session.engine, session.tuning.problems[:_WALKED]
        prompts = [KeyedPrompt(problem.id, problem.prompt) for problem in problems]
        lengths = self.space.lengths(drafting.tree)
        lengths = _spread({*lengths, *SD_LENGTHS}) if drafting.tree is None else lengths
        walked: dict[str, dict[int, Walked]] = {rule: {} for rule in {engine.lossless, *self._rules}}
        with session.progress.step(f"drafting {drafting}", len(walked) * len(lengths)) as advance:
            for rule, length in product(walked, lengths):
                lossless = self._lossless(drafting, length).under(rule)
                request = DecodingRequest(lossless, engine.decoding.seed, prompts, session.batch_size)
                walked[rule][length] = walked_rounds(engine, request, self.space.scores, session.cache)
                advance(1)
        return WalkedForecast(walked, self.space.scores, self.costs[drafting])

    def _beams(self, drafting: Drafting) -> BeamForecast:
        """The forecast from layers of the first tuning problems, drafted as deep as any."""
        engine, problems = self.session.with_draft(drafting.draft).engine, self.session.tuning.problems[:_LAYERED]
        prompts = [KeyedPrompt(problem.id, problem.prompt) for problem in problems]
        assert isinstance(engine, BeamEngine)
        found: dict[str, Layers] = {}
        with self.session.progress.step(f"drafting {drafting}", len(self.space.scores)) as advance:
            for score in self.space.scores:
                setting = replace(self._lossless(drafting, max(self.space.draft_lengths)), score=score)
                found[score] = engine.layers(
                    DecodingRequest(setting, engine.decoding.seed, prompts, self.session.batch_size),
                    self.space.rules[0],
                )
                advance(1)
        return BeamForecast(found, self.costs[drafting])

    def _lossless(self, drafting: Drafting, length: int) -> Setting:
        setting = self.session.setting(self.session.engine.lossless, length, drafting.draft)
        return replace(setting, tree=drafting.tree, width=drafting.width)


def rivals_of(speeds: Mapping[Setting, float], timed: bool, blocks: bool) -> tuple[Setting, ...]:
    """Returns the lossless settings of which the clock is to find the fastest.

    Args:
        speeds: their forecasts, the fastest first.
        timed: whether there is a clock; else the forecast decides.
        blocks: whether `sd-block` differs from `sd`; it judges chains as a whole, so no trace tells its speed.
    """
    fastest, *others = speeds
    if not timed:
        return (fastest,)
    of_rules = {setting.rule: setting for setting in reversed([*speeds])}  # the fastest of each
    chains = [setting for setting in speeds if setting.rule == "sd" and setting.tree is None]
    block = [setting.under("sd-block") for setting in chains[:1] if blocks]
    # Costs are known only to a few per cent, so the second is as likely the fastest.
    return tuple(dict.fromkeys([fastest, *others[:1], *of_rules.values(), *block]))


def _spread(lengths: Collection[int]) -> tuple[int, ...]:
    """The least and the greatest length of chains, and powers of two between.

    Tokens per round of the others lie on a line of log L. Not those of trees, which have all their nodes at some depth.
    """
    return tuple(sorted({min(lengths), max(lengths), *(length for length in lengths if length.bit_count() == 1)}))


_WALKS_VERSION = 1  # of what is kept
_FACTS = "facts"  # entry: tokens, rounds, and whether there are chains alone


def walked_rounds(engine: Engine, request: DecodingRequest, scores: Sequence[str], cache: Path | None) -> Walked:
    """Returns what `Engine.walked` does, decoded at the first call.

    Args:
        cache: the folder of decodings and traces; None: nothing is kept.
    """
    if cache is None:
        return engine.walked(request, scores)
    file = cache / "walks" / f"{_name(engine, request, scores)}.npz"
    found = _read(file, scores)
    if found is None:
        found = engine.walked(request, scores)
        _write(file, found)
    return found


def _name(engine: Engine, request: DecodingRequest, scores: Sequence[str]) -> str:
    """A hash of everything that the rounds depend on, but for rounding."""
    key = engine.key(request.setting, request.seed)
    addons = [each.facts for each in map(addon_of, scores) if each is not None]
    facts = [key.json, *scores, *addons, SCORES_VERSION, _WALKS_VERSION, *map(tuple, request.prompts)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


def _read(file: Path, scores: Sequence[str]) -> Walked | None:
    """What was kept; None: nothing was, or it is damaged, which is a warning."""
    if not file.exists():
        return None
    try:
        with np.load(file) as kept:  # whose entries have checksums
            tokens, rounds, chains = kept[_FACTS].tolist()
            columns = {name: kept[f"D {name}"] for name in scores}
            return Walked(Walks(kept["exact"], kept["drafted"], columns, bool(chains)), tokens, rounds)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        warnings.warn(f"walked rounds {str(file)!r} are damaged ({error}); they are decoded again", stacklevel=2)
        return None


def _write(file: Path, walked: Walked) -> None:
    walks = walked.walks
    entries: dict[str, Any] = {
        "exact": walks.exact, "drafted": walks.drafted,
        _FACTS: np.array([walked.tokens, walked.rounds, int(walks.chains)]),
        **{f"D {name}": values for name, values in walks.scores.items()},
    }  # fmt: skip
    with naming("walked rounds", file):
        make_private_folder(file.parent)
        with atomic_write(file) as stream:
            np.savez_compressed(stream, **entries)
