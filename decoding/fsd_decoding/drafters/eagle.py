"""EAGLE heads from a folder or hub id, in the layouts of EAGLE, SpecForge, speculators 0.9 and ModelOpt.

A head is `config.json` beside `model.safetensors` or `pytorch_model.bin`. Facts about the layouts were read in

- SafeAILab/EAGLE: `eagle/model/cnets.py`, `cnets1.py`;
- sgl-project/SpecForge: `specforge/modeling/draft/llama3_eagle.py`, `specforge/algorithms/model_providers.py`;
- vllm-project/speculators: `src/speculators/models/eagle3`, `scripts/train.py`;
- NVIDIA/Model-Optimizer: `modelopt/torch/export/plugins/hf_spec_export.py`, `modelopt/torch/speculative/plugins`;
- vLLM 0.32: `vllm/model_executor/models/llama_eagle3.py`, `vllm/transformers_utils/configs/speculators`.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor
from transformers import LlamaConfig
from transformers.activations import ACT2FN

from fsd_common.errors import UsageError, in_one_line
from fsd_common.files import atomic_write, check_regular, read_regular
from fsd_common.packed_ids import unpack_ids
from fsd_common.strict_json import parse
from fsd_decoding.drafters.eagle_head import NORMS, Eagle1Head, Eagle3Head, EagleHead, Rotation
from fsd_decoding.hub import SMALL_FILES, fetch_files
from fsd_decoding.models.forward import unknown_rope_type
from fsd_decoding.models.runner import vocabulary_size
from fsd_decoding.models.slot_cache import FULL, SLIDING

LAYERS = "target_hidden_states"
"""Entry of `config.json`: which of the target's hidden states are read, as indices into transformers'."""
_THEIR_LAYERS = "eagle_aux_hidden_state_layer_ids"  # what other trainers call it, see `_layers`
TRAINING = "training.json"
"""The file, beside the head, of how it was trained."""
KEYS = "keys"
"""The entry of its "source" that holds keys of the problems, see `pack_ids`."""
_CONFIG, _SAFE, _PICKLED = "config.json", "model.safetensors", "pytorch_model.bin"


@dataclass(frozen=True)
class Checkpoint:
    """The content of a head's files.

    Args:
        name: the folder or hub id, for messages.
        values: the entries of `config.json`, see `_flat`.
        weights: tensors by name, on the CPU.
        revision: commit on the hub; None: of a folder.
        trained_on: keys of the problems that it learnt from; empty where the files do not say.
    """

    name: str
    values: dict[str, Any]
    weights: dict[str, Tensor]
    revision: str | None = None
    trained_on: frozenset[int] = frozenset()

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
        commit = None if fetched is None else fetched.name
        found = cls(name, _values(folder, name), _weights(folder, name), commit, _trained_on(folder, name))
        return replace(found, values=_flat(found))

    def error(self, what: str) -> UsageError:
        """Returns a `UsageError` about this head: what is wrong with it, and the way out."""
        return UsageError(f"EAGLE head {self.name!r}: {what}")


def files_of(head: Eagle3Head) -> dict[str, bytes]:
    """Returns the files of a head in EAGLE's own layout, by name; `Eagle` loads the folder that holds them.

    The ids of its tokens are stored as EAGLE does, if it has not all of the target's: `d2t` holds their distances from
    the head's own numbers, and `t2d` says of each of the target's tokens whether it is among them.
    """
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in head.state_dict().items()}
    known, vocabulary = weights.pop("known"), head.vocabulary
    if len(known) < vocabulary:  # vLLM refuses them of a head of all tokens
        flags = torch.zeros(vocabulary, dtype=torch.bool).index_fill_(0, known, True)
        weights |= {"d2t": known - torch.arange(len(known)), "t2d": flags}
    values = head.config.to_diff_dict() | {
        "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": len(known), LAYERS: list(head.target_layers),
    }  # fmt: skip
    if list(head.target_layers) == sorted(head.target_layers):
        values[_THEIR_LAYERS] = list(head.target_layers)  # vLLM reads this entry, and states in the target's order
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


def _flat(found: Checkpoint) -> dict[str, Any]:
    """Returns the entries of a configuration, those of a layer that it holds, and of engines, beside the others.

    Raises:
        UsageError: such an entry is no object, or the head is one of speculators that is not supported.
    """
    values, engines = found.values, found.values.get("eagle_config") or {}
    if not isinstance(engines, dict):
        raise found.error(f"eagle_config is {engines!r:.40} in its {_CONFIG}; it must be an object, or be left out")
    if (kind := values.get("speculators_model_type")) is None:
        return values | {norm: engines[norm] for norm in NORMS if norm in engines}
    layer, residual = values.get("transformer_layer_config"), values.get("norm_before_residual")
    if kind != "eagle3":
        raise found.error(
            f"speculators_model_type is {kind!r:.40} in its {_CONFIG}, and only 'eagle3' is supported; give another "
            "head"
        )
    if not isinstance(layer, dict) or layer.get("model_type") != "llama":
        raise found.error(
            f"transformer_layer_config is {layer!r:.60} in its {_CONFIG}, and only an object with 'llama' as its "
            "model_type is supported; give another head"
        )
    if residual not in (False, True):
        raise found.error(
            f"norm_before_residual is {residual!r:.40} in its {_CONFIG}, and must be true or false: where it is "
            "missing, speculators takes false and vLLM true; add what it was trained with"
        )
    of_head = (*NORMS, LAYERS, _THEIR_LAYERS, "target_hidden_size")
    return layer | {entry: values[entry] for entry in of_head if values.get(entry) is not None}


def _trained_on(folder: Path, name: str) -> frozenset[int]:
    """Returns the keys that our own file has; other trainers write files of this name, too, which may hold anything.

    Raises:
        UsageError: the file cannot be read, or it is ours and damaged.
    """
    if not (folder / TRAINING).exists():
        return frozenset()
    try:
        content = read_regular(folder / TRAINING)
    except OSError as error:
        raise UsageError(f"EAGLE head {name!r}: {TRAINING} cannot be read: {in_one_line(error)}; mend it") from error
    try:
        values = parse(content)
        source = values.get("source") if isinstance(values, dict) else None
        return unpack_ids(source[KEYS]) if isinstance(source, dict) and KEYS in source else frozenset()
    except (TypeError, ValueError) as error:
        if not all(f'"{entry}"'.encode() in content for entry in ("source", KEYS)):
            return frozenset()
        raise UsageError(f"EAGLE head {name!r}: {KEYS} in {TRAINING} are damaged; fetch it anew") from error


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


_OWN_LAYER = "midlayer."
"""What keys of the layer begin with in EAGLE's heads of EAGLE-3, and SpecForge's."""
_FIRST_LAYER = "layers.0."
"""The same in other heads, those of EAGLE-1 among them."""
_FOREIGN = {"medusa_head": "Medusa", "layers.1.": "a head of several layers"}  # by the beginning of a key of theirs
_ANOTHER = "give the head that was trained for this target"


@dataclass(frozen=True)
class Eagle:
    """An EAGLE head by folder or hub id, which is loaded once its target is.

    Args:
        source: a folder or hub id with `config.json` and `model.safetensors` or `pytorch_model.bin`.
        revision: branch, tag or commit on the hub; None: the main branch.
    """

    source: str | os.PathLike[str]
    revision: str | None = None

    @property
    def name(self) -> str:
        """The hub id, or the absolute path of a folder, so that a profile finds it from anywhere."""
        path = Path(self.source)
        return str(path.resolve()) if path.exists() else os.fspath(self.source)

    def load(self, target: Any) -> EagleHead:
        """Loads the head for a loaded target, in the target's dtype and on its device.

        Args:
            target: a loaded causal LM.

        Raises:
            UsageError: there is no head, it has another layout, or it does not fit the target.
        """
        found = Checkpoint.read(self.source, self.revision)
        _refuse_foreign(found)
        _check_hidden(found, target)
        head = (_eagle3 if is_eagle3(found) else _eagle1)(found, target)
        head = head.to(target.device, target.dtype).eval()
        with told(found):
            Rotation(head.config, 1, next(head.parameters()))  # as its drafter will make
        head.name, head.revision, head.trained_on = self.name, found.revision, found.trained_on
        return head


def is_eagle3(found: Checkpoint) -> bool:
    """Whether a head is of EAGLE-3, by the names of its layer."""
    return _layer_of(found) == _OWN_LAYER or f"{_FIRST_LAYER}hidden_norm.weight" in found.weights


def _layer_of(found: Checkpoint) -> str:
    """What the keys of the layer begin with."""
    return _OWN_LAYER if any(key.startswith(_OWN_LAYER) for key in found.weights) else _FIRST_LAYER


def _refuse_foreign(found: Checkpoint) -> None:
    """Refuses, by a UsageError, layouts that are known and not supported."""
    for part, whose in _FOREIGN.items():
        if key := next((key for key in found.weights if key.startswith(part)), None):
            raise found.error(f"it holds {key!r}, as {whose} does, which is not supported; give a head of one layer")


def _check_hidden(found: Checkpoint, target: Any) -> None:
    """Refuses, by a UsageError, a head for hidden states of another size than the target's."""
    wanted, own = target.config.get_text_config().hidden_size, found.values.get("hidden_size")
    for entry in (own, found.values.get("target_hidden_size", own)):
        if entry != wanted:
            raise found.error(
                f"it is for hidden states of {entry!r:.40} components, and the target's have {wanted}; {_ANOTHER}"
            )


