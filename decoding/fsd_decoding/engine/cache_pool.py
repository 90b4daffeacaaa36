"""Pool of key-value caches: allocation, and reuse by later calls of the same decoder."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from fsd_decoding.batch import Batch
from fsd_decoding.drafters.base import Drafter, DraftSource, ReadsTarget, layers_read
from fsd_decoding.engine.draft import SideStream
from fsd_decoding.graphs.callers import Caller, Compile, EagerCaller, caller
from fsd_decoding.graphs.capture import Capture, CapturingCaller, CudaGraphs, CudaSideStream
from fsd_decoding.models.forward import check_model, has_states
from fsd_decoding.models.lean import LeanModel, choose
from fsd_decoding.models.runner import ModelDrafter, ModelRunner

CAPTURES: dict[str, Callable[[], Capture]] = {"cuda": CudaGraphs}
"""How steps are captured, by device type. Devices without an entry only have graphs made by `torch.compile`."""

_Key = tuple[int, Hashable]
"""Number of rows, and how steps are called with the identity of the models."""


@dataclass(frozen=True)
class Models:
    """The models that caches are allocated for.

    Args:
        target: a loaded causal LM.
        draft: a loaded causal LM or a `DraftSource`.
        vocabulary: number of token ids that both share.
        lean: whether the lean forward pass may run them; see `lean.py`.
        draft_length: the largest one; a drafter that reads the target's states and recurrent layers need it.
    """

    target: Any
    draft: Any
    vocabulary: int
    lean: bool = True
    draft_length: int = 0

    def drafter(self, target: ModelRunner, rows: int) -> Drafter:
        """Returns a new drafter for `rows` rows, beside the target's runner."""
        if not isinstance(self.draft, DraftSource):
            return ModelDrafter(
                ModelRunner(
                    self.draft, rows, target.slots, self.vocabulary, self.lean, rolled_back=self.draft_length + 1
                )
            )
        drafter = self.draft.drafter(rows, target.slots, self.vocabulary)
        if isinstance(drafter, ReadsTarget):
            drafter.read(target, self.draft_length + 1)
        return drafter

    def target_runner(self, rows: int, slots: int) -> ModelRunner:
        """Returns a new runner of the target for `rows` rows of up to `slots` tokens."""
        read, most = layers_read(self.draft), self.draft_length + 1
        return ModelRunner(self.target, rows, slots, self.vocabulary, self.lean, read, rolled_back=most)

    def check(self, slots: int, drafts: bool) -> None:
        """Raises UsageError for a model that cannot be run in rows of `slots` tokens; see `check_model`."""
        for model in self._causal_models() if drafts else [self.target]:
            check_model(model, slots)

    def device(self) -> torch.device | None:
        """The device of all weights and buffers; None where they are on several."""
        devices = {self.target.device, *(weight.device for weight in self._tensors())}
        return devices.pop() if len(devices) == 1 else None

    def identity(self) -> Hashable:
        """The models and the addresses of their weights; None where a weight has no address (some quantised ones)."""
        chosen = [choose(model) if self.lean else "" for model in self._causal_models()]  # which may move weights
        addresses = [weight.data_ptr() for weight in self._tensors() if weight.numel()]
        if not all(addresses):
            return None
        run_by = [lean.number if isinstance(lean, LeanModel) else None for lean in chosen]
        sized = bool(layers_read(self.draft)) or any(map(has_states, self._causal_models()))
        draft_length = self.draft_length if sized else 0
        return (id(self.target), id(self.draft), draft_length, *run_by, *addresses)

    def _causal_models(self) -> list[Any]:
        return [model for model in self._modules() if not isinstance(model, DraftSource)]

    def _modules(self) -> list[torch.nn.Module]:
        return [model for model in (self.target, self.draft) if isinstance(model, torch.nn.Module)]

    def _tensors(self) -> Iterator[Tensor]:
        for model in self._modules():
            yield from chain(model.parameters(), model.buffers())


