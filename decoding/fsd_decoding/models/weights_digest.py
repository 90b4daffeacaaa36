"""Digests of every weight of a model, rounded to bfloat16: a loaded model is read once, and a checkpoint once per user.

Digests of checkpoints are kept in a folder of the user's cache: what is lost, damaged or cannot be written there is
computed again.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from fsd_common.digests import facts_digest
from fsd_common.errors import UsageError
from fsd_common.user_folders import keep, kept

DIGEST_VERSION = 1  # of what is kept by the files of checkpoints; raised when equal weights get another digest

_LANES = 4
_BLOCK = 1 << 16  # 32-bit words that share one sum a lane
_BLOCKS_AT_ONCE = 2  # on the CPU, so that temporaries (0.5 MB a block) stay in its cache
_BLOCKS_ON_DEVICE = 32  # elsewhere; temporaries take about 50 MB
_WORD = 4  # bytes


def weights_digest(model: nn.Module, advance: Callable[[int], None] | None = None) -> str:
    """Returns the SHA-256 (hex) of names, shapes and digests of all tensors of the model's state.

    A tensor that has several names is read once; equal tensors have equal digests whether they share memory or not.
    Weights that accelerate has offloaded are loaded one module at a time.

    Args:
        advance: receives the bytes of each tensor once they are read.

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
            if advance is not None:
                advance(tensor.nbytes)
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


_COARSEST_CLOCK = 2 * 10**9  # ns: a file system may give files written within this time the same time stamp
_BLOB = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")  # how the hub's cache names a file: by a hash of its content

_Identities = list[list[Any]]


class CheckpointFiles:
    """The files of a checkpoint, from before a model is loaded until after.

    A file is identified by its name, size, inode and times of the last write and change (which no program can set
    back), a file in the hub's cache by the name of its blob, its size and its time of the last write. A disk that is
    changed past its file system is not noticed.

    Args:
        folder: where they are; of a hub id, the folder of its commit in the hub's cache.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before = _identities(folder, time.time_ns())

    def key(self, model: nn.Module, loading_info: Mapping[str, Any]) -> str | None:
        """Returns a key that is equal only for models with the same weights, or None.

        None: the files changed meanwhile or just before, or some were downloaded meanwhile, or the weights are not the
        files' own (an adapter, quantised on loading, or drawn at random because they are missing).
        """
        facts = _identities(self._folder)
        faults = [name for name, found in loading_info.items() if found and name != "unexpected_keys"]
        quantised = getattr(model, "hf_quantizer", None) or getattr(model.config, "quantization_config", None)
        if facts is None or facts != self._before or faults or quantised:
            return None
        if getattr(model, "_hf_peft_config_loaded", False):
            return None
        tensors = [[name, list(t.shape), str(t.dtype)] for name, t in sorted(model.state_dict().items())]
        versions = [DIGEST_VERSION, transformers.__version__]
        return facts_digest([versions, type(model).__name__, facts, tensors])


def _identities(folder: Path, now: int | None = None) -> _Identities | None:
    """Returns facts of all files in a folder; None: it has weights elsewhere, or a file changed just before `now`."""
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file())
        if any(map(_names_other_files, files)):
            return None
        facts = [_identity(path) for path in files]
        times = [path.stat() for path in files if _blob(path) is None]
        newest = max((max(stat.st_mtime_ns, stat.st_ctime_ns) for stat in times), default=0)
    except OSError:
        return None
    return facts if now is None or newest + _COARSEST_CLOCK < now else None


def _identity(path: Path) -> list[Any]:
    stat, blob = path.stat(), _blob(path)
    if blob is not None:
        return [path.name, blob, stat.st_size, stat.st_mtime_ns]
    return [path.name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev]


def _blob(path: Path) -> str | None:
    """Returns the name of the blob in the hub's cache that the file is; None: it is a file of its own."""
    place = path.resolve()
    return place.name if path.is_symlink() and place.parent.name == "blobs" and _BLOB.fullmatch(place.name) else None


