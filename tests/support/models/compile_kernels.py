"""Compiles the Triton kernels for GPU architectures that this machine need not have.

It checks that they compile, not what they compute. It runs as a program of its own, because kernels are interpreted in
the tests' process.
"""

from __future__ import annotations

import itertools
from typing import Any

import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from fsd_decoding import kernels

_SIZES = ("places", "vocabulary")
_BLOCKS = {"SIZE": 4 * kernels.BLOCK, "BLOCK": kernels.BLOCK}
_DIVERGENCES = ("JS", "AG", "KL_QP", "KL_PQ", "TV", "SQUARES")
_TYPES = ("fp16", "bf16", "fp32", "fp64")


def compile_kernel(
    kernel: Any, pointers: dict[str, str], numbers: tuple[str, ...], constants: dict[str, Any], sm: int
) -> None:
    """Compiles a kernel for the compute capability `sm`, such as 90.

    Args:
        pointers: by parameter, the type that it points to.
        numbers: the int32 parameters.
        constants: the `constexpr` parameters and their values.
    """
    signature = {name: f"*{kind}" for name, kind in pointers.items()} | dict.fromkeys(numbers, "i32")
    source = ASTSource(kernel, signature | dict.fromkeys(constants, "constexpr"), constexprs=constants)
    compile(source, target=GPUTarget("cuda", sm, 32))


def compile_scan(kind: str, draws: bool, sm: int) -> None:
    accumulated = "fp64" if kind == "fp64" else "fp32"
    floats = ("largest", "total", "weighted", "second_largest", "won", "temperature")
    words = dict.fromkeys(("top", "choice", "first", "second"), "i32")
    constants = {"DRAWS": draws, "INNER": getattr(tl, f"float{accumulated[2:]}"), **_BLOCKS}
    pointers = {"logits": kind, **dict.fromkeys(floats, accumulated), **words}
    compile_kernel(kernels._scan, pointers, (*_SIZES, "row_stride", "place_stride"), constants, sm)


def compile_compare(kind: str, sm: int) -> None:
    accumulated = "fp64" if kind == "fp64" else "fp32"
    outputs = dict.fromkeys(("target_normaliser", "draft_normaliser", "sums"), accumulated)
    strides = ("target_row", "target_place", "draft_row", "draft_place")
    constants = {"COLUMNS": len(_DIVERGENCES), "INNER": getattr(tl, f"float{accumulated[2:]}"), **_BLOCKS}
    constants |= dict.fromkeys(_DIVERGENCES, True)
    pointers = {"target": kind, "draft": kind, **outputs}
    compile_kernel(kernels._compare, pointers, (*_SIZES, *strides), constants, sm)


if __name__ == "__main__":
    for sm, kind in itertools.product((80, 90), _TYPES):
        compile_scan(kind, False, sm)
        compile_scan(kind, True, sm)
        compile_compare(kind, sm)
        print(sm, kind)