def _eagle1(found: Checkpoint, target: Any) -> EagleHead:
    """EAGLE-1 and EAGLE-2: `fc`, one layer, and perhaps a copy of the target's embeddings."""
    weights = {key: weight for key, weight in found.weights.items() if key != "embed_tokens.weight"}
    with told(found), torch.device("meta"):
        head = Eagle1Head(llama_config(found), target, bias="fc.bias" in weights)
    own = head.state_dict()
    _fill(found, head, weights, {name if name.startswith("fc.") else _FIRST_LAYER + name: name for name in own})
    return head


def _eagle3(found: Checkpoint, target: Any) -> EagleHead:
    """EAGLE-3, in all layouts; where a head has no embeddings or no output, they are the target's."""
    vocabulary, weights = vocabulary_size(target), dict(found.weights)
    if "lm_head.weight" not in weights:
        weights["lm_head.weight"] = target.get_output_embeddings().weight.detach()
    output = weights["lm_head.weight"]
    if output.dim() != 2:
        raise found.error(f"'lm_head.weight' is of {tuple(output.shape)}, and must have two dimensions; fetch it anew")
    known = _known(found, weights, len(output), vocabulary)
    order = known.argsort()
    weights |= {"lm_head.weight": output[order.to(output.device)], "known": known[order]}
    embeddings = None if "embed_tokens.weight" in weights else target.get_input_embeddings()
    layer = _layer_of(found)
    with told(found), torch.device("meta"):
        head = Eagle3Head(llama_config(found), _layers(found, target), len(known), embeddings, vocabulary)
    _fill(found, head, weights, {name.replace(_OWN_LAYER, layer): name for name in head.state_dict()})
    return head


