"""The most memory that operations hold at once, counted by the sizes of their results: also on torch's meta device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, UntypedStorage
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import Module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Peak(TorchDispatchMode):
    """Counts what operations inside it allocate.

    Attributes:
        bytes: the most at once.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0
        self._counts = True
        self._sum = 0  # of all in `_known`, some of which may be gone
        self._known: dict[int, tuple[StorageWeakRef, int]] = {}  # a reference keeps an address from being used again

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self._see((args, kwargs), counts=False)  # what is seen first as an argument was there before
        out = func(*args, **(kwargs or {}))
        self._see(out, self._counts)
        return out

    @contextmanager
    def around(self, model: Module, left_out: str) -> Iterator[None]:
        """Counts inside, but in modules of a model whose class's name ends with `left_out`."""

        def count(again: bool) -> Any:
            return lambda *args: setattr(self, "_counts", again)

        others = [module for module in model.modules() if type(module).__name__.endswith(left_out)]
        hooks = [module.register_forward_pre_hook(count(False)) for module in others]
        hooks += [module.register_forward_hook(count(True)) for module in others]
        try:
            with self:
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def _see(self, tree: Any, counts: bool) -> None:
        for leaf in tree_leaves(tree):
            if isinstance(leaf, Tensor) and (storage := leaf.untyped_storage())._cdata not in self._known:
                self._add(storage, storage.nbytes() if counts else 0)

    def _add(self, storage: UntypedStorage, size: int) -> None:
        self._known[storage._cdata] = StorageWeakRef(storage), size
        self._sum += size
        if self._sum > self.bytes:
            self._known = {key: known for key, known in self._known.items() if not known[0].expired()}
            self._sum = sum(size for _, size in self._known.values())
            self.bytes = max(self.bytes, self._sum)
