"""Memory that decoding takes, estimated from the models' configurations before any weight is loaded."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Self

import torch
from transformers import AutoModelForCausalLM

from fsd_common.errors import UsageError
from fsd_common.formatting import gigabytes
from fsd_decoding.beams.forest import Forest
from fsd_decoding.beams.settings import BeamSettings
from fsd_decoding.divergence import chunk_elements
from fsd_decoding.drafters.base import DraftSource
from fsd_decoding.drafters.eagle import Checkpoint, Eagle, is_eagle3, llama_config, told
from fsd_decoding.free_memory import available
from fsd_decoding.graphs.callers import EagerCaller, slots_of_graphs
from fsd_decoding.loading import as_dtype, is_source, load_config
from fsd_decoding.model_options import USUAL, ModelOptions
from fsd_decoding.models.forward import has_states
from fsd_decoding.models.lean import copied_bytes
from fsd_decoding.models.peak import Peak
from fsd_decoding.models.runner import PREFILL_CHUNK, ModelRunner, context_length, vocabulary_size
from fsd_decoding.models.state_cache import BEGINNINGS

_FP32 = 4  # bytes; logits are judged in fp32
_RESERVE = 0.1  # share of all but the weights, for what is not counted
_TEMPORARIES = 8  # tensors of a chunk's size that a divergence holds at once: p, q, m and their logarithms
_TOLD = 2  # tokens of the shortest pass that tells states; a longer one holds less of each
_HIDDEN, _INNER = 6, 3  # tensors of a layer's width, and of its inner width, that one layer holds at once


class UnknownSizeError(Exception):
    """Raised where a model's memory cannot be estimated; says why."""


@dataclass(frozen=True)
class ModelSize:
    """What one model needs, in bytes.

    Args:
        weights: parameters and buffers that are still to be loaded; 0 for a loaded model.
        slot: keys and values of one token in all layers.
        activations: those of one token in the layer that holds the most.
        logits: width of the vocabulary.
        element: one activation.
        context: the most tokens of a text; None: no limit.
        copies: weights that the lean forward pass copies on a CPU.
        groups: heads of queries to one of keys.
        state: what recurrent layers keep of a row after one of its tokens.
        scan: all that a pass over a chunk of a prompt holds, where layers are recurrent.
        told: the same for one token of a pass that tells the state after each.
    """

    weights: int
    slot: int
    activations: int
    logits: int
    element: int
    context: int | None
    copies: int = 0
    groups: int = 1
    state: int = 0
    scan: int = 0
    told: int = 0

    @classmethod
    def of(cls, model: Any, dtype: str | torch.dtype | None, options: ModelOptions = USUAL) -> ModelSize:
        """Returns the size of a hub id, path or loaded model; of the first two no weight is read.

        Args:
            options: how a hub id or path is loaded.

        Raises:
            UnknownSizeError: it is spread over several devices, quantised on loading, or cannot be built without its
                weights.
            UsageError: its configuration cannot be loaded.
        """
        if isinstance(model, DraftSource):
            return NO_MODEL
        if isinstance(model, Eagle):
            return cls._of_head(model, dtype)
        if not is_source(model) and getattr(model, "config", None) is None:
            raise UnknownSizeError(f"{model!r:.40} is not a model")  # a decoder refuses it
        if getattr(model, "hf_device_map", None):
            raise UnknownSizeError(f"{type(model).__name__} is spread over devices by a device map")
        if is_source(model) and options.device_map is not None:
            raise UnknownSizeError("a device map says where weights go")
        if is_source(model) and options.scheme is not None:
            raise UnknownSizeError("weights are quantised while they are loaded")
        config = load_config(model, options) if is_source(model) else model.config
        built = skeleton(config, dtype if is_source(model) else model.dtype)
        weights = _weights(model, config, built) if is_source(model) else 0
        copies = 0 if _is_quantised(config) else copied_bytes(built)
        text, element = config.get_text_config(), built.dtype.itemsize
        inner = max(_numbers(text, "intermediate_size", "n_inner", "ffn_dim") or [4 * text.hidden_size])
        activations = (_HIDDEN * text.hidden_size + _INNER * inner) * element
        sizes = activations, vocabulary_size(built), element, context_length(config)
        heads = getattr(text, "num_attention_heads", 1)
        groups = heads // (getattr(text, "num_key_value_heads", None) or heads)
        slot, state = _kept(built)
        scans = _scans(built) if has_states(built) else (0, 0)
        return cls(weights, slot, *sizes, copies, groups, state, *scans)

    @classmethod
    def _of_head(cls, head: Eagle, dtype: str | torch.dtype | None) -> ModelSize:
        """Reads the files of a head, whose logits are over the target's vocabulary.

        Args:
            dtype: the target's; None: it is that of the head's files.
        """
        found = Checkpoint.read(head.source, head.revision)
        with told(found):
            config = llama_config(found)
            size = config.head_dim or config.hidden_size // config.num_attention_heads
            keys = 2 * (config.num_key_value_heads or config.num_attention_heads) * size
        floats = [weight for weight in found.weights.values() if weight.is_floating_point()]
        own = max((weight.itemsize for weight in floats), default=_FP32)
        element = own if dtype is None else as_dtype(dtype).itemsize
        weights, slot = sum(weight.numel() for weight in floats), keys + _states(found, config.hidden_size)
        activations = (_HIDDEN * config.hidden_size + _INNER * config.intermediate_size) * element
        return cls(weights * element, slot * element, activations, 0, element, None)


