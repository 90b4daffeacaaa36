"""The parts of `benchmarks/vllm_fsd.py` that need no vLLM."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from fsd_calib.certification.outcomes import Outcomes
from lib.engines.processes import serve
from lib.engines.work import Decoded, Work
from lib.vllm.retention import standard_error


@dataclass(frozen=True)
class Echo:
    """An engine whose texts are the prompts."""

    fails: bool = False

    def build(self) -> Echo:
        return self

    def decode(self, work: Work, way: str) -> Decoded:
        if self.fails:
            raise ValueError("the engine's own error")
        return Decoded(tuple(way + prompt for prompt in work.prompts), len(work.prompts), 1, 0.5, 1.0)


def _work(*prompts: str) -> Work:
    return Work(prompts, tuple(range(len(prompts))), 8, (), 1)


def test_engines_decode_in_processes_of_their_own() -> None:
    with serve({"one": Echo(), "other": Echo()}) as served:
        decoded = served["one"].decode(_work("a", "b")) + served["other"].decode(_work("c"), "off ")
    assert decoded == Decoded(("a", "b", "off c"), 3, 2, 1.0, 2.0)
    assert [run.rate for run in (decoded.on_cpu, decoded.by_clock, decoded.of_steps)] == [3, 1.5, 2]


def test_an_engines_error_reaches_the_caller() -> None:
    with serve({"one": Echo(fails=True)}) as served, pytest.raises(RuntimeError, match="the engine's own error"):
        served["one"].decode(_work("a"))


def test_standard_error_of_retention_is_that_of_resampled_problems() -> None:
    outcomes = Outcomes(both_right=1800, lost=60, gained=40, both_wrong=100)
    counts = np.array([outcomes.both_right, outcomes.lost, outcomes.gained, outcomes.both_wrong])
    drawn = np.random.default_rng(0).multinomial(counts.sum(), counts / counts.sum(), 20_000)
    retentions = (drawn[:, 0] + drawn[:, 2]) / (drawn[:, 0] + drawn[:, 1])
    assert standard_error(outcomes) == pytest.approx(retentions.std(), rel=0.03)
