"""Top-p without sorting: the tokens that transformers keeps, by both ways to find the least likely of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import TopPLogitsWarper

from fsd_decoding import nucleus
from fsd_decoding.graphs.callers import capturing
from fsd_decoding.nucleus import NucleusWarper
from fsd_decoding.sampling import Sampling

ANY: Any = None


def logits(seed: int, rows: int, vocabulary: int, spread: float, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (spread * torch.randn(rows, vocabulary, generator=generator, dtype=torch.float64)).to(dtype)


@pytest.mark.parametrize("in_graph", [False, True])
@given(
    seed=st.integers(0, 10_000), rows=st.integers(1, 4), vocabulary=st.integers(1, 3000),
    spread=st.floats(0.01, 20), top_p=st.floats(0.01, 0.99),
)  # fmt: skip
def test_the_same_tokens_are_kept_as_by_transformers(
    in_graph: bool, seed: int, rows: int, vocabulary: int, spread: float, top_p: float
) -> None:
    given_ = logits(seed, rows, vocabulary, spread, torch.float64)
    wanted = TopPLogitsWarper(top_p)(ANY, given_)
    if in_graph:
        with capturing():
            found = NucleusWarper(top_p)(ANY, given_)
    else:
        found = NucleusWarper(top_p)(ANY, given_)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("few", [4, 1024])
def test_enough_is_kept_and_no_token_more_in_lower_precision(
    dtype: torch.dtype, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the likeliest few are not enough. Equal logits are kept together."""
    monkeypatch.setattr(nucleus, "_FEW", few)
    for seed in range(20):
        given_ = logits(seed, 3, 500, 2.0, dtype)
        found = NucleusWarper(0.9)(ANY, given_)
        kept = found > -torch.inf
        assert torch.equal(found[kept], given_[kept])
        exact = given_.double().softmax(-1)
        assert (torch.where(kept, exact, 0.0).sum(-1) > 0.9 - 1e-5).all()
        least = torch.where(kept, given_.double(), torch.inf).amin(-1, keepdim=True)
        assert (torch.where(given_.double() > least, exact, 0.0).sum(-1) < 0.9 + 1e-5).all()
        assert torch.equal(kept, given_.double() >= least)


def test_infinite_logits_are_left_out() -> None:
    given_ = torch.tensor([[-torch.inf, 1.0, 0.0, -torch.inf]])
    for top_p in (0.3, 0.999):
        assert torch.equal(NucleusWarper(top_p)(ANY, given_), TopPLogitsWarper(top_p)(ANY, given_))
        with capturing():
            assert torch.equal(NucleusWarper(top_p)(ANY, given_), TopPLogitsWarper(top_p)(ANY, given_))


def test_a_top_p_of_1_is_off() -> None:
    """So that kernels apply as without it, and a profile's sampling is the same."""
    assert Sampling(0.7, top_p=1.0) == Sampling(0.7)
    assert Sampling(0.0, top_p=1) == Sampling()
    assert Sampling(0.7, top_p=0.9).changed({"top_p": 1.0}) == Sampling(0.7)
