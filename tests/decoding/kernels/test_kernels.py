"""Kernels, compared with the PyTorch operations that define their results; interpreted where there is no GPU."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fsd_calib import SpeculativeDecoder
from fsd_decoding import kernels, noise, tensors
from fsd_decoding.divergence import (
    DIVERGENCES,
    DistributionPair,
    divergences_of_pair,
    entropy,
    log_softmax,
    unchecked_divergences,
)
from fsd_decoding.sampling import Sampling
from support.models.tiny_models import word_tokenizer
from support.models.tiny_pair import related
from support.paths import ROOT

pytest.importorskip("triton", reason="kernels are written in Triton, which is not installed")
from fsd_decoding.kernels import compare, scan

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")  # NumPy's, about infinities

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WIDTHS = (1, 2, 979, 4096, 9001)
NAMES = list(DIVERGENCES)


def logits(seed: int, dtype: torch.dtype, *shape: int) -> tuple[Tensor, Tensor]:
    """Logits of a target and a similar draft; some tokens are impossible for one of them or for both."""
    random = torch.Generator().manual_seed(seed)
    target = 4 * torch.randn(shape, generator=random)
    draft = target + torch.randn(shape, generator=random)
    if shape[-1] > 2:
        target[..., 1] = draft[..., 1] = draft[..., 2] = -torch.inf
        target[0, 0, : shape[-1] // 2] = draft[0, -1, shape[-1] // 2 :] = -torch.inf
    return target.to(dtype).to(DEVICE), draft.to(dtype).to(DEVICE)


def compare_logits(target: Tensor, draft: Tensor, names: list[str] = NAMES) -> Any:
    return compare(names, target, draft, (scan(target), scan(draft)))


def reference(target: Tensor, draft: Tensor) -> dict[str, Tensor]:
    """From fp64: in fp32 PyTorch is off by up to 3e-6, depending on the CPU, and the kernels by a tenth of that."""
    pair = DistributionPair(log_softmax(target.double()), log_softmax(draft.double()))
    dtype = torch.promote_types(target.dtype, torch.float32)
    return {name: value.to(dtype) for name, value in divergences_of_pair(NAMES, pair).items()}


def close(actual: Tensor, expected: Tensor) -> bool:
    tolerance = 1e-11 if expected.dtype == torch.float64 else 3e-6
    return actual.dtype == expected.dtype and torch.allclose(actual, expected, tolerance, tolerance, equal_nan=True)


@pytest.mark.thinned(every=20)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_divergences(dtype: torch.dtype, width: int) -> None:
    target, draft = logits(width, dtype, 2, 3, width)
    actual, expected = compare_logits(target, draft), reference(target, draft)
    for name in NAMES:
        assert close(actual[name], expected[name]), name


@pytest.mark.thinned(every=20)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_entropies(dtype: torch.dtype, width: int) -> None:
    for one in logits(width, dtype, 2, 3, width):
        assert close(scan(one).entropy, entropy(one))
        assert close(scan(one).normaliser, (one if dtype == torch.float64 else one.float()).logsumexp(-1))


def test_different_dtypes() -> None:
    target, draft = logits(1, torch.float64, 1, 2, 979)
    actual = compare_logits(target.float(), draft.bfloat16())
    for name, expected in reference(target.float(), draft.bfloat16()).items():
        assert close(actual[name], expected), name


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize("name", NAMES)
def test_each_alone(name: str) -> None:
    target, draft = logits(2, torch.float32, 1, 2, 979)
    alone, together = (compare_logits(target, draft, names) for names in ([name], NAMES))
    assert close(alone[name], together[name])


@pytest.mark.thinned(every=7)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_two_likeliest(width: int, dtype: torch.dtype) -> None:
    target, _ = logits(width, dtype, 2, 3, width)
    actual = scan(target)
    assert torch.equal(actual.top, target.argmax(-1))
    assert torch.equal(actual.choice, actual.top)
    two = torch.cat([target, target[..., :1] - torch.inf], -1).to(actual.top1.dtype).topk(2).values
    assert torch.equal(torch.stack([actual.top1, actual.top2], -1), two)


@pytest.mark.parametrize("places", [(0, 1), (5, 3000), (1023, 1024), (4095, 4096), (10, 9000), (4096, 8192, 9000)])
def test_the_first_of_equal_logits_is_the_likeliest(places: tuple[int, ...]) -> None:
    """Ties within a block of 1,024, across blocks, and across splits of 4,096."""
    row = torch.zeros(1, 1, 9001, device=DEVICE)
    row[0, 0, list(places)] = 2.0
    actual = scan(row)
    assert actual.top.item() == actual.choice.item() == places[0]
    assert actual.top1.item() == actual.top2.item() == 2.0


@pytest.mark.slow
@given(st.lists(st.integers(0, 3), min_size=2, max_size=30))
def test_the_two_largest_of_any_row(values: list[int]) -> None:
    actual = scan(torch.tensor([[values]], dtype=torch.float32, device=DEVICE))
    assert actual.top.item() == values.index(max(values))
    assert [actual.top1.item(), actual.top2.item()] == sorted(values)[:-3:-1]


@pytest.mark.parametrize("ahead", [1e-9, -1e-9])
def test_in_fp64_a_race_is_decided_by_differences_below_fp32(ahead: float) -> None:
    keys, positions = noise.problem_keys(7, [1]).to(DEVICE), torch.tensor([[5]], device=DEVICE)
    luck = noise.gumbel(keys, positions, noise.Stream.TOKEN, 5000, torch.float64)[0, 0]
    temperature, row = 0.7, torch.full((1, 1, 5000), -torch.inf, dtype=torch.float64, device=DEVICE)
    row[0, 0, 4444] = 3.0
    row[0, 0, 17] = 3.0 + temperature * (luck[4444] - luck[17] + ahead)
    assert scan(row, temperature, noise.words(keys, positions, noise.Stream.TOKEN)).choice.item() == (
        17 if ahead > 0 else 4444
    )


@pytest.mark.parametrize(("width", "dtype"), product(WIDTHS, DTYPES), ids=str)
@pytest.mark.thinned(every=20)
def test_the_race_picks_the_token_that_sampling_draws(width: int, dtype: torch.dtype) -> None:
    """Half-precision logits are widened alike on both sides, so no rounding changes a choice."""
    target, _ = logits(width, dtype, 2, 4, width)
    wide = target if dtype == torch.float64 else target.float()
    keys = noise.problem_keys(7, [1, 2]).to(DEVICE)
    positions = torch.arange(8, device=DEVICE).reshape(2, 4)
    for temperature in (0.3, 1.0, 2.5):
        words = noise.words(keys, positions, noise.Stream.TOKEN)
        drawn = Sampling(temperature).draw(wide / temperature, keys, positions)
        assert torch.equal(scan(target, temperature, words).choice, drawn)


@pytest.mark.thinned(every=8)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 5000, 8191, 9000])
def test_nan_and_inf_give_nan(bad: float, place: int) -> None:
    target, draft = logits(3, torch.float32, 1, 2, 9001)
    target[0, 0, place] = draft[0, 1, place] = bad
    actual = compare_logits(target, draft)
    assert all(actual[name].isnan().all() for name in NAMES)


@pytest.mark.slow
def test_rows_of_minus_infinity_give_nan() -> None:
    target, draft = logits(3, torch.float32, 1, 2, 9001)
    target[0, 1] = -torch.inf
    actual = compare_logits(target, draft)
    assert all(actual[name].isnan().tolist() == [[False, True]] for name in NAMES)
    assert scan(target).top[0, 1] == 0


def test_certain_models_that_disagree() -> None:
    target = torch.full((1, 1, 5000), -torch.inf, device=DEVICE)
    draft = target.clone()
    target[..., 17] = draft[..., 4444] = 3.0
    actual = {name: one.item() for name, one in compare_logits(target, draft).items()}
    infinite = dict.fromkeys(("ag", "kl_qp", "kl_pq"), math.inf)
    assert actual == pytest.approx(infinite | {"js": math.log(2), "doubt": math.log(2), "tv": 1, "hellinger": 1})


@pytest.mark.slow
def test_equal_models_have_no_divergence() -> None:
    target, _ = logits(4, torch.bfloat16, 1, 3, 9001)
    assert all((one <= 1e-6).all() for one in compare_logits(target, target.clone()).values())


@pytest.mark.slow
def test_rows_may_be_strided() -> None:
    target, draft = logits(5, torch.float32, 3, 6, 979)
    actual = compare_logits(target.transpose(0, 1)[1:4], draft.transpose(0, 1)[1:4])
    expected = compare_logits(target, draft)
    for name in NAMES:
        assert torch.equal(actual[name], expected[name].transpose(0, 1)[1:4])


@pytest.mark.slow
def test_the_widest_vocabularies() -> None:
    target, draft = logits(6, torch.bfloat16, 1, 1, 262_144)
    actual, expected = compare_logits(target, draft), reference(target.double(), draft.double())
    assert all(close(actual[name], expected[name].float()) for name in NAMES)  # fp32 operations err by 1e-5
    assert torch.equal(scan(target).top, target.argmax(-1))


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Enables kernels wherever they apply, and counts their calls."""
    calls: Counter[str] = Counter()

    def counting(name: str, kernel: Any) -> Any:
        def counted(*args: Any) -> Any:
            calls[name] += 1
            calls[str(next(given.dtype for given in args if isinstance(given, torch.Tensor)))] += 1
            return kernel(*args)

        return counted

    monkeypatch.setattr(tensors, "INTERPRETED", DEVICE == "cpu")
    monkeypatch.setattr(kernels, "scan", counting("scan", kernels.scan))
    monkeypatch.setattr(kernels, "compare", counting("compare", kernels.compare))
    return calls


