"""Copies of weights in large pages: the same numbers, each at its own place, for as long as one of them is there."""

from __future__ import annotations

import gc

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fsd_decoding.models.pages import Pages

DTYPES = st.sampled_from([torch.bfloat16, torch.float16, torch.float32, torch.int64])
SHAPES = st.lists(st.integers(0, 40), min_size=1, max_size=3).map(tuple)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(SHAPES, DTYPES, st.integers(1, 3)), min_size=1, max_size=8))
def test_copies_are_equal_and_apart(wanted: list[tuple[tuple[int, ...], torch.dtype, int]]) -> None:
    groups = [
        [torch.full(shape, number + part, dtype=dtype) for part in range(parts)]
        for number, (shape, dtype, parts) in enumerate(wanted)
    ]
    told: list[int] = []
    pages = Pages((tensor for group in groups for tensor in group), told.append)
    copies = [pages.cat(group) for group in groups]
    assert sum(told) == sum(copy.nbytes for copy in copies)
    del pages
    gc.collect()
    for copy in copies:
        assert copy.data_ptr() % 64 == 0
        copy.add_(1)  # each is written once, so that two in one place would show
    for copy, group in zip(copies, groups, strict=True):
        assert torch.equal(copy, torch.cat(group) + 1)
