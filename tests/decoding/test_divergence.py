"""Divergences against textbook formulas in float64, and their edge cases."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.special import entr, rel_entr, softmax
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fsd_common.errors import UsageError
from fsd_decoding.divergence import DIVERGENCES, divergence, divergences

MIRROR = {"kl_qp": "kl_pq", "kl_pq": "kl_qp"}
LARGEST = {"js": math.log(2), "tv": 1.0, "hellinger": 1.0, "doubt": math.log(2) + math.log(7)}  # of 7 tokens
HARSH = arrays.arrays(
    np.float64, (2, 7), elements=st.sampled_from([-math.inf, -3e38, -1e4, -104.0, -50.0, 0.0, 1.0, 88.0, 1e4, 3e38])
)
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
        "doubt": lambda: reference("js", p, q) + max(0.0, entr(q).sum() - entr(p).sum()),
    }[name]
    return formula()


@pytest.mark.thinned(every=4)
@pytest.mark.parametrize("name", DIVERGENCES)
@given(logits=LOGITS)
def test_agrees_with_scipy(name: str, logits: np.ndarray) -> None:
    target, draft = torch.from_numpy(logits)
    expected = reference(name, softmax(logits[0]), softmax(logits[1]))
    assert divergence(name, target, draft).item() == pytest.approx(expected, abs=1e-12, rel=1e-9)
    assert divergence(name, target.float(), draft.float()).item() == pytest.approx(expected, abs=2e-6, rel=2e-4)


@pytest.mark.thinned(every=6)
@pytest.mark.parametrize(("there", "back"), [(n, MIRROR.get(n, n)) for n in DIVERGENCES if n != "doubt"])
@given(logits=LOGITS)
def test_exchanging_target_and_draft(there: str, back: str, logits: np.ndarray) -> None:
    """All are symmetric except doubt and the two KLs, each of which is the other one's mirror image."""
    target, draft = torch.from_numpy(logits)
    actual, mirrored = divergence(there, target, draft).item(), divergence(back, draft, target).item()
    assert actual == pytest.approx(mirrored, abs=1e-12, rel=1e-12)


@given(logits=HARSH, dtype=st.sampled_from([torch.float32, torch.float64]))
def test_impossible_tokens_and_huge_logits_keep_the_bounds(logits: np.ndarray, dtype: torch.dtype) -> None:
    """No NaN, whichever logits are -inf, underflow or overflow; 0 <= D <= `LARGEST`, or ∞."""
    logits[np.isneginf(logits).all(-1), 0] = 0.0  # some token is possible
    names = [n + form for n in DIVERGENCES for form in ("", "@1", "@3", "@7")]
    actual = {n: d.item() for n, d in divergences(names, *torch.from_numpy(logits).to(dtype)).items()}
    for name, value in actual.items():
        assert 0 <= value <= LARGEST.get(name.partition("@")[0], math.inf) + 1e-6, name
    if dtype == torch.float64 and np.abs(logits[np.isfinite(logits)]).max() < 500:
        p, q = softmax(logits, axis=-1)
        for name in DIVERGENCES:
            assert actual[name] == pytest.approx(reference(name, p, q), abs=1e-12, rel=1e-9)


@pytest.mark.thinned(every=4)
@pytest.mark.parametrize("name", DIVERGENCES)
@given(logits=arrays.arrays(np.float64, (7,), elements=st.floats(-12, 12)), shift=st.floats(-5, 5))
def test_equal_distributions_have_no_divergence(name: str, logits: np.ndarray, shift: float) -> None:
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
def test_results_are_fp32_for_any_dtype(dtype: torch.dtype) -> None:
    logits = torch.randn(3, 5, 11, generator=torch.Generator().manual_seed(0)).to(dtype)
    actual = divergence("js", logits, logits.flip(-1))
    assert actual.shape == (3, 5)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, divergence("js", logits.float(), logits.float().flip(-1)))


@pytest.mark.thinned(every=4)
@pytest.mark.parametrize("name", DIVERGENCES)
@given(logits=LOGITS, k=st.integers(1, 9))
def test_top_k_form_is_the_same_on_k_tokens_and_one_bucket(name: str, logits: np.ndarray, k: int) -> None:
    logits = logits + 0.0137 * np.arange(7)
    assume(np.diff(np.sort(logits[0])).min() > 1e-6)  # ties would make the top k ambiguous
    p, q = softmax(logits[0]), softmax(logits[1])
    top, rest = np.argsort(-logits[0], kind="stable")[:k], np.argsort(-logits[0], kind="stable")[k:]
    merged = [np.append(x[top], x[rest].sum()) for x in (p, q)]
    actual = divergence(f"{name}@{k}", *torch.from_numpy(logits)).item()
    assert actual == pytest.approx(reference(name, *merged), abs=1e-7)
    if k >= 7:
        assert actual == divergence(name, *torch.from_numpy(logits)).item()


