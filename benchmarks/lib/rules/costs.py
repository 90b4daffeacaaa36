"""What a round costs under each rule, on one row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from fsd_calib import CostModel, SpeculativeDecoder
from fsd_calib.engines.own import RoundClock, measure_costs, undisturbed_clock
from fsd_calib.tasks.base import Problem, Task
from lib.common.timing import Ratio, Run, speed_up, take_turns
from lib.rules.judges import Judge, Panel
from lib.rules.texts import LOSSLESS


def costs_of_rounds(
    decoder: SpeculativeDecoder, task: Task, problems: Sequence[Problem], panel: Panel, repeats: int
) -> tuple[CostModel, Mapping[Judge, Ratio]]:
    """Returns the costs of a lossless round, and how many times as long each judge's takes.

    Scores are timed where they keep nothing: what they cost does not depend on T, and so all make the same rounds.
    """
    prompts, ids = [problem.prompt for problem in problems], [problem.id for problem in problems]
    costs = measure_costs(decoder, prompts, ids, task.max_new_tokens, task.stop, batch_size=1).model
    contenders = {str(judge): partial(_timed, decoder, task, decoding_of(judge)) for judge in panel.judges}
    runs = take_turns(contenders, problems, repeats)
    lossless = runs[panel.base]
    return costs, {judge: speed_up(lossless, runs[str(judge)]) for judge in panel.judges}


def decoding_of(judge: Judge, threshold: float = LOSSLESS) -> dict[str, Any]:
    """The keywords by which a decoder does what a judge does."""
    if judge.score is not None:
        return {"rule": f"fsd-{judge.rule}", "score": judge.score, "threshold": threshold}
    return {"rule": judge.rule} | ({} if judge.threshold is None else {"threshold": judge.threshold})


def _timed(decoder: SpeculativeDecoder, task: Task, how: Mapping[str, Any], problem: Problem) -> Run:
    clock = RoundClock(decoder.device, undisturbed_clock(decoder.device))
    decoder.generate(
        [problem.prompt], task.max_new_tokens, ids=[problem.id], stop=task.stop, observer=clock, batch_size=1, **how
    )
    return Run(len(clock.seconds), sum(clock.seconds))
