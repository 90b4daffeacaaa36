"""A captured step, on a simulated device: it runs once per call, and is not captured where it reads a value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fsd_decoding.graphs.callers import CompiledCaller, EagerCaller, GraphKey
from fsd_decoding.graphs.capture import CapturingCaller
from lib.gpu.tape import Tape


def fill(x: Tensor) -> None:
    x.clone()[x > 0] = torch.arange(2.0)


READS: dict[str, Callable[[Tensor], Any]] = {
    "tolist": lambda x: x.tolist(), "numpy": lambda x: x.numpy(), "item": lambda x: x[0].item(),
    "nonzero": lambda x: x.nonzero(), "mask": lambda x: x[x > 0], "fill": fill,
    "handed over": lambda x: torch.tensor([1.0, 2.0]),
}  # fmt: skip


@pytest.mark.parametrize("read", READS)
def test_a_tape_is_as_strict_as_a_graph(read: str) -> None:
    with pytest.raises(RuntimeError, match="which is not permitted while a graph is captured"):
        Tape()(lambda: READS[read](torch.ones(2)))


@pytest.mark.parametrize("read", READS)
def test_a_step_that_reads_values_is_called_directly(read: str) -> None:
    """It is detected at the first call, or fails at capture: a CPU's lists and arrays are read without a trace."""
    call = CapturingCaller(EagerCaller(), Tape())

    def step(values: Tensor) -> Tensor:
        READS[read](values)
        return values + 1

    with pytest.warns(UserWarning, match="step .step. cannot be captured as a graph, so rounds are slower: "):
        results = [call(GraphKey("k", 0), step, torch.full((2,), float(n))).tolist() for n in (1, 2, 3)]
    assert results == [[2, 2], [3, 3], [4, 4]]
    assert len(call) == 0


def test_a_replay_reads_the_captured_addresses() -> None:
    weight = torch.nn.Parameter(torch.tensor([2.0]))
    values, out = torch.tensor([3.0]), torch.zeros(1)

    def launch() -> None:
        out.copy_(values * weight)

    with torch.inference_mode():
        replay = Tape()(launch)
        weight.data = torch.tensor([5.0])
        values.fill_(4.0)
        replay()
    assert out.item() == 8


def test_draft_steps_are_not_compiled_each() -> None:
    whole = CapturingCaller(CompiledCaller("eager"), Tape())
    assert whole.uncompiled is not whole
    assert whole.uncompiled.uncompiled is whole.uncompiled


@pytest.mark.parametrize("index", [torch.tensor([1, 0]), torch.tensor([[0], [1]])])
def test_gathering_reads_no_values(index: Tensor) -> None:
    call = CapturingCaller(EagerCaller(), Tape())
    for n in range(3):
        values = torch.tensor([n, n + 1])
        assert torch.equal(call(GraphKey("k", 0), lambda values: values[index] * 1, values), values[index])


class Adding:
    """A step whose results show which values it read."""

    def __init__(self) -> None:
        self.calls = 0
        self.state = torch.zeros(2)

    def step(self, values: list[Tensor], by: float) -> list[Tensor]:
        self.calls += 1
        self.state.add_(by)
        return [one + self.state for one in values]


def test_a_step_runs_once_per_call() -> None:
    adding, call = Adding(), CapturingCaller(EagerCaller(), Tape())
    for n in range(1, 6):
        (actual,) = call(GraphKey("k", 0), adding.step, [torch.full((2,), 10.0 * n)], 1.0)
        assert actual.tolist() == [11.0 * n] * 2
    assert adding.calls == 2  # once directly, once captured


def test_results_of_one_shape_share_memory_at_every_reach() -> None:
    adding, call = Adding(), CapturingCaller(EagerCaller(), Tape())
    first, second, other = (
        call(GraphKey(kind, reach), adding.step, [torch.zeros(2)], 1.0)[0]
        for kind, reach in (("k", 64), ("k", 128), ("l", 64))
    )
    assert first.data_ptr() == second.data_ptr() != other.data_ptr()


def test_out_of_memory_is_raised() -> None:
    def full(launch: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    adding, call = Adding(), CapturingCaller(EagerCaller(), full)
    call(GraphKey("k", 0), adding.step, [torch.zeros(2)], 1.0)
    with pytest.raises(torch.OutOfMemoryError):
        call(GraphKey("k", 0), adding.step, [torch.zeros(2)], 1.0)


@pytest.mark.parametrize("needed", [1, 63, 64, 65, 1000, 1024, 1025, 4100, 131_072])
def test_at_most_a_quarter_of_a_long_texts_slots_is_unused(needed: int) -> None:
    size = CapturingCaller(EagerCaller(), Tape()).size(needed)
    assert needed <= size <= max(needed + 255, 1.25 * needed)


def test_few_sizes_occur_as_a_text_grows() -> None:
    """Each is a graph of its own."""
    caller = CapturingCaller(EagerCaller(), Tape())
    assert len({caller.size(needed) for needed in range(100, 1125)}) == 5
