"""Digests of weights that are known already: a loaded model is read once, and a checkpoint once per user."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import groupby
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from fsd_decoding.models.checkpoint_files import read_digest, write_digest
from fsd_decoding.models.weights_digest import plain_tensors, weights_digest

_ELEMENTS = 16  # elements of every tensor

State = tuple[Any, ...]


class _Known(NamedTuple):
    """What was read of a model, or the key of a checkpoint's files, and the state of the model then."""

    state: State
    value: str


_Read = Callable[[nn.Module], str]

_known: WeakKeyDictionary[nn.Module, dict[_Read, _Known]] = WeakKeyDictionary()
_checkpoints: WeakKeyDictionary[nn.Module, _Known] = WeakKeyDictionary()


def known_weights_digest(model: nn.Module) -> str:
    """Returns `weights_digest(model)`, computed only where it is not known."""
    return while_unchanged(model, _of_checkpoint)


def while_unchanged(model: nn.Module, read: _Read) -> str:
    """Returns `read(model)`, which depends on the weights alone, computed again only where they changed.

    A model counts as changed if a tensor of its state is another one, was written to, or differs in one of 16 elements.
    Steps of torch's optimizers count as writes, those of fused kernels too, of which torch takes no note. Other writes
    past torch's counts (through `.data`, NumPy, a kernel of one's own, or into weights offloaded by accelerate) that
    spare these elements are not noticed. Tensors made under `torch.inference_mode()` count no writes, so such a model
    is read at every call, and so is one that holds gradients, which any optimizer may be using.
    """
    state = state_of(model)
    if state is None:
        return read(model)
    known = _known.setdefault(model, {})
    if read not in known or known[read].state != state:
        known[read] = _Known(state, read(model))
    return known[read].value


def remember_checkpoint(model: nn.Module, key: str | None) -> None:
    """Remembers the files that a model was just loaded from; see `CheckpointFiles.key`."""
    state = state_of(model)
    if key is not None and state is not None:
        _checkpoints[model] = _Known(state, key)


def _of_checkpoint(model: nn.Module) -> str:
    """Returns the digest that is kept for the files that the model was loaded from, or reads the weights."""
    loaded = _checkpoints.get(model)
    if loaded is None or loaded.state != state_of(model):
        return weights_digest(model)
    kept = read_digest(loaded.value)
    if kept is None:
        write_digest(loaded.value, kept := weights_digest(model))
    return kept


def state_of(model: nn.Module) -> State | None:
    """Identifies the tensors and what torch knows of their changes; None where they may change without its knowing."""
    _count_steps()
    named = sorted(model.state_dict(keep_vars=True).items())
    tensors = [(name, plain) for name, tensor in named if isinstance(tensor, Tensor) for plain in plain_tensors(tensor)]
    if any(tensor.is_inference() or _has_gradient(tensor) for _, tensor in tensors):
        return None
    places = ((n, t.data_ptr(), t._version, t.shape, t.stride(), t.dtype, t.device) for n, t in tensors)
    return *places, *_samples(tensor.detach() for _, tensor in tensors)


def _has_gradient(tensor: Tensor) -> bool:
    return tensor.is_leaf and tensor.grad is not None


@cache
def _count_steps() -> None:
    """From now on the steps of all optimizers count as writes to their parameters."""
    register_optimizer_step_post_hook(_count_step)


def _count_step(optimizer: Optimizer, arguments: Any, keywords: Any) -> None:
    stepped = (parameter for group in optimizer.param_groups for parameter in group["params"])
    increment_version([parameter for parameter in stepped if not parameter.is_inference()])


def _samples(tensors: Iterable[Tensor]) -> Iterator[bytes]:
    """Yields evenly spaced elements of all tensors, with one copy from each device for each dtype."""
    flat = [t.view(-1) for t in tensors if t.is_contiguous() and t.numel() and not t.is_meta]
    flat = [t.view(torch.uint8) if t.dtype.itemsize == 1 else t for t in flat]
    for _, group in groupby(sorted(flat, key=_kind), key=_kind):
        elements = torch.cat([t[:: -(-len(t) // _ELEMENTS)] for t in group])
        yield elements.view(torch.uint8).cpu().numpy().tobytes()


def _kind(tensor: Tensor) -> str:
    return f"{tensor.device} {tensor.dtype}"
