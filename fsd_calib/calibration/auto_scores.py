"""The scores that a search tries where the user names none (`--score auto`), by what traces say of them.

Beside what the exact rule keeps, a score keeps tokens that the target would not have written. How far it is from
writing one, traces tell without a decoding: log p1 - log p(x), the nats by which the target prefers its likeliest
token. Scores are compared where they keep equal shares of these tokens, and so make rounds of about the same length.
How much accuracy a nat costs nobody knows beforehand: so the search tries all that are near the best, if they keep
other tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest

import numpy as np

from fsd_calib.vllm_plugin.settings import hidden_noise, other_law
from fsd_collectors.replay.blocks import Array, Traces, blocks
from fsd_collectors.replay.cases import Case, scores_of_rows
from fsd_decoding.scores import score_named

USUAL: tuple[str, ...] = ("js", "doubt")
"""What is tried where no traces tell of scores: of drafts that are no models, and with a predictor."""


def usual(names: Sequence[str]) -> tuple[str, ...]:
    """Returns those of `USUAL` that are possible, or else all that are."""
    return tuple(name for name in names if name in USUAL) or tuple(names)


_KNOWN = (
    "js", "kl_qp", "doubt", "gated-js@0.7", "gated-js@0.9", "margin", "margin@4", "relaxed", "typical",
    "accept-threshold", "accept-threshold@0.9", "fly@1", "fly@2", "fly@4", "cactus", "posterior", "ensemble",
)  # fmt: skip
_SHARES = (0.2, 0.4, 0.6, 0.8)  # of the tokens that the exact rule rejects
_NEAR = 1.1  # times the nats of the best score
_LEAST = 0.1  # nats, below which means are alike: where decoding samples, likeliest tokens are rejected, too
_ALIKE = 0.8  # share of the tokens that two scores keep alike, at half of the rejected ones
_MOST = 3


def possible(greedy: bool, longest: int, trees: bool, of_vllm: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns the scores that can be tried.

    Args:
        greedy: whether decoding is; the random number of the exact test means nothing then.
        longest: the largest draft length.
        trees: whether trees are drafted.
        of_vllm: the rules that are searched, where vLLM decodes.
    """
    return tuple(name for name in _KNOWN if _is_possible(name, greedy, longest, trees, of_vllm))


def _is_possible(name: str, greedy: bool, longest: int, trees: bool, of_vllm: Sequence[str]) -> bool:
    score = score_named(name)
    if score.window >= longest or (greedy and score.reads_noise) or (trees and not score.judges_trees):
        return False
    return not of_vllm or not (hidden_noise(name, greedy) or any(other_law(rule, name, greedy) for rule in of_vllm))


def tried(traces: Traces, rule: str, names: Sequence[str]) -> tuple[str, ...]:
    """Returns the scores to try, the best first.

    Args:
        traces: along the target, with the scores.
        rule: whose exact part rejects.
        names: of scores.
    """
    nats, columns = of_rejected(traces, rule, names)
    excess = _excess({name: _means(nats, scores) for name, scores in columns.items()})
    chosen: list[str] = []
    for name in sorted(excess, key=excess.__getitem__):
        near = excess[name] <= _NEAR * min(excess.values())
        if near and len(chosen) < _MOST and all(_alike(columns[name], columns[other]) < _ALIKE for other in chosen):
            chosen.append(name)
    return tuple(chosen) or usual(names)


def of_rejected(traces: Traces, rule: str, names: Sequence[str]) -> tuple[Array, dict[str, Array]]:
    """Returns of the tokens that the exact rule rejects the nats by which the target prefers another, and the scores.

    Args:
        traces, rule, names: see `tried`.

    Returns:
        (n,) each, in the order of the rows.
    """
    cases = {name: Case(rule, name, np.array([-np.inf])) for name in names}
    exact = next(iter(cases.values())).exact or "same_token"
    wanted = {exact, "target_top1", "target_probability", *chain(*(case.columns for case in cases.values()))}
    nats, columns = [np.empty(0)], {name: [np.empty(0)] for name in names}
    for block in blocks(traces, sorted(wanted)):
        rejected = ~block.columns[exact].astype(bool)
        tiny = np.finfo(np.float32).tiny
        top, of_x = (np.maximum(block.columns[f"target_{name}"], tiny) for name in ("top1", "probability"))
        nats.append(np.log(top / of_x)[rejected])
        for name, case in cases.items():
            columns[name].append(scores_of_rows(case, block)[rejected])
    return np.concatenate(nats), {name: np.concatenate(parts) for name, parts in columns.items()}


def _means(nats: Array, scores: Array) -> list[float]:
    """Returns the mean nats of kept tokens at each share, rising, up to the largest that the score keeps at any T."""
    order = np.argsort(scores, kind="stable")
    counts = [int(share * len(scores)) for share in _SHARES]
    return [float(nats[order[:n]].mean()) for n in counts if n and np.isfinite(scores[order[n - 1]])]


def _excess(means: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Returns how many times the nats of the best score each one takes, on average over the shares that it keeps."""
    best = [min(at) for at in zip_longest(*means.values(), fillvalue=np.inf)]
    ratios = {name: np.maximum(of, _LEAST) / np.maximum(best[: len(of)], _LEAST) for name, of in means.items() if of}
    return {name: float(ratio.mean()) for name, ratio in ratios.items()}


def _alike(one: Array, other: Array) -> float:
    """Returns the share of tokens that two scores keep alike, where each keeps half."""
    half = len(one) // 2
    kept = (set(np.argsort(scores, kind="stable")[:half].tolist()) for scores in (one, other))
    return len(set.intersection(*kept)) / half
