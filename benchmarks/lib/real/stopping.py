"""Drafts that a predictor ends, beside those of the best fixed length: tokens/s along the target's own texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsd_calib import CostModel, collect_traces, replay, sweep
from fsd_calib.tasks.base import Task
from fsd_collectors.replay.rounds import RoundPolicy
from fsd_collectors.store.reading import Traces
from fsd_predictors.stopping.of_predictor import Stopper
from fsd_predictors.training.api import train
from lib.real.blocks import RULE, Blocks
from lib.rules.curves import Found, draws

_SCORE, _MOST = "js", 16  # tokens of a draft


def stopper_of(blocks: Blocks, training: Task, costs: CostModel, folder: Path) -> Stopper:
    """Returns a predictor that was trained along the target's texts of other problems, with the stopping rule.

    Args:
        training: tuning problems, none of which is in a block.
        folder: where traces and predictor are stored.
    """
    decoder = blocks.decoder
    traces = collect_traces(
        training, target=decoder.target, draft=decoder.draft, out=folder / "training", tokenizer=decoder.tokenizer,
        temperature=blocks.temperature, scores=(_SCORE,), seed=decoder.seed, batch_size=blocks.size,
    )  # fmt: skip
    predictor = train(traces, folder / "predictor", rule=RULE, scores=(_SCORE,), tokenizer=decoder.tokenizer)
    return Stopper.fitted(predictor, _SCORE, decoder.tokenizer, traces, costs, _MOST)


def gains(blocks: Blocks, done: Sequence[int], stopper: Stopper, costs: CostModel) -> list[dict[str, Any]]:
    """Returns for each T the tokens/s of the best fixed length over that of lossless drafts, and of early stop over it.

    Best lengths are chosen on the problems that they are compared on, which the predictor has never seen.
    """
    found, policy = [], stopper.in_replay()
    lossless = _speeds(blocks, done, costs, -1.0)
    for threshold in (-1.0, *blocks.thresholds[_SCORE]):
        fixed, stopped = _speeds(blocks, done, costs, threshold), _speeds(blocks, done, costs, threshold, policy)
        best, exact = int(fixed[:, 0].argmax()), int(lossless[:, 0].argmax())
        found.append({
            "threshold": threshold, "best_length": best + 1, "fixed": Found.of(fixed[best] / lossless[exact]),
            "stopped_over_fixed": Found.of(stopped[0] / fixed[best]),
        })  # fmt: skip
    return found


def _speeds(
    blocks: Blocks, done: Sequence[int], costs: CostModel, threshold: float, policy: RoundPolicy | None = None
) -> NDArray[Any]:
    """Tokens/s of each fixed length, or of the policy's drafts: (lengths, draws)."""
    counts = np.concatenate([_counts(blocks.traces(block), threshold, policy) for block in done], -1)
    tokens, rounds, drafted = counts @ draws(counts.shape[-1]).T
    speeds: NDArray[Any] = costs.tokens_per_second(tokens, rounds, drafted)
    return speeds


def _counts(traces: Traces, threshold: float, policy: RoundPolicy | None) -> NDArray[Any]:
    """Tokens, rounds and drafted tokens of each problem: (3, lengths, problems)."""
    lengths = range(1, _MOST + 1) if policy is None else [_MOST]
    of_problems = []
    for problem in traces.to_pandas(["problem"], table="completions")["problem"]:
        chosen = [("problem", "==", problem)]
        if policy is None:
            frame = sweep(traces, (RULE,), (_SCORE,), [threshold], lengths, where=chosen)
            tokens, rounds, drafted = frame[["tokens", "rounds", "drafted"]].to_numpy().T
        else:
            one = replay(traces, RULE, _SCORE, threshold, _MOST, policy, chosen)
            tokens, rounds, drafted = (np.array([each]) for each in (one.tokens, one.rounds, one.drafted))
        of_problems.append(np.stack([tokens, rounds, drafted]))
    return np.stack(of_problems, -1)