@dataclass
class PooledCaches:
    """KV caches of both models and the batch state that goes with them, used by one engine at a time."""

    models: Models
    batch: Batch
    target: ModelRunner
    call: Caller
    side: SideStream | None  # where stop policies run beside draft steps; None on devices without streams
    drafter: Drafter | None = None  # allocated when a rule first drafts
    free: dict[_Key, list[PooledCaches]] | None = None  # the pool's, while in use only: a cycle would delay freeing
    key: _Key | None = None  # in it
    last_use: Any = None  # mark of the side stream after the last work on these caches

    @classmethod
    def allocate(cls, models: Models, rows: int, slots: int, call: Caller) -> PooledCaches:
        """Allocates caches of `rows` rows of `slots` tokens; the draft's follow when a rule first drafts."""
        target = models.target_runner(rows, slots)
        side = CudaSideStream(target.device) if target.device.type == "cuda" else None
        return cls(models, Batch(rows, slots, target.device), target, call, side)

    @property
    def rows(self) -> int:
        return len(self.batch.lengths)

    @property
    def slots(self) -> int:
        return self.target.slots

    def reset(self, drafts: bool) -> PooledCaches:
        """Empties the batch for a new use, after the work of the last one.

        Raises:
            UsageError: a model can no longer be run, for example because it is in training mode.
        """
        self.models.check(self.slots, drafts)
        if self.side is not None and self.last_use is not None:
            self.side.wait_for(self.last_use)
        self.batch.clear()
        if drafts and self.drafter is None:
            self.drafter = self.models.drafter(self.target, self.rows)
        return self

    @contextmanager
    def used(self) -> Iterator[None]:
        """Returns the caches to the pool on exit, unless they are spoiled or an error occurred."""
        try:
            yield
        except GeneratorExit:  # the caller stopped reading rounds
            self._release()
            raise
        except torch.OutOfMemoryError:
            if self.free is not None:
                self.free.clear()
            raise
        self._release()

    def discard(self) -> None:
        """Keeps these caches from being reused, because NaN in them would outlive a reset."""
        self.free = None

    def _release(self) -> None:
        free, self.free = self.free, None
        if free is not None and self.key is not None:
            self.last_use = self.side.mark() if self.side is not None else None
            free.setdefault(self.key, []).append(self)


class KVCachePool:
    """Allocates caches, and keeps those whose steps were captured for reuse: their graphs hold for their addresses.

    Args:
        compile: how steps are called; see `graphs.callers.caller`.
    """

    def __init__(self, compile: Compile) -> None:
        self._compile, self._call = compile, caller(compile)
        self._free: dict[_Key, list[PooledCaches]] = {}

    @property
    def compile(self) -> Compile:
        """How steps are called; a change drops all graphs, with the caches that they hold for."""
        return self._compile

    @compile.setter
    def compile(self, compile: Compile) -> None:
        if compile != self._compile:
            self._compile, self._call = compile, caller(compile)
            self._free.clear()

    def acquire(
        self, models: Models, requests: int, batch_size: int, longest: int, drafts: bool, graphs: bool
    ) -> PooledCaches:
        """Returns empty caches, reused or newly allocated, which go back to the pool when their use ends.

        Args:
            models: the models to run.
            requests: number of requests to decode in all.
            batch_size: the most requests to decode at a time.
            longest: the most tokens a row will hold, drafts included.
            drafts: whether the draft model is used.
            graphs: whether steps may be called as graphs.

        Raises:
            UsageError: a model cannot be run; see `check_model`.
        """
        call = self._caller_for(models) if graphs else EagerCaller()
        rows, slots = call.rows(requests, batch_size), call.size(longest)
        identity = models.identity() if isinstance(call, CapturingCaller) else None
        if identity is None:
            return PooledCaches.allocate(models, rows, slots, call).reset(drafts)
        key = rows, (self._compile, identity)
        caches = (self._take_free(key, slots) or PooledCaches.allocate(models, rows, slots, call)).reset(drafts)
        caches.free, caches.key = self._free, key
        return caches

    def _take_free(self, key: _Key, slots: int) -> PooledCaches | None:
        """Removes unused caches of the key from the pool; drops smaller ones, and all of models that were replaced."""
        for other in [other for other in list(self._free) if other[1] != key[1]]:
            self._free.pop(other, None)
        free = self._free.get(key, [])
        with suppress(IndexError):  # none is left, or another thread took it
            while (caches := free.pop()).slots < slots:
                pass
            return caches
        return None

    def _caller_for(self, models: Models) -> Caller:
        """A caller that captures graphs, where the device can and all weights are on it; else the pool's own."""
        if not self._compile or models.target.device.type not in CAPTURES or models.device() is None:
            return self._call
        capture = CAPTURES[models.target.device.type]()
        return CapturingCaller(self._call if self._compile is True else EagerCaller(), capture)
