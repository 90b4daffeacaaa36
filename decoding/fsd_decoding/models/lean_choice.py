"""Which models the lean forward pass runs: untouched ones of a known family, to which it gives the same logits."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules
from transformers.utils import output_capturing

from fsd_decoding.models.attention import attention_kind
from fsd_decoding.models.forward import Forward, ModuleForward
from fsd_decoding.models.kv_cache import SlotCache
from fsd_decoding.models.lean_forward import ARCHITECTURES, LeanForward, LeanModel
from fsd_decoding.models.masks import Masks

PACKED_BYTES = 256 << 20
"""The most bytes of weights that are copied for joined products; those of a larger model hardly gain from it."""

_ROTARY = ("default", "linear", "llama3", "yarn")  # encodings of positions that do not depend on the text's length
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 0.01, torch.bfloat16: 0.05}
_PROBED = 12  # tokens
_CALLED = ("_proj", "act_fn")  # ends of names of modules that are called as they are, whatever they are
_NUMBERS = ("variance_epsilon", "scaling", "head_dim", "num_key_value_groups", "layer_type")  # read from modules
_CONTAINERS = ("torch.nn.modules.container", "torch.nn.modules.sparse")  # of the layers, and the embeddings


@dataclass(frozen=True)
class Choice:
    """What runs a model.

    Args:
        lean: its weights for the lean forward pass; None: transformers' modules run it.
        reason: why they do.
    """

    lean: LeanModel | None
    reason: str | None = None


@dataclass
class _Probed:
    """A choice, and what it was made for."""

    choice: Choice
    made_for: tuple[Any, ...]


_probed: WeakKeyDictionary[Any, _Probed] = WeakKeyDictionary()
_lock = Lock()


def forward_of(model: Any, length: int, lean: bool) -> Forward:
    """Returns the forward pass to run a model by, for texts of up to `length` tokens.

    Args:
        lean: whether the lean one may be taken.
    """
    weights = choose(model).lean if lean else None
    return ModuleForward(model) if weights is None else LeanForward(weights, length)


def choose(model: Any) -> Choice:
    """Returns what runs a model as it is now; packed weights are brought up to date."""
    if obstacle := next(_obstacles(model), None):
        return Choice(None, obstacle)
    made_for = _read(model)
    with _lock:
        if model not in _probed or _probed[model].made_for != made_for:
            _probed[model] = _Probed(_probe(model), made_for)
        elif (lean := _probed[model].choice.lean) is not None:
            lean.refresh()
        return _probed[model].choice


def _read(model: Any) -> tuple[Any, ...]:
    """What `LeanModel` reads of a model: its modules, their classes and numbers, and where the weights are."""
    modules = tuple(model.modules())[1:]  # without the model, which would be kept alive
    facts = tuple((type(module), *map(vars(module).get, _NUMBERS)) for module in modules)
    return modules, facts, tuple(weight.data_ptr() for weight in model.parameters())


def packed_bytes(model: Any) -> int:
    """Returns the bytes of weights that the lean forward pass copies, which a model on the meta device tells too."""
    if next(_unknown_family(model), None) is not None or not _can_pack(model):
        return 0
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return sum(weight.nbytes for linear in linears for weight in linear.parameters())


@torch.inference_mode(False)
@torch.no_grad()
def _probe(model: Any) -> Choice:
    """Builds the lean weights and compares logits of two random texts."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.get_input_embeddings().num_embeddings, (2, _PROBED), generator=generator)
    tokens = tokens.to(model.device)
    theirs = _logits(model, ModuleForward(model), tokens)
    try:
        lean = LeanModel(model, _can_pack(model))
        own = _logits(model, LeanForward(lean, _PROBED), tokens)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a model that was changed, such as by pruning heads, leads to
        return Choice(None, f"its layers do not fit the lean forward pass ({str(error).partition(chr(10))[0]:.80})")
    difference = float((own - theirs).abs().max() / theirs.abs().max())
    if difference <= _TOLERANCE[model.dtype]:
        return Choice(lean)
    if math.isnan(difference):
        return Choice(None, "its logits on two short texts are not finite, or all zero")
    return Choice(None, f"its logits would differ from transformers' by {difference:.2g} of the largest")


