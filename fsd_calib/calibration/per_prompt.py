"""Trains `PerPrompt`: how large a T each tuning problem bears, from what is known when its text begins.

Knows which problems were lost at which T, from decodings that a cache may answer, and what traces tell of a text's
first token. Knows no search: it returns shapes, whose T is for others to choose.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from fsd_calib.measuring.configuration import Configuration
from fsd_calib.measuring.evaluator import Decode
from fsd_calib.tasks.base import Problem
from fsd_collectors.replay.blocks import Traces
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.errors import UsageError
from fsd_decoding.policies.per_prompt import PROMPT_FACTS, PerPrompt, PromptFacts

Floats = NDArray[np.float64]

GAINS = (0.5, 1.0)  # shares of the predicted log T that shapes follow: a prediction's noise is best held back
NEEDED = 20  # problems lost, for four weights
_HARDLY = (
    0.05  # nats, probability or tokens: a fact that varies by less is held back, or another prompt would be far off
)
_FLAT = 1.0  # a slope below this says that T hardly matters: nothing is then concluded from it
_RIDGES = tuple(10.0**-power for power in range(6, -2, -1))  # sklearn's C on standardised facts; the first: no facts
_FREE = 1e4  # times which log T is fitted, so that no ridge holds its slope back
_FOLDS = 5
_SEEN = 9  # decimals of an effect on log T; what lies behind them is rounding


@dataclass(frozen=True)
class Borne:
    """Of problems that the target solves: what is known of each, and whether it is lost at a T or below it."""

    facts: Floats  # (n, FACTS)
    thresholds: Floats  # (k,) rising
    lost: NDArray[np.bool_]  # (n, k), never falling along a row


def per_prompt_shapes(
    decode: Decode,
    configuration: Configuration,
    thresholds: Sequence[float],
    problems: Sequence[Problem],
    facts: Mapping[int, Sequence[float]],
) -> list[PerPrompt]:
    """Shapes to search among, one for each of `GAINS`.

    Args:
        decode: a `CachedDecode`, so that a problem is decoded only as often as its text changes.
        configuration: what shapes are for, at any T.
        thresholds: where problems are looked at, above 0; a dozen do.
        problems: of the tuning part.
        facts: of each problem by id, see `facts_of`.

    Raises:
        UsageError: too few problems are lost at these thresholds to learn from.
    """
    found = borne(decode, configuration, thresholds, problems, facts)
    weights, means = np.array(_rounded(fitted(found))), _rounded(found.facts.mean(0))
    prompts = {problem.id: facts[problem.id][: len(PROMPT_FACTS)] for problem in problems}
    return [PerPrompt(0.0, (gain * weights).tolist(), means).knowing(prompts) for gain in GAINS]


def facts_of(traces: Traces, decoder: SpeculativeDecoder, problems: Sequence[Problem]) -> dict[int, tuple[float, ...]]:
    """`FACTS` by problem id: the prompt's from its tokens, the draft's from the traces' first tokens.

    UsageError: a problem was not traced.
    """
    prompt_facts = PromptFacts()
    prompt_facts.check(decoder.tokenizer)
    requests = decoder.requests([p.prompt for p in problems], 1, None, None, None, None)
    drafted = dict(_first_tokens(traces))
    missing = next((p for p in problems if p.id not in drafted), None)
    if missing is not None:
        raise UsageError(f"problem {missing.id} is not in the traces; collect them of all tuning problems")
    return {p.id: (*prompt_facts(r.prompt), *drafted[p.id]) for p, r in zip(problems, requests, strict=True)}


def borne(
    decode: Decode,
    configuration: Configuration,
    thresholds: Sequence[float],
    problems: Sequence[Problem],
    facts: Mapping[int, Sequence[float]],
) -> Borne:
    """A problem is lost from the first T on at which its answer is wrong, whatever larger ones make of it."""
    rising = sorted(set(thresholds))
    alone = _right(decode, configuration.under("target"), problems)
    right = [_right(decode, configuration.at(threshold), problems) for threshold in rising]
    lost = ~np.logical_and.accumulate(np.stack(right, 1)[alone], 1)
    told = np.array([facts[problem.id] for problem in problems], np.float64)[alone]
    return Borne(told, np.array(rising), lost)


def fitted(found: Borne) -> Floats:
    """Weights of the facts in the log of the T that a problem bears.

    A problem is lost at T with a probability whose logit is slope · (log T - weights · facts): fitted over all T at
    once, so that a T beyond what was looked at is censored and not guessed, and with the strongest ridge that foretells
    problems left out as well as any does (log-loss, within a standard error): where facts foretell nothing, weights
    are 0. UsageError: see above.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, PredefinedSplit

    _check(found)
    n, k = found.lost.shape
    spread = np.maximum(found.facts.std(0), _HARDLY)
    scaled = (found.facts - found.facts.mean(0)) / spread
    rows = np.column_stack([_FREE * np.tile(np.log(found.thresholds), n), np.repeat(scaled, k, 0)])
    search = GridSearchCV(
        LogisticRegression(solver="newton-cholesky"), {"C": _RIDGES}, scoring="neg_log_loss", refit=_strongest,
        cv=PredefinedSplit(np.repeat(_folds(found.lost), k)), error_score="raise",
    ).fit(rows, found.lost.ravel())  # fmt: skip
    if search.best_index_ == 0:
        return np.zeros(len(spread))
    slope, *told = search.best_estimator_.coef_[0]
    effects = -np.array(told) / max(_FREE * slope, _FLAT)
    return np.asarray(np.round(effects, _SEEN) / spread)


