"""Where requests are decoded: rows, both models' caches, and how steps are called there.

Knows who may use a room and for how long. Knows nothing of rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor

from fsd_decoding.batch import Batch
from fsd_decoding.drafters.base import Drafter, DraftSource, ModelDrafter
from fsd_decoding.engine.draft import Side
from fsd_decoding.graphs.callers import Caller, Eager, caller
from fsd_decoding.graphs.capture import Capture, Captured
from fsd_decoding.graphs.cuda import SideStream, cuda_graphs
from fsd_decoding.models.compatibility import check_model
from fsd_decoding.models.runner import ModelRunner

CAPTURES: dict[str, Callable[[torch.device], Capture | None]] = {"cuda": cuda_graphs}
"""By device type; where there is none, `torch.compile` alone makes graphs."""

_Key = tuple[int, Hashable]
"""Rows and models."""


@dataclass(frozen=True)
class Models:
    """Whose texts a room is for."""

    target: Any
    draft: Any  # or a `DraftSource`
    vocabulary: int

    def drafter(self, rows: int, slots: int) -> Drafter:
        if isinstance(self.draft, DraftSource):
            return self.draft.drafter(rows, slots, self.vocabulary)
        return ModelDrafter(ModelRunner(self.draft, rows, slots, self.vocabulary))

    def check(self, slots: int, drafts: bool) -> None:
        """UsageError: see `check_model`."""
        for model in self._modules() if drafts else [self.target]:
            check_model(model, slots)

    def device(self) -> torch.device | None:
        """Where all is; None: in more places than one."""
        found = {self.target.device, *(weight.device for weight in self._tensors())}
        return found.pop() if len(found) == 1 else None

    def place(self) -> Hashable:
        """Which models, and where their weights are; None where a weight does not say, as quantised ones may not."""
        places = [weight.data_ptr() for weight in self._tensors() if weight.numel()]
        return (id(self.target), id(self.draft), *places) if all(places) else None

    def _modules(self) -> list[torch.nn.Module]:
        return [model for model in (self.target, self.draft) if isinstance(model, torch.nn.Module)]

    def _tensors(self) -> Iterator[Tensor]:
        for model in self._modules():
            yield from chain(model.parameters(), model.buffers())


@dataclass
class PooledCaches:
    """One engine's at a time."""

    models: Models
    batch: Batch
    target: ModelRunner
    call: Caller
    side: Side | None  # where policies work beside draft steps, on devices that can
    drafter: Drafter | None = None  # once a rule drafts
    kept: _Kept | None = None  # where it goes when it is left; then none, or each would keep the other and its memory
    left: Any = None  # a mark behind the last work done here

    @classmethod
    def of(cls, models: Models, rows: int, slots: int, call: Caller) -> PooledCaches:
        target = ModelRunner(models.target, rows, slots, models.vocabulary)
        side = SideStream(target.device) if target.device.type == "cuda" else None
        return cls(models, Batch(rows, slots, target.device), target, call, side)

    @property
    def rows(self) -> int:
        return len(self.batch.lengths)

    @property
    def slots(self) -> int:
        return self.target.slots

    def entered(self, drafts: bool) -> PooledCaches:
        """Empty. UsageError: a model is no longer fit."""
        self.models.check(self.slots, drafts)
        if self.side is not None and self.left is not None:
            self.side.after(self.left)
        self.batch.clear()
        if drafts and self.drafter is None:
            self.drafter = self.models.drafter(self.rows, self.slots)
        return self

    @contextmanager
    def used(self) -> Iterator[None]:
        """Leaves the room to others afterwards, unless it is spoiled or something went wrong."""
        try:
            yield
        except GeneratorExit:  # whoever asked for rounds has had enough
            self._leave()
            raise
        except torch.OutOfMemoryError:
            if self.kept is not None:
                self.kept.pool.clear()
            raise
        self._leave()

    def spoil(self) -> None:
        """Nobody shall have it again: what is no number would stay in its caches."""
        self.kept = None

    def _leave(self) -> None:
        kept, self.kept = self.kept, None
        if kept is not None:
            self.left = self.side.mark() if self.side is not None else None
            kept.pool.setdefault(kept.key, []).append(self)


@dataclass(frozen=True)
class _Kept:
    """A place among rooms that nobody uses."""

    pool: dict[_Key, list[PooledCaches]]
    key: _Key


class KVCachePool:
    """Makes rooms. One whose steps are captured is kept when it is left: its graphs hold for its addresses alone."""

    def __init__(self, compile: bool | Literal["capture"]) -> None:
        self._compile, self._call = compile, caller(compile)
        self._free: dict[_Key, list[PooledCaches]] = {}

    def caches(
        self, models: Models, requests: int, batch_size: int, longest: int, drafts: bool, graphs: bool
    ) -> PooledCaches:
        """For so many requests, `batch_size` of them at a time, whose texts grow to `longest` tokens.

        drafts: whether the draft is asked. graphs: whether what is done there fits any.
        """
        call = self._caller(models) if graphs else Eager()
        rows, slots = call.rows(requests, batch_size), call.size(longest)
        place = models.place() if isinstance(call, Captured) else None
        if place is None:
            return PooledCaches.of(models, rows, slots, call).entered(drafts)
        key = rows, place
        caches = (self._found(key, slots) or PooledCaches.of(models, rows, slots, call)).entered(drafts)
        caches.kept = _Kept(self._free, key)
        return caches

    def _found(self, key: _Key, slots: int) -> PooledCaches | None:
        """One that was left; those too small for it, and those of models that were exchanged, are given up."""
        for other in [other for other in list(self._free) if other[1] != key[1]]:
            self._free.pop(other, None)
        pool = self._free.get(key, [])
        with suppress(IndexError):  # there is none left, or another thread was faster
            while (caches := pool.pop()).slots < slots:
                pass
            return caches
        return None

    def _caller(self, models: Models) -> Caller:
        """A device's own graphs where there are such, and all is on that device."""
        if not self._compile or models.target.device.type not in CAPTURES or (device := models.device()) is None:
            return self._call
        capture = CAPTURES[device.type](device)
        return self._call if capture is None else Captured(self._call if self._compile is True else Eager(), capture)
