"""The files of an EAGLE head: `config.json` beside `model.safetensors` or `pytorch_model.bin`."""

from __future__ import annotations

import json
import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from fsd_common.errors import UsageError, in_one_line
from fsd_common.files import atomic_write, check_regular, read_regular
from fsd_common.strict_json import parse
from fsd_decoding.eagle.head import Eagle3Head
from fsd_decoding.hub import SMALL_FILES, fetch_files

LAYERS = "target_hidden_states"
"""Entry of `config.json`: which of the target's hidden states are read, as indices into transformers'."""

_CONFIG, _SAFE, _PICKLED = "config.json", "model.safetensors", "pytorch_model.bin"


@dataclass(frozen=True)
class Checkpoint:
    """The content of a head's files.

    Args:
        name: the folder or hub id, for messages.
        values: the entries of `config.json`.
        weights: tensors by name, on the CPU.
        revision: commit on the hub; None: of a folder.
    """

    name: str
    values: dict[str, Any]
    weights: dict[str, Tensor]
    revision: str | None = None

    @classmethod
    def read(cls, source: str | os.PathLike[str], revision: str | None = None) -> Checkpoint:
        """Reads a folder or hub id.

        Args:
            source: the folder or hub id.
            revision: branch, tag or commit on the hub; None: the main branch.

        Raises:
            UsageError: a file is missing or damaged.
        """
        name = os.fspath(source)
        if revision is not None and Path(source).exists():
            raise UsageError(
                f"EAGLE head {name!r}: its revision is {revision!r}, and a local folder has none; leave the revision "
                "out, or give a hub id"
            )
        fetched = fetch_files("EAGLE head", name, (*SMALL_FILES, _SAFE, _PICKLED), revision)
        folder = fetched or Path(source)
        return cls(name, _values(folder, name), _weights(folder, name), None if fetched is None else fetched.name)

    def error(self, what: str) -> UsageError:
        """Returns a `UsageError` about this head: what is wrong with it, and the way out."""
        return UsageError(f"EAGLE head {self.name!r}: {what}")


def files_of(head: Eagle3Head) -> dict[str, bytes]:
    """Returns the files of a head in EAGLE-3's layout, by name; `Eagle` loads the folder that holds them.

    The ids of its tokens are stored as EAGLE does: `d2t` holds their distances from the head's own numbers, and `t2d`
    says of each of the target's tokens whether it is among them.
    """
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in head.state_dict().items()}
    known, vocabulary = weights.pop("known"), head.vocabulary
    flags = torch.zeros(vocabulary, dtype=torch.bool).index_fill_(0, known, True)
    weights |= {"d2t": known - torch.arange(len(known)), "t2d": flags}
    values = head.config.to_diff_dict() | {
        "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": len(known), LAYERS: list(head.target_layers),
    }  # fmt: skip
    return {_SAFE: save(weights), _CONFIG: json.dumps(values, indent=2).encode() + b"\n"}


def save_head(head: Eagle3Head, folder: Path) -> None:
    """Writes the files of a head; see `files_of`.

    Args:
        head: the head.
        folder: where to; it is made if it is not there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files_of(head).items():
        with atomic_write(folder / name) as file:
            file.write(content)


def _values(folder: Path, name: str) -> dict[str, Any]:
    try:
        values = parse(read_regular(folder / _CONFIG).decode())
    except (OSError, ValueError) as error:
        raise UsageError(
            f"EAGLE head {name!r}: {_CONFIG} cannot be read: {in_one_line(error)}; give the folder of a head"
        ) from error
    if not isinstance(values, dict):
        raise UsageError(f"EAGLE head {name!r}: {_CONFIG} is not a JSON object; give the folder of a head")
    return values


def _weights(folder: Path, name: str) -> dict[str, Tensor]:
    file = next((folder / each for each in (_SAFE, _PICKLED) if (folder / each).exists()), None)
    if file is None:
        raise UsageError(f"EAGLE head {name!r} has neither {_SAFE} nor {_PICKLED}; give the folder of a head")
    try:
        if file.name == _SAFE:
            return dict(load(read_regular(file)))
        check_regular(file)
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        loaded = None  # PyTorch's message is advice to run the code that the file holds
    except Exception as error:  # what readers raise of damaged files is of all kinds
        raise UsageError(
            f"EAGLE head {name!r}: {file.name} cannot be read: {in_one_line(error)}; fetch it anew"
        ) from error
    if not isinstance(loaded, dict) or not all(map(_is_plain, loaded, loaded.values())):
        raise UsageError(
            f"EAGLE head {name!r}: {file.name} must hold dense tensors by name and nothing else, and does not; "
            f"fetch it anew, or save its tensors as {_SAFE}"
        )
    return loaded


def _is_plain(name: Any, value: Any) -> bool:
    """Whether an entry is a tensor that has its numbers in memory, by a name."""
    dense = isinstance(value, Tensor) and value.layout == torch.strided and not value.is_nested
    return isinstance(name, str) and dense and not value.is_quantized and not value.is_meta
