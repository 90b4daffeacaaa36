"""Products that are equal to rounding, whichever library computes them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fsd_decoding.models import linears

ONEDNN = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN")


@ONEDNN
@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 80),
    inputs=st.integers(1, 300),
    outputs=st.integers(1, 300),
    added=st.sampled_from(["nothing", "bias", "residual"]),
    large=st.sampled_from([1, linears._LARGE]),
)
def test_onednn_gives_the_same_product(rows: int, inputs: int, outputs: int, added: str, large: int) -> None:
    generator = torch.Generator().manual_seed(rows + 100 * inputs + 10_000 * outputs)
    states, weight, residual = (
        torch.randn(shape, generator=generator) for shape in ((rows, inputs), (inputs, outputs), (rows, outputs))
    )
    addend = {"nothing": None, "bias": residual[0], "residual": residual}[added]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linears, "mkl_is_slow", lambda: True)
        patch.setattr(linears, "_LARGE", large)
        found = linears.Product(weight)(states, addend)
    exact = states.double() @ weight.double() + (0 if addend is None else addend.double())
    bound = (states.double().abs() @ weight.double().abs() + residual.abs().max() + 1) * inputs * 2**-23
    assert found.dtype == torch.float32
    assert ((found - exact).abs() <= bound).all()


@settings(max_examples=60, deadline=None)
@given(
    rows=st.one_of(st.integers(1, 3), st.integers(1, 80)),
    inputs=st.integers(1, 300),
    outputs=st.integers(1, 300),
    added=st.booleans(),
)
def test_few_rows_in_bf16_give_the_same_product(rows: int, inputs: int, outputs: int, added: bool) -> None:
    generator = torch.Generator().manual_seed(rows + 100 * inputs + 10_000 * outputs)
    states, weight, bias = (
        torch.randn(shape, generator=generator).bfloat16() for shape in ((rows, inputs), (outputs, inputs), (outputs,))
    )
    addend = bias if added else None
    found = linears.Product(weight.t())(states, addend)
    exact = states.double() @ weight.double().t() + (bias.double() if added else 0)
    bound = (states.double().abs() @ weight.double().abs().t() + bias.double().abs()) * 2**-7
    assert (found.dtype, found.shape) == (torch.bfloat16, (rows, outputs))
    assert ((found - exact).abs() <= bound).all()


@ONEDNN
def test_what_is_added_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linears, "mkl_is_slow", lambda: True)
    states, weight, residual = torch.ones(1024, 64), torch.ones(64, 32), torch.ones(1024, 32)
    assert torch.equal(linears.Product(weight)(states, residual), torch.full((1024, 32), 65.0))
    assert torch.equal(residual, torch.ones(1024, 32))


@pytest.mark.parametrize(
    ("maker", "capability", "slow"),
    [("AuthenticAMD", "AVX512", True), ("AuthenticAMD", "AVX2", False), ("GenuineIntel", "AVX512", False)],
)
def test_mkl_is_slow_on_cpus_of_amd_with_avx512(
    maker: str, capability: str, slow: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = tmp_path / "cpuinfo"
    about.write_text(f"processor\t: 0\nvendor_id\t: {maker}\n")
    monkeypatch.setattr(linears, "_CPUINFO", about)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    for library in (torch.backends.mkl, torch.backends.mkldnn):
        monkeypatch.setattr(library, "is_available", lambda: True)
    linears.mkl_is_slow.cache_clear()
    assert linears.mkl_is_slow() is slow
    linears.mkl_is_slow.cache_clear()


def test_float64_is_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linears, "mkl_is_slow", lambda: True)
    states, weight = torch.randn(1024, 64, dtype=torch.float64), torch.randn(64, 32, dtype=torch.float64)
    assert torch.equal(linears.Product(weight)(states), states @ weight)


@pytest.mark.slow
def test_a_graph_can_hold_a_large_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linears, "mkl_is_slow", lambda: True)
    states, weight, residual = torch.randn(1024, 64), torch.randn(64, 32), torch.randn(1024, 32)
    product = linears.Product(weight)
    compiled = torch.compile(lambda *given: product(*given) * 2, fullgraph=True)
    torch.testing.assert_close(compiled(states, residual), 2 * (residual + states @ weight))
