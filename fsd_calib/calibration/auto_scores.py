"""The scores that a search tries where the user names none (`--score auto`), by what traces say of them.

Beside what the exact rule keeps, a score keeps tokens that the target would not have written. How far it is from
writing one, traces tell without a decoding: log p1 - log p(x), the nats by which the target prefers its likeliest
token. Scores are compared where they keep equal shares of these tokens, and so make rounds of about the same length.
How much accuracy a nat costs nobody knows beforehand: so the search tries all that are near the best, if they keep
other tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np

from fsd_calib.vllm_plugin.settings import hidden_noise, other_law
from fsd_collectors.replay.blocks import Array, Traces, blocks
from fsd_collectors.replay.cases import Case, scores_of_rows
from fsd_decoding.scores import score_named

USUAL: tuple[str, ...] = ("js", "doubt")
"""What is tried where no traces tell of scores: of drafts that are no models, and with a predictor."""

_KNOWN = (
    "js", "kl_qp", "doubt", "gated-js@0.7", "gated-js@0.9", "margin", "margin@4", "relaxed", "typical",
    "accept-threshold", "accept-threshold@0.9", "fly@1", "fly@2", "fly@4", "cactus", "posterior", "ensemble",
)  # fmt: skip
_SHARES = (0.2, 0.4, 0.6, 0.8)  # of the tokens that the exact rule rejects
_NEAR = 1.1  # times the nats of the best score
_ALIKE = 0.8  # share of the tokens that two scores keep alike, at half of the rejected ones
_MOST = 3


def possible(rules: Sequence[str], greedy: bool, longest: int, trees: bool, in_vllm: bool) -> tuple[str, ...]:
    """Returns the scores that can be tried.

    Args:
        rules: names of the rules that are searched.
        greedy: whether decoding is; the random number of the exact test means nothing then.
        longest: the largest draft length.
        trees: whether trees are drafted.
        in_vllm: whether vLLM decodes.
    """
    return tuple(
        name for name in _KNOWN if _is_possible(name, rules, greedy, longest, trees)
        and not (in_vllm and any(_obstacles_in_vllm(name, rules, greedy)))
    )  # fmt: skip


def _is_possible(name: str, rules: Sequence[str], greedy: bool, longest: int, trees: bool) -> bool:
    score = score_named(name)
    return score.window < longest and not (greedy and score.reads_noise) and (score.judges_trees or not trees)


def _obstacles_in_vllm(name: str, rules: Sequence[str], greedy: bool) -> Iterable[str | None]:
    return chain([hidden_noise(name, greedy)], (other_law(rule, name, greedy) for rule in rules))


def tried(traces: Traces, rule: str, names: Sequence[str]) -> tuple[str, ...]:
    """Returns the scores to try, the best first.

    Args:
        traces: along the target, with the scores.
        rule: whose exact part rejects.
        names: of scores.
    """
    nats, columns = _of_rejected(traces, rule, names)
    means = {name: mean for name, scores in columns.items() if (mean := _mean(nats, scores)) is not None}
    chosen: list[str] = []
    for name in sorted(means, key=means.__getitem__):
        near = means[name] <= _NEAR * min(means.values())
        if near and len(chosen) < _MOST and all(_alike(columns[name], columns[other]) < _ALIKE for other in chosen):
            chosen.append(name)
    return tuple(chosen) or USUAL


def _of_rejected(traces: Traces, rule: str, names: Sequence[str]) -> tuple[Array, dict[str, Array]]:
    """Returns the nats and the scores of the tokens that the exact rule rejects: (n,) each."""
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


def _mean(nats: Array, scores: Array) -> float | None:
    """Returns the mean nats of kept tokens over several shares; None: the score keeps no such shares at any T."""
    order = np.argsort(scores, kind="stable")
    counts = [int(share * len(scores)) for share in _SHARES]
    if counts[0] == 0 or not np.isfinite(scores[order[: counts[-1]]]).all():
        return None
    return float(np.mean([nats[order[:count]].mean() for count in counts]))


def _alike(one: Array, other: Array) -> float:
    """Returns the share of tokens that two scores keep alike, where each keeps half."""
    half = len(one) // 2
    kept = (set(np.argsort(scores, kind="stable")[:half].tolist()) for scores in (one, other))
    return len(set.intersection(*kept)) / half
