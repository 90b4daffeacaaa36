"""Training of the `PerPrompt` policy: how large a T each tuning problem tolerates, by facts known when a text begins.

The facts are of the prompt and of the draft's first distribution. What is trained are shapes, whose T is searched for
like that of any policy; see docs/adaptive.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from fsd_calib.measuring.evaluator import Decode
from fsd_calib.tasks.base import Problem
from fsd_collectors.replay.blocks import Traces
from fsd_common.errors import UsageError
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.policies.shapes import PerPrompt, PromptFacts
from fsd_decoding.profile.setting import Setting

Floats = NDArray[np.float64]

GAINS = (0.5, 1.0)  # shares of the predicted log T that shapes follow: shrinking a noisy prediction may be better
NEEDED = 20  # lost problems, to fit four weights
_LEAST_SPREAD = 0.05  # nats, probability or tokens: without it a fact that hardly varies would get a huge weight
_LEAST_SLOPE = 1.0  # a smaller slope means that T hardly matters, and would blow up the weights
_RIDGES = tuple(10.0**-power for power in range(6, -2, -1))  # sklearn's C, facts standardised; the first: no facts
_FREE = 1e4  # scale of log T in the fit, so that no ridge shrinks its slope
_FOLDS = 5
_DECIMALS = 9  # of an effect on log T; further ones are rounding errors


@dataclass(frozen=True)
class Losses:
    """Facts of the problems that the target solves, and at which thresholds each of them is lost.

    A problem is lost from the first T on at which its answer is wrong, whatever larger ones make of it.
    """

    facts: Floats  # (n, FACTS)
    thresholds: Floats  # (k,) rising
    lost: NDArray[np.bool_]  # (n, k), never falling along a row


def per_prompt_shapes(
    decode: Decode,
    setting: Setting,
    thresholds: Sequence[float],
    problems: Sequence[Problem],
    facts: Mapping[int, Sequence[float]],
) -> list[PerPrompt]:
    """Returns shapes to search among, one for each of `GAINS`.

    Args:
        decode: a `CachedDecoder`, so that a problem is decoded only as often as its text changes.
        setting: which the shapes are for, at any T.
        thresholds: at which problems are decoded, above 0; a dozen are enough.
        problems: of the tuning part.
        facts: of each problem by id, see `facts_of`.

    Raises:
        UsageError: too few problems are lost at these thresholds to learn from.
    """
    losses = measure_losses(decode, setting, thresholds, problems, facts)
    weights, means = np.array(_rounded(fit_weights(losses))), _rounded(losses.facts.mean(0))
    return [PerPrompt(0.0, (gain * weights).tolist(), means) for gain in GAINS]


def facts_of(traces: Traces, decoder: SpeculativeDecoder, problems: Sequence[Problem]) -> dict[int, tuple[float, ...]]:
    """Returns `FACTS` by problem id: the prompt's from its tokens, the draft's from the first traced token.

    Raises:
        UsageError: a problem was not traced.
    """
    prompt_facts = PromptFacts()
    prompt_facts.check(decoder.tokenizer)
    requests = decoder.requests([p.prompt for p in problems], 1)
    drafted = dict(_first_tokens(traces))
    missing = next((p for p in problems if p.id not in drafted), None)
    if missing is not None:
        raise UsageError(f"problem {missing.id} is not in the traces; collect traces of all tuning problems")
    return {p.id: (*prompt_facts(r.prompt), *drafted[p.id]) for p, r in zip(problems, requests, strict=True)}


def measure_losses(
    decode: Decode,
    setting: Setting,
    thresholds: Sequence[float],
    problems: Sequence[Problem],
    facts: Mapping[int, Sequence[float]],
) -> Losses:
    """Decodes problems at rising thresholds. See `per_prompt_shapes` for the arguments."""
    rising = sorted(set(thresholds))
    alone = _right(decode, setting.under("target"), problems)
    right = [_right(decode, setting.at(threshold), problems) for threshold in rising]
    lost = ~np.logical_and.accumulate(np.stack(right, 1)[alone], 1)
    rows = np.array([facts[problem.id] for problem in problems], np.float64)[alone]
    return Losses(rows, np.array(rising), lost)


def fit_weights(losses: Losses) -> Floats:
    """Returns weights of the facts in the log of the T that a problem tolerates, shape (FACTS,).

    The logit of the probability that a problem is lost at T is slope · (log T - weights · facts). One fit covers all T,
    so that a tolerated T beyond the largest one is censored instead of guessed. It takes the strongest ridge whose
    cross-validated log-loss is within one standard error of the best: where facts predict nothing, weights are 0.

    Raises:
        UsageError: too few problems are lost, or too few are kept at the smallest threshold.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, PredefinedSplit

    _check(losses)
    n, k = losses.lost.shape
    spread = np.maximum(losses.facts.std(0), _LEAST_SPREAD)
    scaled = (losses.facts - losses.facts.mean(0)) / spread
    rows = np.column_stack([_FREE * np.tile(np.log(losses.thresholds), n), np.repeat(scaled, k, 0)])
    search = GridSearchCV(
        LogisticRegression(solver="newton-cholesky"), {"C": _RIDGES}, scoring="neg_log_loss", refit=_strongest,
        cv=PredefinedSplit(np.repeat(_folds(losses.lost), k)), error_score="raise",
    ).fit(rows, losses.lost.ravel())  # fmt: skip
    if search.best_index_ == 0:
        return np.zeros(len(spread))
    slope, *coefficients = search.best_estimator_.coef_[0]
    effects = -np.array(coefficients) / max(_FREE * slope, _LEAST_SLOPE)
    return np.asarray(np.round(effects, _DECIMALS) / spread)