def _states(found: Checkpoint, width: int) -> int:
    """Elements of the target's states of a token: what goes into `fc`, which in EAGLE-1 takes its embedding too."""
    fused = found.weights.get("fc.weight")
    if fused is None or fused.dim() != 2:  # which is refused when the head is loaded
        return width
    return fused.shape[1] if is_eagle3(found) else fused.shape[1] - width


def skeleton(config: Any, dtype: str | torch.dtype | None) -> Any:
    """Returns the model of a configuration on torch's meta device: all shapes, no memory.

    Raises:
        UnknownSizeError: the model cannot be built so.
    """
    requested = as_dtype(dtype)
    if requested == "auto":
        requested = config.get_text_config().dtype or torch.float32
    try:
        with torch.device("meta"):  # experts in a batch: other ways depend on what the router chooses
            model = AutoModelForCausalLM.from_config(
                copy.deepcopy(config),  # a loaded model's would say so, too, from then on
                dtype=requested,
                experts_implementation="batched_mm",
            )
    except Exception as error:  # whatever a model's own code raises without weights
        raise UnknownSizeError(f"{config.model_type} cannot be built without its weights") from error
    return model.eval()


def _kept(built: Any) -> tuple[int, int]:
    """Bytes of the keys and values of one token, and of a state after it, from a step on the meta device."""
    runner = ModelRunner(built, 1, 1, vocabulary_size(built))
    _run(runner, 1)
    states = runner.cache.state_bytes
    return runner.cache.nbytes - states, states // (runner.cache.kept + 1)  # the zeros are of all rows


def _scans(built: Any) -> tuple[int, int]:
    """Bytes that one layer's passes hold at once: over a chunk of a prompt, and for a token whose state is told.

    Leaves the model with as many layers as have one of every kind. Experts are left out: on the meta device each token
    would get weights of its own.
    """
    decoder, kinds = built.get_decoder(), built.config.get_text_config().layer_types
    decoder.layers = decoder.layers[: max(map(kinds.index, set(kinds))) + 1]
    runner, held = ModelRunner(built, 1, PREFILL_CHUNK, vocabulary_size(built)), []
    _run(runner, 1)  # allocates what stays
    for length in (PREFILL_CHUNK, _TOLD):
        peak = Peak()
        with peak.around(built, left_out="Experts"):
            _run(runner, length)
        held.append(peak.bytes)
    return held[0], held[1] // _TOLD


def _run(runner: ModelRunner, length: int) -> None:
    """Runs a model on so many tokens on the meta device. UnknownSizeError: it cannot be."""
    tokens = torch.zeros((1, length), dtype=torch.int64, device="meta")
    try:
        with torch.inference_mode():
            runner.logits(tokens, tokens, runner.slots, keep=1)
    except Exception as error:  # a model's own code reads values, which the meta device does not have
        raise UnknownSizeError(f"{runner.model.config.model_type} cannot be run without its weights") from error


def _weights(source: Any, config: Any, built: Any) -> int:
    """Bytes of all weights and buffers, tied ones once; of quantised weights the size of their files."""
    if not _is_quantised(config):
        return sum(tensor.nbytes for tensor in chain(built.parameters(), built.buffers()))
    files = list(Path(source).glob("*.safetensors")) if Path(source).is_dir() else []
    if not files:
        raise UnknownSizeError(f"{config.model_type} is quantised, and its files are not in a local folder")
    return sum(path.stat().st_size for path in files)


def _is_quantised(config: Any) -> bool:
    return getattr(config, "quantization_config", None) is not None


def _numbers(config: Any, *names: str) -> list[int]:
    return [value for name in names if isinstance(value := getattr(config, name, None), int)]


