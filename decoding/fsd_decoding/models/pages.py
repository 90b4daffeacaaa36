"""Memory for weights on a CPU in pages of 2 MB: in pages of 4 KB a core that reads gigabytes waits for addresses."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import torch
from torch import Tensor

_PAGE = 1 << 21
_ALIGNED = 64  # bytes, as PyTorch's own tensors are


class Pages:
    """Memory that tensors are copied into, one after the other; it is freed with the last copy.

    Args:
        tensors: all that may be.
        copied: called with the bytes of every copy.
    """

    def __init__(self, tensors: Iterable[Tensor], copied: Callable[[int], None]) -> None:
        size = sum(_aligned(tensor.nbytes) for tensor in tensors)
        self._memory = mmap.mmap(-1, size + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(AttributeError, OSError):  # another system than Linux, or a kernel without them
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._used, self._copied = 0, copied

    def cat(self, parts: Sequence[Tensor]) -> Tensor:
        """Returns a copy of the parts, joined along their first axis."""
        first, count = parts[0], sum(part.numel() for part in parts)
        if count == 0:
            return torch.cat(tuple(parts))
        joined = torch.frombuffer(self._memory, dtype=first.dtype, count=count, offset=self._used)
        self._used += _aligned(joined.nbytes)
        copy = torch.cat(tuple(parts), out=joined.view(-1, *first.shape[1:]))
        self._copied(copy.nbytes)
        return copy


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNED) * _ALIGNED
