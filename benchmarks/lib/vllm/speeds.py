"""Speeds of vLLM with and without the plugin and of our own engine, in turns on the same problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fsd_calib.tasks.base import Problem, Task
from lib.common.timing import rates, speed_up
from lib.engines.contest import Lengths, best_length, decode_in_turns
from lib.engines.processes import Served
from lib.engines.work import Decoded, Work

PLAIN, JUDGED, OFF, FSD, BEST = "sd at the profile's L", "plugin, T = 0", "plugin, off", "fsd", "sd at its best L"
WITHOUT = "plugin taken out"
ALL_WITHOUT, ALL_JUDGED = f"{WITHOUT}, min_tokens", f"{JUDGED}, min_tokens"
TARGET, OWN = "target", ("own target", "own sd", "own fsd")
# Problems that a contestant decodes at a time, by batch size: half a second or more, as the first steps after another
# process had the core find its caches empty, unlike those of a server.
_PIECE = {1: 5, 8: 16, 32: 64}


@dataclass(frozen=True)
class Contestants:
    """Engines by what they are, and vLLM's own `sd` by L; the latter has the profile's L, too."""

    target: Served
    exact: Mapping[int, Served]
    judging: Served  # the plugin at a T that accepts nothing
    fuzzy: Served  # the plugin at the profile's T
    own: Served
    length: int  # the profile's L

    def timed(self, best: int) -> dict[str, partial[Decoded]]:
        """What takes turns, given the best L of `sd`."""
        engines = [
            (TARGET, self.target, ""), (PLAIN, self.exact[self.length], ""), (JUDGED, self.judging, ""),
            (OFF, self.judging, "off"), (WITHOUT, self.judging, "without"),
            (ALL_WITHOUT, self.judging, "without, at least"),
            (ALL_JUDGED, self.judging, "at least"), (BEST, self.exact[best], ""), (FSD, self.fuzzy, ""),
            *((name, self.own, name.removeprefix("own ")) for name in OWN),
        ]  # fmt: skip
        return {name: partial(engine.decode, way=way) for name, engine, way in engines}


@dataclass(frozen=True)
class Plan:
    """How much is measured: problems by batch size, and repeats."""

    problems: Mapping[int, int]
    choosing: Mapping[int, int]  # problems that the best L of `sd` is chosen on
    repeats: int
    choosing_repeats: int


class Speeds:
    """Measures at one batch size after the other.

    Args:
        task: says how texts end, and grades them.
        choosing: problems that the best L is chosen on.
        problems: others, that everything is timed on.
    """

    def __init__(
        self, contestants: Contestants, task: Task, choosing: Sequence[Problem], problems: Sequence[Problem], plan: Plan
    ) -> None:
        self._contestants, self._task, self._plan = contestants, task, plan
        self._choosing, self._problems = choosing, problems

    def measure(self, batch: int) -> dict[str, Any]:
        chosen, repeats = self._best_length(batch), self._plan.repeats
        problems = self._problems[: self._plan.problems[batch]]
        taken = decode_in_turns(self._contestants.timed(chosen.best), self._pieces(problems, batch), repeats)
        return {
            "batch": batch, "problems": len(problems), "repeats": repeats, "sd_lengths": chosen,
            "contestants": {name: self._about(decoded, taken[TARGET], problems) for name, decoded in taken.items()},
            **_ratios(taken),
        }  # fmt: skip

    def _best_length(self, batch: int) -> Lengths:
        """Times vLLM's own `sd` at all L."""
        problems = self._choosing[: self._plan.choosing[batch]]
        exact = {length: partial(served.decode, way="") for length, served in self._contestants.exact.items()}
        return best_length(exact, self._pieces(problems, batch), self._plan.choosing_repeats)

    def _pieces(self, problems: Sequence[Problem], batch: int) -> list[Work]:
        return Work.of(self._task, problems, batch).pieces(_PIECE[batch])

    def _about(self, decoded: Sequence[Decoded], target: Sequence[Decoded], problems: Sequence[Problem]) -> Any:
        first = decoded[0]
        right = sum(self._task.grade(problem, text) for problem, text in zip(problems, first.texts, strict=True))
        same = sum(text == other for text, other in zip(first.texts, target[0].texts, strict=True))
        about: dict[str, Any] = {
            "tokens": first.tokens, "steps": first.steps or None, "right": right, "texts_of_target": same,
            "tokens_per_cpu_second": rates([each.on_cpu for each in decoded]),
            "tokens_per_second": rates([each.by_clock for each in decoded]),
        }  # fmt: skip
        if first.steps:
            about["steps_per_cpu_second"] = rates([each.of_steps for each in decoded])
        return about


def _ratios(taken: Mapping[str, Sequence[Decoded]]) -> dict[str, Any]:
    steps = {name: [each.of_steps for each in taken[name]] for name in (WITHOUT, JUDGED, OFF, ALL_WITHOUT, ALL_JUDGED)}
    tokens = {name: [each.on_cpu for each in decoded] for name, decoded in taken.items()}
    clock = {name: [each.by_clock for each in decoded] for name, decoded in taken.items()}
    own_target, own_sd, own_fsd = OWN
    pairs = [(FSD, BEST), (FSD, PLAIN), (FSD, TARGET), (BEST, TARGET), (own_fsd, own_sd), (FSD, own_fsd),
             (BEST, own_sd), (TARGET, own_target)]  # fmt: skip
    return {
        # Seconds of a step with the plugin over without, of one engine.
        "step_cost": speed_up(steps[WITHOUT], steps[JUDGED]), "step_cost_off": speed_up(steps[WITHOUT], steps[OFF]),
        "step_cost_of_all": speed_up(steps[ALL_WITHOUT], steps[ALL_JUDGED]),
        "same_steps": all(one.steps == other.steps and one.texts == other.texts
                          for one, other in zip(taken[PLAIN], taken[JUDGED], strict=True)),
        "speed_ups": {f"{fast} / {slow}": speed_up(tokens[fast], tokens[slow]) for fast, slow in pairs},
        "speed_ups_by_clock": {f"{fast} / {slow}": speed_up(clock[fast], clock[slow]) for fast, slow in pairs},
    }  # fmt: skip
