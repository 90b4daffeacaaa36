"""Texts of the bundled pair: rounds that are called directly, captured or compiled give the same ones."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any
from unittest.mock import patch

from fsd_decoding.engine.cache_pool import CAPTURES
from fsd_decoding.graphs.callers import Compile
from fsd_decoding.rules import rule_named
from fsd_decoding.sampling import Sampling
from lib.gpu.claims import SMALLER
from lib.gpu.decoding import Decoder
from lib.gpu.models import bundled, word_problems
from lib.gpu.plan import Plan

_DTYPES = ("float32", "bfloat16")

Texts = list[list[int]]


def equality(plan: Plan) -> Iterator[dict[str, Any]]:
    """Yields the share of texts that equal those of eager rounds, by how rounds are called; last where they compile.

    Eager rounds in smaller batches show what other shapes of the same products change by rounding: rows that end leave
    an eager batch, and not a captured one. In fp32 texts are also compared with the CPU's.
    """
    prompts = word_problems(plan.problems)
    models = {dtype: bundled(dtype, plan.device, plan.layers) for dtype in _DTYPES}
    eager: dict[tuple[str, str, float], Texts] = {}

    def texts(decoder: Decoder, rule: str, temperature: float, batch_size: int | None = None) -> Texts:
        rounds = decoder.rounds(
            prompts, plan.compared, plan.draft_length, rule_named(rule),
            batch_size=batch_size, sampling=Sampling(temperature=temperature),
        )  # fmt: skip
        ended = {row.request.index: row.tokens for row in chain.from_iterable(rounds) if row.finish_reason is not None}
        return [ended[index] for index in sorted(ended)]

    def compared(
        called: str, decoder: Decoder, dtype: str, rule: str, temperature: float, batch_size: int | None = None
    ) -> dict[str, Any]:
        pairs = zip(texts(decoder, rule, temperature, batch_size), eager[dtype, rule, temperature], strict=True)
        equal = sum(a == b for a, b in pairs) / len(prompts)
        return {"dtype": dtype, "called": called, "rule": rule, "temperature": temperature, "equal": equal}

    def decoder(dtype: str, compile: Compile) -> Decoder:
        return Decoder(*models[dtype], compile)

    for dtype in _DTYPES:
        direct, captured = decoder(dtype, False), decoder(dtype, "capture")
        for setting in plan.settings:
            eager[(dtype, *setting)] = texts(direct, *setting)
            yield compared(SMALLER, direct, dtype, *setting, len(prompts) // 2)
            for called in ("captured", "captured again"):
                yield compared(called, captured, dtype, *setting)
    cpu = Decoder(*bundled("float32", "cpu", plan.layers))
    for setting in plan.settings:
        yield compared("on a CPU", cpu, "float32", *setting)
    for dtype in plan.compiled:
        with patch.dict(CAPTURES):
            CAPTURES.pop("cpu", None)  # a stand-in for graphs records PyTorch's operations; compiled kernels are none
            row = compared("compiled", decoder(dtype, True), dtype, *plan.settings[-1])
        yield row