def _logits(model: Any, forward: Forward, tokens: Tensor) -> Tensor:
    """The logits of all tokens (B, n): of all but the last two in one pass, then of these."""
    rows, length = tokens.shape
    cache, masks = SlotCache(rows, length, model.device), Masks(model, length)
    logits = []
    for begin, end in ((0, length - 2), (length - 2, length)):
        positions = torch.arange(begin, end, device=model.device).expand(rows, -1)
        cache.aim(None, positions, end)
        logits.append(forward(tokens[:, begin:end], positions, masks(positions, end), cache, end - begin))
    return torch.cat(logits, 1).double()


def _obstacles(model: Any) -> Iterator[str]:
    """Reasons why a model is run by transformers' modules."""
    yield from _unknown_family(model)
    known = (type(model).__module__, *_CONTAINERS)
    for name, module in model.model.named_modules():
        if type(module).__module__ not in known and not any(part.endswith(_CALLED) for part in name.split(".")):
            yield f"its module {name} is a {type(module).__name__} of another kind"
    for kind in {type(module) for module in model.modules()}:
        if _is_replaced(kind):
            yield f"the forward pass of {kind.__name__} was replaced"
    if not _has_layers_of_its_configuration(model):
        yield "its layers are not those that its configuration names"
    if model.get_input_embeddings().max_norm is not None:
        yield "its embeddings are normalised as they are read"
    if torch_modules._global_forward_hooks or torch_modules._global_forward_pre_hooks:
        yield "a hook was set on all modules"
    config = model.config
    if attention_kind(model) != "sdpa":
        yield f"it was loaded with {attention_kind(model)} attention"
    if (rotary := (config.rope_parameters or {}).get("rope_type")) not in _ROTARY:
        yield f"its encoding of positions is {rotary!r}"
    if len({weight.device for weight in chain(model.parameters(), model.buffers())}) > 1:
        yield "it is on several devices"
    if model.device.type == "meta":
        yield "it has no weights"
    if model.dtype not in _TOLERANCE:
        yield f"its dtype is {model.dtype}"
    head = model.get_output_embeddings()
    if any(_is_changed(module, hooks=module is not head) for module in model.modules()):
        yield "a hook or another forward pass was set on one of its modules"


def _is_replaced(kind: type) -> bool:
    """Whether the forward pass of a class of modules is not the one that its code defines."""
    defining = next(base for base in kind.__mro__ if "forward" in vars(base))
    return getattr(inspect.unwrap(vars(defining)["forward"]), "__module__", None) != defining.__module__


def _has_layers_of_its_configuration(model: Any) -> bool:
    """Whether the modules say what transformers reads of the configuration in each forward pass."""
    layers, config = model.model.layers, model.config
    kinds = [kind for layer in layers if (kind := getattr(layer.self_attn, "layer_type", None)) is not None]
    return len(layers) <= config.num_hidden_layers and (not kinds or kinds == list(config.layer_types)[: len(kinds)])


def _unknown_family(model: Any) -> Iterator[str]:
    kind = type(model)
    if kind.__name__ not in ARCHITECTURES or not kind.__module__.startswith("transformers.models."):
        yield f"{kind.__name__} is not one of {', '.join(ARCHITECTURES)}"


def _is_changed(module: nn.Module, hooks: bool) -> bool:
    """Whether calling a module does something else than its class says.

    Asking for a model's hidden states once leaves hooks of transformers' on it, which do nothing unless asked again.
    """
    called = any(hook.__module__ != output_capturing.__name__ for hook in module._forward_hooks.values())
    hooked = called or bool(hooks and module._forward_pre_hooks)
    return hooked or "forward" in vars(module) or module._compiled_call_impl is not None


def _can_pack(model: Any) -> bool:
    """Whether all linear layers are plain ones of one dtype, and small together."""
    linears = [module for name, module in model.named_modules() if name.endswith(("_proj", "lm_head"))]
    weights = list(model.parameters())
    return (
        all(type(module) is nn.Linear and _is_plain(module.weight, model.dtype) for module in linears)
        and sum(weight.nbytes for weight in weights) <= PACKED_BYTES
    )


def _is_plain(weight: Tensor, dtype: torch.dtype) -> bool:
    """Whether a weight is PyTorch's own kind of tensor: torchao puts quantised ones into unchanged layers."""
    return type(weight) is nn.Parameter and type(weight.data) is Tensor and weight.dtype == dtype
