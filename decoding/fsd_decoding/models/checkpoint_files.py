"""The files that a model was loaded from, and a folder of the digests of their weights.

The folder is in the user's cache: what is lost, damaged or cannot be written there is computed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers
from torch import nn

from fsd_common.files import atomic_write
from fsd_common.user_folders import default_cache
from fsd_decoding.models.weights_digest import DIGEST_VERSION

_COARSEST_CLOCK = 2 * 10**9  # ns: a file system may give files written within this time the same time stamp
_BLOB = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")  # how the hub's cache names a file: by a hash of its content
_DIGEST = re.compile("[0-9a-f]{64}")

_Identities = list[list[Any]]


class CheckpointFiles:
    """The files of a checkpoint, from before a model is loaded until after.

    A file is identified by its name, size, inode and times of the last write and change (which no program can set
    back), a file in the hub's cache by the name of its blob, its size and its time of the last write. A disk that is
    changed past its file system is not noticed.

    Args:
        folder: of the checkpoint; of a hub id, the folder of its commit in the hub's cache.
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
        if facts is None or facts != self._before or faults or _transformed(model):
            return None
        tensors = [[name, list(t.shape), str(t.dtype)] for name, t in sorted(model.state_dict().items())]
        versions = [DIGEST_VERSION, transformers.__version__]
        return hashlib.sha256(json.dumps([versions, type(model).__name__, facts, tensors]).encode()).hexdigest()


def read_digest(key: str) -> str | None:
    """Returns the digest kept under a key; None: there is none, or it is damaged."""
    try:
        digest, check = (default_cache() / "fingerprints" / key).read_text("ascii").split()
    except (OSError, ValueError):  # ValueError: damaged, or there is no home for the folder
        return None
    return digest if _DIGEST.fullmatch(digest) and check == _check(key, digest) else None


def write_digest(key: str, digest: str) -> None:
    """Keeps a digest under a key, if the folder can be written."""
    with contextlib.suppress(OSError, ValueError):
        folder = default_cache() / "fingerprints"
        for path in (folder.parent, folder):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with atomic_write(folder / key) as file:
            file.write(f"{digest} {_check(key, digest)}\n".encode())


def _check(key: str, digest: str) -> str:
    return hashlib.sha256(f"{key} {digest}".encode()).hexdigest()


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
    if path.name == "adapter_config.json":
        return True
    return path.name.endswith(".index.json") and "/" in "".join(_shards(path))


def _shards(path: Path) -> list[str]:
    try:
        return [str(name) for name in json.loads(path.read_bytes())["weight_map"].values()]
    except (ValueError, KeyError, TypeError, AttributeError):
        return ["/"]


def _transformed(model: Any) -> bool:
    """Whether loading made other weights than the files hold."""
    return bool(
        getattr(model, "hf_quantizer", None) or getattr(model, "_hf_peft_config_loaded", False)
        or getattr(model.config, "quantization_config", None)
    )  # fmt: skip