def _names_other_files(path: Path) -> bool:
    """Whether the file says that weights are in another folder."""
    if not path.name.endswith(".index.json"):
        return path.name == "adapter_config.json"
    try:
        return any("/" in str(name) for name in json.loads(path.read_bytes())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        return True


_ELEMENTS = 16  # elements of every tensor

State = tuple[Any, ...]
_Read = Callable[..., str]

_known: WeakKeyDictionary[nn.Module, dict[_Read, tuple[State, str]]] = WeakKeyDictionary()
"""By model: its state when something was read of it, and what that was."""
_checkpoints: WeakKeyDictionary[nn.Module, tuple[State, str]] = WeakKeyDictionary()


def known_weights_digest(model: nn.Module, advance: Callable[[int], None] | None = None) -> str:
    """Returns `weights_digest(model, advance)`, computed only where it is not known."""
    return while_unchanged(model, _of_checkpoint, advance)


def while_unchanged(model: nn.Module, read: _Read, *how: Any) -> str:
    """Returns `read(model, *how)`, which depends on the weights alone, computed again only where they changed.

    A model counts as changed if a tensor of its state is another one, was written to, or differs in one of 16 elements.
    Steps of torch's optimizers count as writes, those of fused kernels too, of which torch takes no note. Other writes
    past torch's counts (through `.data`, NumPy, a kernel of one's own, or into weights offloaded by accelerate) that
    spare these elements are not noticed. Tensors made under `torch.inference_mode()` count no writes, so such a model
    is read at every call, and so is one that holds gradients, which any optimizer may be using.
    """
    state = state_of(model)
    if state is None:
        return read(model, *how)
    known = _known.setdefault(model, {})
    if read not in known or known[read][0] != state:
        known[read] = (state, read(model, *how))
    return known[read][1]


def remember_checkpoint(model: nn.Module, key: str | None) -> None:
    """Remembers the files that a model was just loaded from; see `CheckpointFiles.key`."""
    state = state_of(model)
    if key is not None and state is not None:
        _checkpoints[model] = (state, key)


def _of_checkpoint(model: nn.Module, advance: Callable[[int], None] | None) -> str:
    """Returns the digest that is kept for the files that the model was loaded from, or reads the weights."""
    loaded = _checkpoints.get(model)
    if loaded is None or loaded[0] != state_of(model):
        return weights_digest(model, advance)
    name = f"fingerprints/{loaded[1]}"
    digest = kept(name)
    if digest is None:
        keep(name, digest := weights_digest(model, advance))
    return digest


def state_of(model: nn.Module) -> State | None:
    """Identifies the tensors and what torch knows of their changes; None where they may change without its knowing."""
    _count_steps()
    named = sorted(model.state_dict(keep_vars=True).items())
    tensors = [(name, plain) for name, tensor in named if isinstance(tensor, Tensor) for plain in plain_tensors(tensor)]
    if any(tensor.is_inference() or (tensor.is_leaf and tensor.grad is not None) for _, tensor in tensors):
        return None
    places = ((n, t.data_ptr(), t._version, t.shape, t.stride(), t.dtype, t.device) for n, t in tensors)
    return *places, *_samples(tensor.detach() for _, tensor in tensors)


@cache
def _count_steps() -> None:
    """From now on the steps of all optimizers count as writes to their parameters."""
    register_optimizer_step_post_hook(_count_step)


def _count_step(optimizer: Optimizer, arguments: Any, keywords: Any) -> None:
    stepped = (parameter for group in optimizer.param_groups for parameter in group["params"])
    increment_version([parameter for parameter in stepped if not parameter.is_inference()])


def _samples(tensors: Iterable[Tensor]) -> Iterator[bytes]:
    """Yields evenly spaced elements of all tensors, with one copy from each device for each dtype."""
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        if tensor.is_contiguous() and tensor.numel() and not tensor.is_meta:
            flat = tensor.view(-1) if tensor.dtype.itemsize > 1 else tensor.view(-1).view(torch.uint8)
            groups.setdefault((flat.device, flat.dtype), []).append(flat[:: -(-len(flat) // _ELEMENTS)])
    for group in groups.values():
        yield torch.cat(group).view(torch.uint8).cpu().numpy().tobytes()
