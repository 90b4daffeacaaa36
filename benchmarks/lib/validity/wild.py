"""What users do with one target: other prompts, fresh files, windows, looks at the test set, and labels put right.

What is attempted always keeps exactly what is wanted, so every certificate is false. Outcomes are drawn as counts of
blocks of problems; `replayed` makes the attempts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from fsd_calib.certification.marking import Asked
from fsd_calib.certification.power import cells
from lib.validity.replayed import LOST, Step, any_passes, arranged, levels_of, problems_of, share_false
from lib.validity.shares import CONFIDENCE, Share, line, own_level, summarise
from lib.validity.sizes import Counts
from lib.validity.worlds import WANTED, p_of

ACCURACY = 0.8
COUNTED, UNCOUNTED = "by the ledger", "each as if it were the first"
_WRAPPERS = 5
_WEEKS, _WINDOW = 52, 4
_DROPPED = 0.2  # of the problems that were lost

Rng = np.random.Generator


def drawn(problems: int, churn: float, shape: tuple[int, ...], rng: Rng) -> Counts:
    """Draws counts of paired outcomes, (*shape, 4)."""
    return rng.multinomial(problems, cells(ACCURACY, churn, WANTED), size=shape)


def _shares(
    what: str, steps: Sequence[Step], blocks: Sequence[Sequence[int]], counts: Counts, rng: Rng
) -> Iterator[Share]:
    """Yields how often any of the steps passes.

    Args:
        blocks: Those of each step, in the order of its problems.
        counts: Of each block, (runs, blocks, 4).
    """
    p = np.stack([p_of(counts[:, list(of)].sum(1)) for of in blocks], 1)

    def passes(run: int) -> bool:
        kinds = [arranged(block, rng) for block in counts[run]]
        return any_passes((s, np.concatenate([kinds[b] for b in of])) for s, of in zip(steps, blocks, strict=True))

    yield Share(what, COUNTED, share_false(p, levels_of(steps), passes))
    yield Share(what, UNCOUNTED, float((p <= own_level(1)).any(1).mean()))


def wrapped(problems: int, churn: float, alike: float, runs: int, rng: Rng) -> Iterator[Share]:
    """Asks the same rows in five ways, as five tasks. alike: share of the rows with the same outcome in all."""
    same = round(alike * problems)
    counts = np.concatenate(
        [drawn(same, churn, (runs, 1), rng), drawn(problems - same, churn, (runs, _WRAPPERS), rng)], 1
    )
    steps = [Step(problems_of(range(problems), f"as {way}"), f"task {way}") for way in range(_WRAPPERS)]
    what = line(problems, churn, f"{_WRAPPERS} wrappers, {alike:.0%} of outcomes alike")
    yield from _shares(what, steps, [[0, 1 + way] for way in range(_WRAPPERS)], counts, rng)


def monthly(problems: int, churn: float, months: int, runs: int, rng: Rng) -> Iterator[Share]:
    """Certifies a fresh file each month, until one passes."""
    steps = [Step(problems_of(range(month * problems, (month + 1) * problems))) for month in range(months)]
    counts = drawn(problems, churn, (runs, months), rng)
    what = line(problems, churn, f"{months} monthly files")
    yield from _shares(what, steps, [[month] for month in range(months)], counts, rng)


def sliding(problems: int, churn: float, runs: int, rng: Rng) -> Iterator[Share]:
    """Certifies the last four weeks, every week of a year."""
    weekly = problems // _WINDOW
    steps = [Step(problems_of(range(week * weekly, (week + _WINDOW) * weekly))) for week in range(_WEEKS)]
    counts = drawn(weekly, churn, (runs, _WEEKS + _WINDOW - 1), rng)
    blocks = [range(week, week + _WINDOW) for week in range(_WEEKS)]
    yield from _shares(line(problems, churn, f"{_WEEKS} windows of {_WINDOW} weeks"), steps, blocks, counts, rng)


def looked_at(problems: int, churn: float, settings: int, runs: int, rng: Rng) -> Iterator[Share]:
    """Measures settings on problems by lm-eval, and certifies the best on these and as many others."""
    test, fresh = range(problems), range(problems, 2 * problems)
    marked = [Asked(f"lm-eval's prompt of {row}", {"row": row}) for row in test]
    seen, other = drawn(problems, churn, (runs, settings), rng), drawn(problems, churn, (runs,), rng)
    best = (seen[..., 0] + seen[..., 2]) / (seen[..., 0] + seen[..., 1])
    chosen = np.take_along_axis(seen, best.argmax(1)[:, None, None], 1)[:, 0]
    both, p = Step(problems_of([*test, *fresh])), p_of(other)[:, None]

    def passes(run: int) -> bool:
        return any_passes([(both, np.concatenate([arranged(c[run], rng) for c in (chosen, other)]))], marked)

    what = line(problems, churn, f"best of {settings} on the test set")
    yield Share(f"{what} and fresh problems", COUNTED, share_false(p, levels_of([both], marked), passes))
    even_perfect = any_passes([(Step(problems_of(test)), np.zeros(problems, np.int64))], marked)
    yield Share(what, COUNTED, float(even_perfect))
    yield Share(what, UNCOUNTED, float((p_of(chosen) <= own_level(1)).mean()))


CHANGES: dict[str, int | None] = {  # what becomes of the outcome of a problem that was lost; None: it is left out
    "left out": None,
    "labelled anew, wrong for both": 3,
    "labelled anew, as the fuzzy rule says": 2,
}


def relabelled(
    problems: int, churn: float, change: str, times: int, runs: int, rng: Rng, share: float = _DROPPED
) -> Iterator[Share]:
    """Where an attempt fails, changes a share of the problems that it lost and tries again, so many times."""
    first, counts, becomes = problems_of(range(problems)), drawn(problems, churn, (runs,), rng), CHANGES[change]
    shown = [counts]
    for _ in range(times):
        shown.append(_changed(shown[-1], becomes, share))
    p, levels = p_of(np.stack(shown, 1)), levels_of([Step(first[again:]) for again in range(times + 1)])

    def attempts(run: int) -> Iterator[tuple[Step, Counts]]:
        asked, kinds = np.array(first, object), arranged(counts[run], rng)
        yield Step(first), kinds
        for _ in range(times):
            lost = np.flatnonzero(kinds == LOST)
            touched = rng.permutation(lost)[: round(share * len(lost))]
            if becomes is None:
                asked, kinds = np.delete(asked, touched), np.delete(kinds, touched)
            else:
                asked[touched] = [replace(problem, reference="2") for problem in asked[touched]]
                kinds[touched] = becomes
            yield Step(tuple(asked)), kinds

    what = line(problems, churn, f"{share:.0%} of the lost {change}, {times} x")
    yield Share(what, COUNTED, share_false(p, levels, lambda run: any_passes(attempts(run))))
    yield Share(what, UNCOUNTED, float((p <= own_level(1)).any(1).mean()))


def _changed(counts: Counts, becomes: int | None, share: float) -> Counts:
    """Returns the counts after a change."""
    touched = np.rint(share * counts[:, LOST]).astype(np.int64)
    changed = counts.copy()
    changed[:, LOST] -= touched
    if becomes is not None:
        changed[:, becomes] += touched
    return changed


def wild(populations: Sequence[tuple[int, float]], larger: tuple[int, float], runs: int, rng: Rng) -> dict[str, Any]:
    """Simulates all of it.

    Args:
        populations: Numbers of problems, and churn.
        larger: One more, of which only labels are changed: the more problems, the more that brings.
    """
    shares = list[Share]()
    for of in populations:
        for alike in (0.0, 0.5, 0.9):
            shares += wrapped(*of, alike, runs, rng)
        for months in (3, 6, 12):
            shares += monthly(*of, months, runs, rng)
        for settings in (8, 16):
            shares += looked_at(*of, settings, runs, rng)
    for of, change in product((*populations, larger), CHANGES):
        shares += relabelled(*of, change, 1, runs, rng)
    shares += relabelled(*populations[0], "left out", 4, runs, rng)
    shares += sliding(*populations[0], runs, rng)
    columns = "problems | churn | what was done | way, then the share of runs with any false certificate"
    return summarise(shares, columns, 1 - CONFIDENCE, runs, (UNCOUNTED,))