def _folds(lost: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(n,): each holds its part of the problems that are lost early, late and never."""
    folds = np.empty(len(lost), np.int64)
    folds[lost.sum(1).argsort(kind="stable")] = np.arange(len(lost)) % _FOLDS
    return folds


def _strongest(results: Mapping[str, Floats]) -> int:
    """Of the ridges whose folds are not surely worse than those of the best one: folds differ, so they are paired."""
    scores = np.stack([results[f"split{fold}_test_score"] for fold in range(_FOLDS)])  # (folds, ridges)
    behind = scores.mean(0).max() - scores.mean(0)
    apart = scores - scores[:, [scores.mean(0).argmax()]]
    return int((behind <= apart.std(0) / math.sqrt(_FOLDS)).argmax())


def _rounded(values: Floats) -> list[float]:
    """To as many digits as any machine gives: a shape's identity holds them, and a run is resumed by it."""
    return [float(f"{value:.6g}") + 0.0 for value in values]  # 0 has no sign


def _check(found: Borne) -> None:
    problems, lost = len(found.lost), int(found.lost[:, -1].sum()) if len(found.lost) else 0
    borne = int((~found.lost[:, 0]).sum()) if problems else 0
    if lost >= NEEDED and borne >= _FOLDS:
        return
    if lost >= NEEDED:
        raise UsageError(
            f"{borne} of {problems} tuning problems that the target solves bear T = {found.thresholds[0]:.4g}; what a "
            f"prompt bears is learned from {_FOLDS} or more: give smaller thresholds"
        )
    way_out = f"give some {math.ceil(problems * NEEDED / lost)}" if lost else "give more, or larger thresholds"
    raise UsageError(
        f"{lost} of {problems} tuning problems that the target solves are lost up to T = {found.thresholds[-1]:.4g}; "
        f"what a prompt bears is learned from {NEEDED} or more: {way_out}"
    )


def _right(decode: Decode, configuration: Configuration, problems: Sequence[Problem]) -> NDArray[np.bool_]:
    """(n,): with every seed."""
    return np.array([all(d.correct for d in seeds) for seeds in decode(configuration, problems)], bool)


def _first_tokens(traces: Traces) -> Iterable[tuple[int, tuple[float, float]]]:
    """Entropy and largest probability of the first q, by problem."""
    columns = ("problem", "draft_entropy", "draft_top1")
    for table in traces.batches(columns, pc.field("position") == 0):
        problem, *told = (table[name].to_pylist() for name in columns)
        yield from zip(problem, zip(*told, strict=True), strict=True)