def _known(found: Checkpoint, weights: dict[str, Tensor], drafted: int, vocabulary: int) -> Tensor:
    """The target's ids of the head's tokens: numbers in the head, plus the distances in `d2t`; `t2d` must agree."""
    offsets, flags = weights.pop("d2t", None), weights.pop("t2d", None)
    if offsets is None and drafted != vocabulary:
        raise found.error(
            f"it drafts {drafted} tokens of the target's {vocabulary}, and has no 'd2t' that says which; {_ANOTHER}"
        )
    if offsets is not None and offsets.shape != (drafted,):
        raise found.error(f"'d2t' is of {tuple(offsets.shape)}, and 'lm_head.weight' has {drafted} rows; fetch it anew")
    known = torch.arange(drafted) + (0 if offsets is None else offsets.to(torch.int64))
    if outside := known[(known < 0) | (known >= vocabulary)].tolist():
        raise found.error(f"'d2t' names token {outside[0]}, and the target's last is {vocabulary - 1}; {_ANOTHER}")
    if known.unique().numel() != drafted:
        raise found.error("'d2t' names a token twice; fetch it anew")
    if flags is not None and not torch.equal(flags.nonzero().flatten(), known.sort().values):
        raise found.error("'d2t' and 't2d' name different tokens; fetch it anew")
    return known