@dataclass(frozen=True)
class Workload:
    """What is decoded at most.

    Args:
        longest: tokens of a row: prompt, new tokens, draft and bonus token.
        prompt: tokens of the longest prompt.
        draft_length: L.
        greedy: whether no noise is drawn.
        graphs: whether rounds may be called as graphs, which take more slots.
        nodes: tokens that the target reads in a round over beams; None: no beams are decoded, and it reads L + 1.
    """

    longest: int
    prompt: int
    draft_length: int
    greedy: bool
    graphs: bool = False
    nodes: int | None = None

    @classmethod
    def of_beams(cls, settings: BeamSettings, prompt: int, new_tokens: int, depth: int, greedy: bool) -> Self:
        """Returns the work of decoding beams whose texts share all but a round; caches grow where they share less.

        Args:
            settings: how many beams, and how many are drafted.
            prompt, new_tokens: tokens of the longest prompt, and of a text.
            depth: layers drafted in a round.
            greedy: see above.
        """
        longest = prompt + settings.shared(new_tokens, depth)
        return cls(longest, prompt, depth, greedy, nodes=settings.beams + settings.width * depth)


NO_MODEL = ModelSize(0, 0, 0, 0, _FP32, None)
"""Of a draft that is no model."""
LOADED = ("target's weights", "drafts' weights", "joined weights")
"""What `need` returns that every process takes which loads the models."""


def need(target: ModelSize, drafts: Sequence[ModelSize], work: Workload, rows: int, device: str) -> dict[str, int]:
    """Returns the bytes that decoding `rows` rows takes, by what takes them, in words.

    All drafts are loaded, and one of them is in use.

    Args:
        device: where it is decoded; on CUDA divergences are computed by kernels, without temporaries.
    """
    slots = slots_of_graphs(work.longest) if work.graphs else EagerCaller().size(work.longest)
    caches = rows * slots * (target.slot + max(draft.slot for draft in drafts))
    kept = rows * (work.draft_length + 2) + 1 + BEGINNINGS  # and one of zeros
    states = kept * (target.state + max(draft.state for draft in drafts))
    logits = rows * _logits(target, work)
    cells = rows * work.draft_length * target.logits
    chunks = min(chunk_elements(device, target.logits), cells) * _TEMPORARIES * _FP32
    positions = rows * max(min(work.prompt, PREFILL_CHUNK), work.nodes or 0)
    sizes = target, *drafts
    widest = max(
        positions * max(size.activations for size in sizes), rows * max(_scratch(size, work) for size in sizes)
    )
    # The additive mask of a position, the condition it is made from, and the mask of the heads that share keys.
    mask = (2 + (target.groups if target.groups > 1 else 0)) * target.element * slots
    activations = widest + positions * mask
    computing = {
        "KV caches": caches,
        "recurrent states": states,
        "logits of a round": logits,
        "divergences": chunks,
        "activations": activations,
    }
    if work.nodes is not None and torch.device(device).type == "cpu":  # elsewhere they stay on the host
        computing["paths of beams"] = rows * Forest.bytes_for(work.longest - work.prompt)
    weights = sum(draft.weights for draft in drafts)
    copies = sum(size.copies for size in sizes) if torch.device(device).type == "cpu" else 0
    loaded = dict(zip(LOADED, (target.weights, weights, copies), strict=True))
    return {**loaded, **computing, "reserve": round(_RESERVE * sum(computing.values()))}


def _scratch(size: ModelSize, work: Workload) -> int:
    """What recurrent layers hold of a row in a pass, of a prompt or of a round."""
    return max(size.scan, (work.draft_length + 1) * size.told)


def _logits(size: ModelSize, work: Workload) -> int:
    """Bytes of one row's logits in a round: the target's L + 1 as computed and in fp32, the draft's L twice (step by
    step, and joined), and what sampling makes of them."""
    positions, drafted = work.draft_length + 1, work.draft_length
    if work.nodes is not None:
        positions, drafted = work.nodes, work.nodes
    computed = size.element if size.element < _FP32 else 0
    fp32 = positions + 2 * drafted
    if not work.greedy:
        fp32 += 3 * positions + 2 * drafted  # processed logits of both, log-softmax and noise of the target's
    return size.logits * (positions * computed + fp32 * _FP32)


def check_fits(
    models: Sequence[Any], known: dict[tuple[Any, torch.dtype], ModelSize], work: Workload, rows: int, device: str
) -> None:
    """Checks that loaded models can decode so many rows of beams, as far as their sizes can be known.

    Args:
        models: the target, and the draft if there is one.
        known: sizes that were found before, to which others are added: that takes as long as a round or more.

    Raises:
        UsageError: the device has too little memory.
    """
    try:
        for model in models:
            if (model, model.dtype) not in known:
                known[model, model.dtype] = ModelSize.of(model, None)
    except UnknownSizeError:
        return
    sizes = [known[model, model.dtype] for model in models]
    needed = need(sizes[0], sizes[1:] or [NO_MODEL], work, rows, device)
    total, free = sum(size for name, size in needed.items() if name not in LOADED), available(device)
    if free is not None and total > free:
        raise UsageError(
            f"decoding the beams of {rows} prompts at a time takes about {gigabytes(total)}, and {device} has "
            f"{gigabytes(free)} free; use fewer beams, a smaller width, depth or batch_size, or fewer new tokens"
        )
