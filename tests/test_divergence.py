"""Divergences against textbook formulas in float64, and their edge cases."""

from __future__ import annotations

import math
from collections.abc import Callable

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.special import rel_entr, softmax

from fsd_decoding.divergence import DIVERGENCES, divergence, divergences
from fsd_decoding.errors import UsageError

LOGITS = arrays.arrays(np.float64, (2, 7), elements=st.floats(-12, 12))


def reference(name: str, p: np.ndarray, q: np.ndarray) -> float:
    m = (p + q) / 2
    formula: Callable[[], float] = {
        "js": lambda: (rel_entr(p, m).sum() + rel_entr(q, m).sum()) / 2,
        "ag": lambda: (rel_entr(m, p).sum() + rel_entr(m, q).sum()) / 2,
        "kl_qp": lambda: rel_entr(q, p).sum(),
        "kl_pq": lambda: rel_entr(p, q).sum(),
        "tv": lambda: np.abs(p - q).sum() / 2,
        "hellinger": lambda: np.sqrt(((np.sqrt(p) - np.sqrt(q)) ** 2).sum() / 2),
    }[name]
    return formula()


@pytest.mark.parametrize("name", DIVERGENCES)
@given(logits=LOGITS)
def test_agrees_with_scipy(name: str, logits: np.ndarray) -> None:
    target, draft = torch.from_numpy(logits)
    expected = reference(name, softmax(logits[0]), softmax(logits[1]))
    assert divergence(name, target, draft).item() == pytest.approx(expected, abs=1e-12, rel=1e-9)
    assert divergence(name, target.float(), draft.float()).item() == pytest.approx(expected, abs=2e-6, rel=2e-4)


@given(logits=LOGITS)
def test_js_is_symmetric_bounded_and_zero_only_for_equals(logits: np.ndarray) -> None:
    target, draft = torch.from_numpy(logits)
    there, back = divergence("js", target, draft).item(), divergence("js", draft, target).item()
    assert there == pytest.approx(back, abs=1e-12)
    assert 0 <= there <= math.log(2) + 1e-12
    apart = np.abs(softmax(logits[0]) - softmax(logits[1])).sum() / 2
    assert there >= apart**2 / 2 - 1e-12  # Pinsker's inequality for both halves: js >= tv² / 2


@pytest.mark.parametrize("name", DIVERGENCES)
@given(logits=arrays.arrays(np.float64, (7,), elements=st.floats(-12, 12)), shift=st.floats(-5, 5))
def test_equal_distributions_have_none(name: str, logits: np.ndarray, shift: float) -> None:
    target = torch.from_numpy(logits)
    assert divergence(name, target, target + shift).item() == pytest.approx(0, abs=1e-12)


def test_disjoint_supports_give_the_largest_values_and_no_nan() -> None:
    left = torch.tensor([0.0, 0.0, -math.inf, -math.inf])
    right = left.flip(0)
    assert divergence("js", left, right).item() == pytest.approx(math.log(2), abs=1e-6)
    assert divergence("ag", left, right).item() == math.inf
    assert divergence("kl_qp", left, right).item() == math.inf
    assert divergence("kl_qp", torch.zeros(4), right).item() == pytest.approx(math.log(2), abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_answers_in_fp32_whatever_it_is_given(dtype: torch.dtype) -> None:
    logits = torch.randn(3, 5, 11, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = divergence("js", logits, logits.flip(-1))
    assert found.shape == (3, 5)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, divergence("js", logits.float(), logits.float().flip(-1)))


@pytest.mark.parametrize("name", DIVERGENCES)
@given(logits=LOGITS, k=st.integers(1, 9))
def test_top_k_form_is_the_same_on_k_tokens_and_one_bucket(name: str, logits: np.ndarray, k: int) -> None:
    logits = logits + 0.0137 * np.arange(7)
    assume(np.diff(np.sort(logits[0])).min() > 1e-6)  # with ties, which tokens are the top k is anyone's choice
    p, q = softmax(logits[0]), softmax(logits[1])
    top, rest = np.argsort(-logits[0], kind="stable")[:k], np.argsort(-logits[0], kind="stable")[k:]
    merged = [np.append(x[top], x[rest].sum()) for x in (p, q)]
    found = divergence(f"{name}@{k}", *torch.from_numpy(logits)).item()
    assert found == pytest.approx(reference(name, *merged), abs=1e-7)
    if k >= 7:
        assert found == divergence(name, *torch.from_numpy(logits)).item()


@given(logits=LOGITS)
def test_known_inequalities_hold(logits: np.ndarray) -> None:
    """Pinsker; hellinger² <= tv <= √2 hellinger; js <= ln 2 · tv (Lin 1991, theorem 3)."""
    found = {n: d.item() for n, d in divergences(list(DIVERGENCES), *torch.from_numpy(logits)).items()}
    tv, hellinger = found["tv"], found["hellinger"]
    assert min(found["kl_pq"], found["kl_qp"]) >= 2 * tv**2 - 1e-12
    assert hellinger**2 - 1e-12 <= tv <= math.sqrt(2) * hellinger + 1e-12
    assert found["js"] <= math.log(2) * tv + 1e-12
    assert 0 <= tv <= 1 + 1e-12


def test_many_at_once_are_what_each_is_alone_and_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    target, draft = torch.randn(2, 3, 5, 11, generator=generator).unbind()
    names = [*DIVERGENCES, "js@3"]
    whole = divergences(names, target, draft)
    monkeypatch.setattr("fsd_decoding.divergence._CHUNK", 40)
    for name in names:
        assert whole[name].shape == (3, 5)
        assert torch.equal(divergence(name, target, draft), whole[name])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", DIVERGENCES)
def test_nan_logits_are_named(name: str, bad: float) -> None:
    target, draft = torch.zeros(2, 3, 4), torch.zeros(2, 3, 4)
    draft[1, 2, 0] = bad
    with pytest.raises(UsageError, match=r"position \(1, 2\) of \(2, 3\)"):
        divergence(name, target, draft)


@pytest.mark.parametrize("name", ["js@0", "js@x", "js@", "js@-1"])
def test_bad_top_k_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="unknown divergence"):
        divergence(name, torch.zeros(3), torch.zeros(3))


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(UsageError, match="unknown divergence 'jsd'; known: js, ag, kl_qp, kl_pq, tv, hellinger"):
        divergence("jsd", torch.zeros(3), torch.zeros(3))


def test_shapes_must_agree() -> None:
    with pytest.raises(UsageError, match=r"\(3,\) and \(4,\)"):
        divergence("js", torch.zeros(3), torch.zeros(4))