def _folds(lost: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Folds (n,), stratified by how early a problem is lost."""
    folds = np.empty(len(lost), np.int64)
    folds[lost.sum(1).argsort(kind="stable")] = np.arange(len(lost)) % _FOLDS
    return folds


def _strongest(results: Mapping[str, Floats]) -> int:
    """Index of the strongest ridge within one standard error of the best, of differences paired by fold."""
    scores = np.stack([results[f"split{fold}_test_score"] for fold in range(_FOLDS)])  # (folds, ridges)
    behind = scores.mean(0).max() - scores.mean(0)
    apart = scores - scores[:, [scores.mean(0).argmax()]]
    return int((behind <= apart.std(0) / math.sqrt(_FOLDS)).argmax())


def _rounded(values: Floats) -> list[float]:
    """To as many digits as all machines agree on: they are in a shape's identity, by which a run is resumed."""
    return [float(f"{value:.6g}") + 0.0 for value in values]  # 0 has no sign


def _check(losses: Losses) -> None:
    problems, lost = len(losses.lost), int(losses.lost[:, -1].sum()) if len(losses.lost) else 0
    kept = int((~losses.lost[:, 0]).sum()) if problems else 0
    if lost >= NEEDED and kept >= _FOLDS:
        return
    if lost >= NEEDED:
        raise UsageError(
            f"{kept} of {problems} tuning problems that the target solves are kept at T = {losses.thresholds[0]:.4g}; "
            f"learning what a prompt tolerates takes {_FOLDS} or more: give smaller thresholds"
        )
    way_out = f"give about {math.ceil(problems * NEEDED / lost)}" if lost else "give more, or larger thresholds"
    raise UsageError(
        f"{lost} of {problems} tuning problems that the target solves are lost up to T = {losses.thresholds[-1]:.4g}; "
        f"learning what a prompt tolerates takes {NEEDED} or more: {way_out}"
    )


def _right(decode: Decode, setting: Setting, problems: Sequence[Problem]) -> NDArray[np.bool_]:
    """Returns for each problem whether it is solved with every seed, shape (n,)."""
    return np.array([all(d.correct for d in seeds) for seeds in decode(setting, problems)], bool)


def _first_tokens(traces: Traces) -> Iterable[tuple[int, tuple[float, float]]]:
    """Yields by problem the entropy and the largest probability of the draft's first distribution."""
    columns = ("problem", "draft_entropy", "draft_top1")
    for table in traces.batches(columns, pc.field("position") == 0):
        problem, *facts = (table[name].to_pylist() for name in columns)
        yield from zip(problem, zip(*facts, strict=True), strict=True)
