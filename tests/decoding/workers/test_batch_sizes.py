"""Batches cover all problems, fill rows, and become smaller towards the end."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fsd_decoding.workers.pool import batch_sizes


@given(st.integers(0, 5000), st.integers(1, 64), st.integers(1, 16))
def test_batches_cover_the_problems_and_shrink(problems: int, rows: int, workers: int) -> None:
    sizes = batch_sizes(problems, rows, workers)
    assert sum(sizes) == problems
    assert all(size >= 1 for size in sizes)
    assert all(after <= before for before, after in pairwise(sizes))
    assert max(sizes, default=0) <= 4 * rows
    few = [size for size in sizes if size < rows]
    assert len(few) <= workers  # of the last round alone
    assert len(sizes) >= min(workers, problems)  # every worker gets a batch, if there are enough problems


def test_examples() -> None:
    assert batch_sizes(64, 32, 2) == [32, 32]
    assert batch_sizes(20, 32, 2) == [10, 10]
    assert batch_sizes(3, 32, 4) == [1, 1, 1]
    assert batch_sizes(1000, 32, 2) == [128] * 4 + [122] * 2 + [61] * 4
