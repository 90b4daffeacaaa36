"""Digests of weights that are known already, so that a loaded model is read once, and a checkpoint once per user."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fsd_decoding.models.checkpoint_files import read_digest, write_digest
from fsd_decoding.models.weights_digest import plain_tensors, weights_digest

_SAMPLED = 16  # elements of every tensor

_State = tuple[Any, ...]


class _Known(NamedTuple):
    """A digest, or the key of a checkpoint's files, and the state of the model that had it."""

    state: _State
    value: str


_digests: WeakKeyDictionary[nn.Module, _Known] = WeakKeyDictionary()
_checkpoints: WeakKeyDictionary[nn.Module, _Known] = WeakKeyDictionary()


def known_weights_digest(model: nn.Module) -> str:
    """Returns `weights_digest(model)`, computed only where it is not known.

    A model counts as changed if a tensor of its state is another one, was written to, or differs in one of 16 elements.
    This cannot notice a write that torch does not count (through `.data`, NumPy, or into weights offloaded by
    accelerate) and that spares these elements. Tensors made under `torch.inference_mode()` count no writes, so such a
    model is read at every call.
    """
    state = _state(model)
    if state is None:
        return weights_digest(model)
    known = _digests.get(model)
    if known is None or known.state != state:
        _digests[model] = known = _Known(state, _of_checkpoint(model, state) or weights_digest(model))
        _keep_for_checkpoint(model, known)
    return known.value


def remember_checkpoint(model: nn.Module, key: str | None) -> None:
    """Remembers the files that a model was just loaded from; see `CheckpointFiles.key`."""
    state = _state(model)
    if key is not None and state is not None:
        _checkpoints[model] = _Known(state, key)


def _of_checkpoint(model: nn.Module, state: _State) -> str | None:
    loaded = _checkpoints.get(model)
    return read_digest(loaded.value) if loaded is not None and loaded.state == state else None


def _keep_for_checkpoint(model: nn.Module, known: _Known) -> None:
    loaded = _checkpoints.get(model)
    if loaded is not None and loaded.state == known.state:
        write_digest(loaded.value, known.value)


def _state(model: nn.Module) -> _State | None:
    """Identifies the tensors and what torch knows of their changes; None where it does not count them."""
    named = sorted(model.state_dict(keep_vars=True).items())
    tensors = [(name, plain) for name, tensor in named if isinstance(tensor, Tensor) for plain in plain_tensors(tensor)]
    if any(tensor.is_inference() for _, tensor in tensors):
        return None
    places = ((n, t.data_ptr(), t._version, t.shape, t.stride(), t.dtype, t.device) for n, t in tensors)
    return *places, *_samples(tensor.detach() for _, tensor in tensors)


def _samples(tensors: Iterable[Tensor]) -> Iterator[bytes]:
    """Yields evenly spaced elements of all tensors, with one copy from each device for each dtype."""
    flat = [t.view(-1) for t in tensors if t.is_contiguous() and t.numel() and not t.is_meta]
    flat = [t.view(torch.uint8) if t.dtype.itemsize == 1 else t for t in flat]
    for _, group in groupby(sorted(flat, key=_kind), key=_kind):
        elements = torch.cat([t[:: -(-len(t) // _SAMPLED)] for t in group])
        yield elements.view(torch.uint8).cpu().numpy().tobytes()


def _kind(tensor: Tensor) -> str:
    return f"{tensor.device} {tensor.dtype}"