@pytest.mark.slow
def test_divergences_use_the_kernel_for_any_shape(fused: Counter[str]) -> None:
    target, draft = logits(7, torch.float32, 2, 3, 979)
    for shape in ((979,), (3, 979), (2, 3, 979), (1, 2, 3, 979)):
        t, d = (one.reshape(-1)[: math.prod(shape)].reshape(shape) for one in (target, draft))
        expected = reference(t, d)
        assert all(close(one, expected[name]) for name, one in unchecked_divergences(NAMES, t, d).items())
        assert close(entropy(t), torch.special.entr(log_softmax(t).exp()).sum(-1))
    assert fused == {"scan": 12, "compare": 4, "torch.float32": 16}


def test_unsupported_inputs_use_pytorch_operations(fused: Counter[str]) -> None:
    target, draft = logits(7, torch.float32, 2, 3, 979)
    assert unchecked_divergences(["js@5", "js"], target, draft).keys() == {"js@5", "js"}
    assert unchecked_divergences(["js"], target.double(), draft)["js"].dtype == torch.float64
    assert unchecked_divergences(["js"], target[:0], draft[:0])["js"].shape == (0, 3)
    with pytest.raises(RuntimeError):
        unchecked_divergences(["js"], target, draft[..., :40])
    assert unchecked_divergences(["js"], target.clone().requires_grad_(), draft)["js"].requires_grad
    assert unchecked_divergences(["js"], target.mT.contiguous().mT, draft)["js"].shape == (2, 3)
    keys, positions = noise.problem_keys(1, [1, 2]).to(DEVICE), torch.arange(6, device=DEVICE).reshape(2, 3)
    for sampling in (Sampling(1e-4), Sampling(1.0, top_k=3), Sampling(1.0, min_p=0.1)):
        assert sampling.scan(target, keys, positions) is None
    assert not fused
    assert Sampling(1e-4).scan(target.double(), keys, positions) is not None


