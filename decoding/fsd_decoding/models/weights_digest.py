"""A digest of every weight of a model, rounded to bfloat16, computed on the device where the weights lie."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fsd_common.errors import UsageError

DIGEST_VERSION = 1  # of what is kept by the files of checkpoints; raised when equal weights get another digest

_LANES = 4
_BLOCK = 1 << 16  # 32-bit words that share one sum a lane
_BLOCKS_AT_ONCE = 2  # on the CPU, so that temporaries (0.5 MB a block) stay in its cache
_BLOCKS_ON_DEVICE = 32  # elsewhere; temporaries take about 50 MB
_WORD = 4  # bytes


def weights_digest(model: nn.Module) -> str:
    """Returns the SHA-256 (hex) of names, shapes and digests of all tensors of the model's state.

    A tensor that has several names is read once; equal tensors have equal digests whether they share memory or not.
    Weights that accelerate has offloaded are loaded one module at a time.

    Raises:
        UsageError: a tensor has no values (it is on the meta device), or an entry of the state is not a tensor.
    """
    digest, done = hashlib.sha256(), dict[Any, bytes]()
    for name, tensor in sorted(model.state_dict(keep_vars=True).items()):
        if not isinstance(tensor, Tensor):
            raise UsageError(
                f"{name!r} of the model's state is a {type(tensor).__name__}, so the model has no fingerprint; only "
                "models made of tensors have one"
            )
        with values_of(model, name, tensor) as values:
            place = tuple((t.device, t.data_ptr(), t.shape, t.stride(), t.dtype) for t in plain_tensors(values))
            found = (None if tensor.is_meta else done.get(place)) or tensor_digest(values)
            done[place] = found
            digest.update(json.dumps([name, list(values.shape), found.hex()]).encode())
    return digest.hexdigest()


def tensor_digest(tensor: Tensor) -> bytes:
    """Returns a digest of all elements and their order: equal on every device, and in float32, float64 and bfloat16.

    Floating-point elements of 16 bits and more are rounded to bfloat16; others (integers, float8) count with their own
    bytes. The bytes are cut into 32-bit words w and these into blocks; each block has 4 sums of a_i w_i modulo 2^64,
    with fixed pseudorandom odd 64-bit a_i ("multiply-shift", Dietzfelbinger et al. 1997, without the shift). Integer
    sums do not depend on their order, so every device finds the same. The digest is the SHA-256 of the sums.

    A change within one word of a block always changes its sums: a_i is odd, and two words differ by less than 2^32. Any
    other change leaves all 4 sums of a block as they were with a probability of at most 2^-128, over the choice of the
    a_i. These are public: the digest tells apart models that were not made to be confused, and resists no forger.
    """
    digest = hashlib.sha256()
    for plain in plain_tensors(tensor):
        flat = plain.detach().reshape(-1)
        factors = _factors().to(flat.device)
        sums = [part for words in _words(flat) for part in _sums(words, factors)]
        digest.update((torch.cat(sums).cpu().numpy() if sums else np.empty(0)).astype("<i8").tobytes())
    return digest.digest()


def plain_tensors(tensor: Tensor) -> Iterator[Tensor]:
    """Yields the tensor, or those that a quantised one consists of."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        yield from plain_tensors(getattr(tensor, name))


def _words(flat: Tensor) -> Iterator[Tensor]:
    """Yields the elements as 32-bit words in int64, some blocks at a time; the last word is filled up with zeros."""
    flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    rounded = flat.is_floating_point() and flat.dtype.itemsize > 1
    size = 2 if rounded else flat.dtype.itemsize
    blocks = _BLOCKS_AT_ONCE if flat.device.type == "cpu" else _BLOCKS_ON_DEVICE
    for part in flat.split(blocks * _BLOCK * _WORD // size):
        data = (part.to(torch.bfloat16) if rounded else part).view(torch.uint8)
        if data.numel() % _WORD or data.storage_offset() % _WORD:
            data = torch.cat([data, data.new_zeros(-data.numel() % _WORD)])
        yield data.view(torch.int32).to(torch.int64)


def _sums(words: Tensor, factors: Tensor) -> Iterator[Tensor]:
    """Yields the sums of the whole blocks, (blocks, lanes), then those of the rest, (1, lanes)."""
    whole = len(words) // _BLOCK * _BLOCK
    for blocks in (words[:whole].view(-1, _BLOCK), words[whole:].view(1, -1)):
        if blocks.numel():
            yield torch.stack([(blocks * lane[: blocks.shape[1]]).sum(1) for lane in factors], 1)


@cache
def _factors() -> Tensor:
    """The odd a_i: (lanes, words of a block), from SHAKE-128."""
    stream = hashlib.shake_128(b"fsd-calib weights").digest(_LANES * _BLOCK * 8)
    return torch.from_numpy(np.frombuffer(stream, "<i8").reshape(_LANES, _BLOCK) | 1)


@contextmanager
def values_of(model: nn.Module, name: str, tensor: Tensor) -> Iterator[Tensor]:
    """Yields a tensor of the model's state with its values, which accelerate may have moved to the CPU or the disk.

    Raises:
        UsageError: there are none.
    """
    if not tensor.is_meta:
        yield tensor
        return
    where, _, own = name.rpartition(".")
    module = model.get_submodule(where)
    if not hasattr(module, "_hf_hook"):
        raise UsageError(f"weight {name!r} is on the meta device, so the model has no fingerprint; load its values")
    from accelerate.utils import align_module_device

    with align_module_device(module, torch.device("cpu")):
        yield getattr(module, own)