def _layers(found: Checkpoint, target: Any) -> tuple[int, ...]:
    """Which hidden states are read, as indices into transformers', of which n is what goes into layer n.

    Our own entry lists them in the order of `fc`. Others list layers of the target, whose states come in its order:
    speculators says how many layers a state is behind; SpecForge and ModelOpt say, in `eagle_config`, which layer it
    comes out of, counted from 0. Heads that say nothing read what goes into layers 2, L/2 and L - 3.
    """
    count = target.config.get_text_config().num_hidden_layers
    if (said := found.values.get(LAYERS)) is not None:
        return _listed(found, LAYERS, said, count - 1)
    if said := found.values.get(_THEIR_LAYERS):
        return tuple(sorted(_listed(found, _THEIR_LAYERS, said, count - 1)))
    if said := (found.values.get("eagle_config") or {}).get(_THEIR_LAYERS):
        return tuple(layer + 1 for layer in sorted(_listed(found, _THEIR_LAYERS, said, count - 2)))
    if count < 6:
        raise found.error(
            f"the target has {count} layers, and a head that does not name others reads what goes into layers 2, L/2 "
            f'and L - 3, which takes 6; add "{LAYERS}" to its config.json'
        )
    return 2, count // 2, count - 3


def _listed(found: Checkpoint, entry: str, said: Any, last: int) -> tuple[int, ...]:
    """What an entry lists; the state after all layers is none that is read, as transformers has it behind a norm only.

    Raises:
        UsageError: it does not list numbers from 0 to the last that there may be.
    """
    if not isinstance(said, list) or not said or not all(type(n) is int and 0 <= n <= last for n in said):
        raise found.error(
            f"{entry} is {said!r:.60} in its config.json; it must list numbers from 0 to {last} for this target; "
            f"{_ANOTHER}"
        )
    return tuple(said)


def llama_config(found: Checkpoint) -> LlamaConfig:
    """The sizes of the head's layer, its rotary encoding, its window and its norms, from config.json."""
    others = ("architectures", "model_type", "eagle_config", LAYERS, _THEIR_LAYERS)
    if unknown := unknown_rope_type(found.values):
        raise found.error(unknown)
    activation = found.values.get("hidden_act", "silu")
    if not isinstance(activation, str) or activation not in ACT2FN:
        raise found.error(
            f"hidden_act is {activation!r:.40} in its config.json; it must be one of transformers' activations, such "
            "as 'silu'"
        )
    for norm in NORMS:
        if found.values.get(norm) not in (None, False, True):
            raise found.error(f"{norm} is {found.values[norm]!r:.40} in its config.json; it must be true or false")
    kinds, window = found.values.get("layer_types") or [FULL], found.values.get("sliding_window")
    if kinds != [FULL] and not (kinds == [SLIDING] and type(window) is int and window > 0):
        raise found.error(
            f"layer_types is {kinds!r:.60} and sliding_window {window!r:.40} in its config.json; they must be "
            f"[{FULL!r}], or [{SLIDING!r}] and the number of positions that are seen"
        )
    return LlamaConfig(**{key: value for key, value in found.values.items() if key not in others})


@contextmanager
def told(found: Checkpoint) -> Iterator[None]:
    """A context that makes something of config.json, whose errors become a UsageError about the head."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:  # what transformers and PyTorch raise of wrong values is of all kinds
        raise found.error(
            f"no Llama layer can be made of its config.json: {in_one_line(error)} ({type(error).__name__}); correct "
            "it, or give another head"
        ) from error


def _fill(found: Checkpoint, head: EagleHead, weights: Mapping[str, Tensor], names: Mapping[str, str]) -> None:
    """Gives a head without memory, of the meta device, its weights.

    Sizes in config.json may be anything, so nothing is allocated before shapes are compared.

    Args:
        names: what the head calls its weights, by what the head's layout calls them.

    Raises:
        UsageError: a key is missing or left over, or of another shape or kind, or its numbers are not finite.
    """
    empty = head.state_dict()
    for key in sorted(names.keys() | weights.keys()):
        if key not in weights:
            raise found.error(f"{key!r} is missing, which its config.json calls for; fetch it anew")
        if key not in names:
            raise found.error(f"it holds {key!r}, which nothing in its config.json calls for; give another head")
        wanted = empty[names[key]]
        if wanted.shape != weights[key].shape:
            raise found.error(
                f"{key!r} is of {tuple(weights[key].shape)}, and {tuple(wanted.shape)} follows from its "
                f"config.json and the target; {_ANOTHER}"
            )
        if wanted.is_floating_point() != weights[key].is_floating_point():
            raise found.error(f"{key!r} is of {str(weights[key].dtype).removeprefix('torch.')}; fetch it anew")
        if not weights[key].float().isfinite().all():
            raise found.error(f"{key!r} has numbers that are not finite; fetch it anew")
    head.load_state_dict({names[key]: weight for key, weight in weights.items()}, assign=True)