@pytest.mark.thinned(every=15)
@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(0.8), Sampling(0.8, top_k=9)], ids=["greedy", "0.8", "top-k"]
)
@pytest.mark.parametrize("rule", ["target", "coupled", "sd", "fsd-coupled", "fsd-sd"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_the_engine_gives_the_same_texts(
    dtype: torch.dtype, rule: str, sampling: Sampling, request: pytest.FixtureRequest
) -> None:
    """Kernels read the models' own logits, whatever their dtype."""
    target, draft = (model.to(dtype) for model in related(seed=1, spread=0.05))
    decoder = SpeculativeDecoder(target, draft, word_tokenizer(), sampling=sampling)
    how: dict[str, Any] = {"rule": rule, "draft_length": 3}
    if "fsd" in rule:
        how["threshold"] = 0.1
    usual = decoder.generate(["w1 w2", "w3 w4 w5"], 6, **how)
    calls = request.getfixturevalue("fused")
    ours = decoder.generate(["w1 w2", "w3 w4 w5"], 6, **how)
    assert [(r.tokens, r.rounds, r.accepted) for r in ours] == [(r.tokens, r.rounds, r.accepted) for r in usual]
    if "fsd" in rule:
        assert calls[str(dtype)] == calls["compare"] + calls["scan"] > 0
        # Greedily and under top-k PyTorch chooses what is drafted.
        assert (calls["scan"] == 2 * calls["compare"]) == (sampling.greedy or sampling.top_k is not None)
        assert [r.interval for r in ours] == [pytest.approx(r.interval) for r in usual]


class CountedKernel:
    """A kernel that counts its launches, from graphs too."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.launches = kernel, 0

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        self.launches += 1
        return self.kernel[grid]


@pytest.mark.slow
def test_compiled_graphs_launch_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = SpeculativeDecoder(*related(seed=1, spread=0.05), word_tokenizer(), threshold=0.1, draft_length=3)
    compiled = SpeculativeDecoder(
        usual.target, usual.draft, usual.tokenizer, threshold=0.1, draft_length=3, compile="capture"
    )
    expected = usual.generate(["w1 w2", "w3 w4 w5"], 12, 0.8)
    monkeypatch.setattr(tensors, "INTERPRETED", DEVICE == "cpu")
    scans, compares = CountedKernel(kernels._scan), CountedKernel(kernels._compare)
    monkeypatch.setattr(kernels, "_scan", scans)
    monkeypatch.setattr(kernels, "_compare", compares)
    actual = compiled.generate(["w1 w2", "w3 w4 w5"], 12, 0.8)
    assert [(r.tokens, r.rounds, r.accepted) for r in actual] == [(r.tokens, r.rounds, r.accepted) for r in expected]
    rounds = max(r.rounds for r in actual)
    assert compares.launches == rounds
    assert scans.launches == 5 * rounds  # three drafted tokens, and both models' logits at verification


@pytest.mark.skipif(DEVICE == "cuda", reason="here Triton works")
def test_where_triton_fails_there_is_one_warning_and_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "_works", {})
    lacking = "(CUDA|NVIDIA)"  # a build of torch without CUDA says the one, a machine without a driver the other
    with pytest.warns(UserWarning, match=f"Triton does not work on cuda:0, so decoding is slower: .*{lacking}"):
        tensors.probe_triton(torch.device("cuda", 0))
    tensors.probe_triton(torch.device("cuda", 0))
    assert tensors._works == {0: False}


@pytest.mark.slow
def test_kernels_compile_for_absent_gpus(tmp_path: Path) -> None:
    folders = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    program = ROOT / "tests" / "support" / "models" / "compile_kernels.py"
    ran = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, env=os.environ | folders)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert len(ran.stdout.splitlines()) == 8