@given(logits=LOGITS)
def test_known_inequalities_hold(logits: np.ndarray) -> None:
    """Pinsker; hellinger² <= tv <= √2 hellinger; js <= ln 2 · tv (Lin 1991, theorem 3).

    Merging tokens increases none but doubt, which is never below js. With tv as a lower bound of each, none is zero
    where the distributions differ.
    """
    coarse = [f"{name}@3" for name in DIVERGENCES]
    actual = {n: d.item() for n, d in divergences([*DIVERGENCES, *coarse], *torch.from_numpy(logits)).items()}
    tv, hellinger = actual["tv"], actual["hellinger"]
    assert min(actual["kl_pq"], actual["kl_qp"]) >= 2 * tv**2 - 1e-12
    assert min(actual["js"], actual["ag"]) >= tv**2 / 2 - 1e-12  # Pinsker for both halves: tv(m, p) is tv / 2
    assert hellinger**2 - 1e-12 <= tv <= math.sqrt(2) * hellinger + 1e-12
    assert actual["js"] <= math.log(2) * tv + 1e-12
    assert tv == pytest.approx(np.abs(softmax(logits[0]) - softmax(logits[1])).sum() / 2, abs=1e-12)
    assert actual["doubt"] >= actual["js"]
    for name in DIVERGENCES:
        assert actual[f"{name}@3"] <= actual[name] + 1e-7 or name == "doubt"


@given(logits=LOGITS)
def test_doubt_is_js_where_the_draft_is_as_certain_as_the_target(logits: np.ndarray) -> None:
    """In one direction doubt is js, in the other js plus the difference of the entropies."""
    target, draft = torch.from_numpy(logits)
    js = divergence("js", target, draft).item()
    there, back = (divergence("doubt", *pair).item() for pair in ((target, draft), (draft, target)))
    gap = abs(entr(softmax(logits[0])).sum() - entr(softmax(logits[1])).sum())
    assert min(there, back) == pytest.approx(js, abs=1e-12)
    assert max(there, back) == pytest.approx(js + gap, abs=1e-12)


def test_doubt_tells_a_paraphrase_from_a_guess() -> None:
    """For a target (.7, .3, 0, 0) a draft (.3, .7, 0, 0) is as certain, and a uniform one is not."""
    target, habit, guess = torch.tensor([[0.7, 0.3, 0.0, 0.0], [0.3, 0.7, 0.0, 0.0], [0.25] * 4]).log()
    assert divergence("doubt", target, habit).item() == pytest.approx(0.0823, abs=1e-4)  # js: .7 ln 1.4 + .3 ln .6
    assert divergence("doubt", target, guess).item() == pytest.approx(0.2299 + 0.7754, abs=1e-4)  # H: .6109, ln 4


def test_doubt_is_largest_for_a_certain_target_and_a_uniform_draft() -> None:
    target, draft = torch.full((8,), -math.inf), torch.zeros(8)
    target[0] = 0.0
    # js = ½ ln(16/9) + ½ (⅛ ln(2/9) + ⅞ ln 2) and the entropies are 0 and ln 8
    js = 0.5 * math.log(16 / 9) + (math.log(2 / 9) / 8 + 7 / 8 * math.log(2)) / 2
    assert divergence("doubt", target, draft).item() == pytest.approx(js + math.log(8), abs=1e-6)
    assert divergence("doubt", draft, target).item() == pytest.approx(js, abs=1e-6)


def test_several_divergences_equal_each_alone_for_any_chunk_size(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    target, draft = torch.randn(2, 3, 5, 11, generator=generator).unbind()
    names = [name + form for name in DIVERGENCES for form in ("", "@3", "@11")]
    whole = divergences(names, target, draft)
    monkeypatch.setattr("fsd_decoding.divergence._CPU_CHUNK", 40)
    for name in names:
        assert whole[name].shape == (3, 5)
        assert torch.equal(divergence(name, target, draft), whole[name])


def test_memory_is_bounded() -> None:
    """No operation allocates a tensor larger than a chunk, except the results."""
    sizes: list[int] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if isinstance(out, Tensor) and out.untyped_storage().data_ptr() not in given_:
                sizes.append(out.untyped_storage().nbytes() // out.element_size())
            return out

    target, draft = torch.randn(2, 40, 25, 200).unbind()
    given_ = {target.untyped_storage().data_ptr()}
    with Watch():  # type: ignore[no-untyped-call]
        actual = divergences([name + form for name in DIVERGENCES for form in ("", "@50")], target, draft)
    assert actual["js"].shape == (40, 25)
    assert 200 * 100 < max(sizes) <= 1 << 15


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("bad", [[math.nan], [math.inf], [-math.inf] * 4], ids=str)
@pytest.mark.parametrize("name", [*DIVERGENCES, *(f"{name}@2" for name in DIVERGENCES)])
def test_nan_logits_are_named(name: str, bad: list[float], side: int) -> None:
    both = torch.zeros(2, 2, 3, 4)
    target, draft = both
    both[side, 1, 2, : len(bad)] = torch.tensor(bad)
    with pytest.raises(UsageError, match=r"position \(1, 2\) of \(2, 3\)"):
        divergence(name, target, draft)


@pytest.mark.parametrize("name", ["js@0", "js@x", "js@", "js@-1"])
def test_bad_top_k_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="unknown divergence"):
        divergence(name, torch.zeros(3), torch.zeros(3))


def test_unknown_name_lists_known_divergences() -> None:
    with pytest.raises(UsageError, match="unknown divergence 'jsd'; known: js, ag, kl_qp, kl_pq, tv, hellinger, doubt"):
        divergence("jsd", torch.zeros(3), torch.zeros(3))


def test_shapes_must_agree() -> None:
    with pytest.raises(UsageError, match=r"\(3,\) and \(4,\)"):
        divergence("js", torch.zeros(3), torch.zeros(4))
