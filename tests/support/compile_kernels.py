"""Compiles kernels for GPUs that need not be here; run as a program, for Triton interprets in the tests' own process.

Says whether they compile, not what they compute: that is the interpreter's, or a GPU's, to say.
"""

from __future__ import annotations

import itertools
from typing import Any

import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from fsd_decoding.kernels import divergences, scan

_SIZES = ("places", "vocabulary", "size")
_ASKED = ("JS", "AG", "KL_QP", "KL_PQ", "TV", "SQUARES")
_TYPES = ("fp16", "bf16", "fp32", "fp64")


def compiled(kernel: Any, pointers: dict[str, str], numbers: tuple[str, ...], known: dict[str, Any], sm: int) -> None:
    signature = {name: f"*{kind}" for name, kind in pointers.items()} | dict.fromkeys(numbers, "i32")
    source = ASTSource(kernel, signature | dict.fromkeys(known, "constexpr"), constexprs=known)
    compile(source, target=GPUTarget("cuda", sm, 32))


def scanned(kind: str, races: bool, sm: int) -> None:
    held = "fp64" if kind == "fp64" else "fp32"
    floats = ("largest", "total", "weighted", "second_largest", "won", "temperature")
    words = dict.fromkeys(("top", "choice", "first", "second"), "i32")
    known = {"RACES": races, "INNER": getattr(tl, f"float{held[2:]}"), "BLOCK": scan.BLOCK}
    pointers = {"logits": kind, **dict.fromkeys(floats, held), **words}
    compiled(scan._scan, pointers, (*_SIZES, "row_stride", "place_stride"), known, sm)


def compared(kind: str, sm: int) -> None:
    held = "fp64" if kind == "fp64" else "fp32"
    normal = dict.fromkeys(("target_normaliser", "draft_normaliser", "sums"), held)
    strides = ("target_row", "target_place", "draft_row", "draft_place")
    known = {"COLUMNS": len(_ASKED), "INNER": getattr(tl, f"float{held[2:]}"), "BLOCK": scan.BLOCK}
    pointers = {"target": kind, "draft": kind, **normal}
    compiled(divergences._compare, pointers, (*_SIZES, *strides), known | dict.fromkeys(_ASKED, True), sm)


if __name__ == "__main__":
    for sm, kind in itertools.product((80, 90), _TYPES):
        scanned(kind, False, sm)
        scanned(kind, True, sm)
        compared(kind, sm)
        print(sm, kind)
