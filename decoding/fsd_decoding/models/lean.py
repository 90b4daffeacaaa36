"""A forward pass of common decoder-only models in few operations, over the weights that transformers has loaded.

Most of an eager forward pass of a small model is Python and small operations, of which there are fewer here. It runs
untouched models of a known family, to which it gives the same logits: they are compared before a model is run this way.
To support another family, add it to `ARCHITECTURES`, where its layers differ from Llama's in norms alone.
"""

from __future__ import annotations

import inspect
import math
import platform
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain, count
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as torch_modules
from transformers.utils import output_capturing

from fsd_decoding.graphs.callers import in_graph
from fsd_decoding.models.forward import Forward, ModuleForward, attention_kind
from fsd_decoding.models.slot_cache import Masks, SlotCache, attend, fold_mask

_LARGE = 1 << 20
"""Multiplications from which oneDNN gains more than its call costs, which is about 10 µs above MKL's."""

_CPUINFO = Path("/proc/cpuinfo")


class Product:
    """Multiplies states by one weight.

    Args:
        weight: (inputs, outputs); it may be written to later, but not replaced.
    """

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self._many = _rows_for_onednn(weight)

    def __call__(self, states: Tensor, added: Tensor | None = None) -> Tensor:
        """Returns `states @ weight`, plus what is added.

        Args:
            states: (N, inputs).
            added: (N, outputs) or (outputs,).
        """
        if states.shape[0] >= self._many and not in_graph():  # Inductor chooses for itself, and fails on this call
            outputs: Tensor = torch.ops.mkldnn._linear_pointwise(states, self.weight.t(), None, "none", [], "")
            return outputs if added is None else outputs.add_(added)
        return torch.mm(states, self.weight) if added is None else torch.addmm(added, states, self.weight)


def _rows_for_onednn(weight: Tensor) -> float:
    """The number of rows from which oneDNN computes a product."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or not mkl_is_slow():
        return math.inf
    return max(2, math.ceil(_LARGE / max(weight.numel(), 1)))


@cache
def mkl_is_slow() -> bool:
    """Whether this is a CPU of AMD's with AVX-512, where MKL, PyTorch's choice in fp32, reaches half of oneDNN's speed.

    It is asked of the processor, not of a clock: which products are taken decides the last bits of logits.
    """
    capable = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    return capable and torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available() and _is_amd()


def _is_amd() -> bool:
    about = _CPUINFO.read_text() if _CPUINFO.exists() else platform.processor()
    return "AuthenticAMD" in about


class Linears:
    """Linear layers with one input, whose outputs are joined.

    Args:
        modules: the layers, which are called, whatever they are: quantised ones too.
    """

    def __init__(self, modules: Sequence[Any]) -> None:
        self._modules = modules

    def __call__(self, states: Tensor) -> Tensor:
        """(N, inputs) -> (N, outputs)."""
        outputs = [module(states) for module in self._modules]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)

    def plus(self, residual: Tensor, states: Tensor) -> Tensor:
        """Returns `residual` (N, outputs) plus the outputs."""
        return residual + self(states)


class Packed(Linears):
    """Copies the weights, transposed and joined, so that there is one product.

    Args:
        modules: instances of `torch.nn.Linear` of one dtype and device.
    """

    def __init__(self, modules: Sequence[Any]) -> None:
        super().__init__(modules)
        weight, self._bias = self._joined()
        self._product = Product(weight)

    def refresh(self) -> None:
        """Copies the weights anew, in place."""
        weight, bias = self._joined()
        self._product.weight.copy_(weight)
        if self._bias is not None and bias is not None:
            self._bias.copy_(bias)

    def sums(self) -> Iterator[Tensor]:
        """Yields each output's weighted sum of its weights, and the biases: what a change of the modules' own shows in.

        A change that is lost in the rounding of such a sum is lost in that of a forward pass too.
        """
        for module in self._modules:
            weight = module.weight if module.weight.dtype == torch.float64 else module.weight.float()
            yield torch.mv(weight, _factors(weight.shape[1], weight.dtype, weight.device))
            if module.bias is not None:
                yield module.bias.to(weight.dtype)

    def __call__(self, states: Tensor) -> Tensor:
        return self._product(states, self._bias)

    def plus(self, residual: Tensor, states: Tensor) -> Tensor:
        if self._bias is not None:
            residual = residual + self._bias
        return self._product(states, residual)

    @torch.inference_mode(False)  # else they could not be written again outside of it
    @torch.no_grad()
    def _joined(self) -> tuple[Tensor, Tensor | None]:
        """The joined weight (inputs, outputs) and bias (outputs,), as new tensors."""
        weight = torch.cat([module.weight for module in self._modules]).t().contiguous()
        biases: list[Tensor | None] = [module.bias for module in self._modules]
        given = [bias for bias in biases if bias is not None]
        if not given:
            return weight, None
        zeros = [module.weight.new_zeros(module.out_features) for module in self._modules]
        return weight, torch.cat([zero if b is None else b for zero, b in zip(zeros, biases, strict=True)])


@cache
def _factors(number: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Random numbers in [1, 2), all different in practice, so that weights cannot change places unseen."""
    with torch.inference_mode(False):
        return (1 + torch.rand(number, generator=torch.Generator().manual_seed(0), dtype=dtype)).to(device)


ARCHITECTURES: Mapping[str, tuple[str, ...]] = {
    "LlamaForCausalLM": (),
    "MistralForCausalLM": (),
    "Qwen2ForCausalLM": (),
    "Qwen3ForCausalLM": ("q_norm", "k_norm"),
}
"""How the layers of a family differ from Llama's, by the name of its class of transformers: the names of the norms of
every head's queries and keys, before they are rotated. Biases are those that the modules have, windows those that the
configuration names."""


_made = count()  # tells apart what was made of a model before its modules were changed, and after


class LeanModel:
    """The weights of a model of `ARCHITECTURES`, ready for forward passes; the model itself is not kept alive.

    Args:
        model: a causal LM whose modules are those of its class.
        packed: keep copies of the weights in which layers with the same input are one; else the modules' own are used.
    """

    def __init__(self, model: Any, packed: bool) -> None:
        self.packed, self.number = packed, next(_made)
        norms, decoder, linears = ARCHITECTURES[type(model).__name__], model.model, Packed if packed else Linears
        self.layers = [_Layer(layer, norms, linears) for layer in decoder.layers]
        self.embeddings, self.rotary, self.norm = decoder.embed_tokens, decoder.rotary_emb, _norm(decoder.norm)
        self._head, self._logits = model.lm_head, linears([model.lm_head])
        weights = [self._logits, *(weights for layer in self.layers for weights in layer.weights)]
        self._copied = [each for each in weights if isinstance(each, Packed)]
        self._copied_sums = self._sums() if self._copied else torch.empty(0)

    def refresh(self) -> None:
        """Copies packed weights anew, in place, where those of the modules have changed since, in whatever way."""
        if self._copied and not torch.equal(sums := self._sums(), self._copied_sums):
            for weights in self._copied:
                weights.refresh()
            self._copied_sums = sums

    @torch.inference_mode(False)
    @torch.no_grad()
    def _sums(self) -> Tensor:
        return torch.cat([part for weights in self._copied for part in weights.sums()])

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns the logits of hidden states (B, n, H) before the last norm: (B, n, V)."""
        normed = self.norm(hidden)
        if self._head._forward_pre_hooks:  # collectors and predictors read the hidden states there
            hooked: Tensor = self._head(normed)
            return hooked
        return self._logits(normed.flatten(0, 1)).view(*hidden.shape[:2], -1)


class LeanForward:
    """Forward passes of a `LeanModel` over texts of up to `length` tokens."""

    def __init__(self, model: LeanModel, length: int) -> None:
        self._model = model
        weight = model.embeddings.weight
        cos, sin = model.rotary(weight, torch.arange(length, device=weight.device)[None])
        half = cos.shape[-1] // 2
        self._cos, self._sin = cos[0], torch.cat([-sin[0, :, :half], sin[0, :, half:]], 1)

    @property
    def identity(self) -> Hashable:
        return "lean", self._model.number

    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        masks: Mapping[str, Tensor],
        cache: SlotCache,
        keep: int,
        layers: Sequence[int] = (),
    ) -> Tensor:
        """See `Forward`."""
        model, (rows, queries) = self._model, tokens.shape
        groups = model.layers[0].attention.groups
        step = _Pass(
            rows, queries, self._cos[positions].unsqueeze(2), self._sin[positions].unsqueeze(2),
            {kind: fold_mask(mask, groups) for kind, mask in masks.items()}, cache,
        )  # fmt: skip
        hidden = functional.embedding(tokens.flatten(), model.embeddings.weight)  # (B·Q, H)
        states = {}
        for number, layer in enumerate(model.layers):
            if number in layers:
                states[number] = hidden.view(rows, queries, -1).clone()  # layers may write in place
            hidden = layer(hidden, step, number)
        hidden = hidden.view(rows, queries, -1)
        if layers:
            states[-1] = model.norm(hidden) if -1 in layers else hidden
            cache.keep_states([states[layer] for layer in layers])
        return model.logits(hidden[:, -keep:])


class _Pass(NamedTuple):
    """What the layers of one forward pass share."""

    rows: int  # B
    queries: int  # Q
    cos: Tensor  # (B, Q, 1, D)
    sin: Tensor  # (B, Q, 1, D), negated in the first half, for `roll`
    masks: Mapping[str, Tensor]  # folded
    cache: SlotCache


class _Layer:
    """A decoder layer with norms before attention and before the gated MLP."""

    def __init__(self, layer: Any, norms: tuple[str, ...], linears: type[Linears]) -> None:
        self.attention = _Attention(layer.self_attn, norms, linears)
        self._norm, self._second_norm = _norm(layer.input_layernorm), _norm(layer.post_attention_layernorm)
        mlp = layer.mlp
        self._activation = mlp.act_fn.forward  # hooks, which a module's call looks for, keep a model from being lean
        self._gate_up = linears([mlp.gate_proj, mlp.up_proj])
        self._down = linears([mlp.down_proj])

    @property
    def weights(self) -> Sequence[Linears]:
        return self.attention.projections, self.attention.output, self._gate_up, self._down

    def __call__(self, hidden: Tensor, step: _Pass, number: int) -> Tensor:
        """(B·Q, H) -> (B·Q, H)."""
        hidden = self.attention(hidden, self._norm(hidden), step, number)
        gate, up = self._gate_up(self._second_norm(hidden)).chunk(2, -1)
        return self._down.plus(hidden, self._activation(gate).mul_(up))


class _Attention:
    """Grouped-query attention with rotary positions."""

    def __init__(self, attention: Any, norms: tuple[str, ...], linears: type[Linears]) -> None:
        size = attention.head_dim
        self._size, self._scaling = size, attention.scaling
        self.groups = attention.num_key_value_groups
        self._heads, self._key_heads = attention.config.num_attention_heads, attention.config.num_key_value_heads
        self._kind: str | None = getattr(attention, "layer_type", None)
        self._norms = [_norm(getattr(attention, name)) for name in norms]
        self.projections = linears([attention.q_proj, attention.k_proj, attention.v_proj])
        self.output = linears([attention.o_proj])

    def __call__(self, residual: Tensor, hidden: Tensor, step: _Pass, number: int) -> Tensor:
        """(B·Q, H), (B·Q, H) -> (B·Q, H)."""
        heads, rotated = self._heads, self._heads + self._key_heads
        states = self.projections(hidden).view(step.rows, step.queries, -1, self._size)  # (B, Q, heads, D)
        if self._norms:
            query_norm, key_norm = self._norms
            parts = query_norm(states[:, :, :heads]), key_norm(states[:, :, heads:rotated]), states[:, :, rotated:]
            states = torch.cat(parts, 2)
        self._rotate(states[:, :, :rotated], step)
        keys, values = step.cache.store(states[:, :, heads:], number).chunk(2, 1)
        mask = step.masks[self._kind] if self._kind is not None else next(iter(step.masks.values()))
        attended = attend(states[:, :, :heads].transpose(1, 2), keys, values, mask, self._scaling)
        return self.output.plus(residual, attended.transpose(1, 2).reshape(step.rows * step.queries, -1))

    def _rotate(self, states: Tensor, step: _Pass) -> None:
        """Rotates queries and keys (B, Q, heads, D) in place."""
        turned = states.roll(self._size // 2, -1)
        states.mul_(step.cos).addcmul_(turned, step.sin)


def _norm(module: Any) -> Callable[[Tensor], Tensor]:
    """Returns a root-mean-square norm (…, n) -> (…, n).

    Args:
        module: that of transformers.
    """
    weight = module.weight
    if weight.dtype == torch.float64:
        forward: Callable[[Tensor], Tensor] = module.forward  # which computes it in fp32
        return forward
    if weight.dtype == torch.float32 and weight.device.type == "cpu":
        return _ProductNorm(weight, module.variance_epsilon)
    return partial(functional.rms_norm, normalized_shape=weight.shape, weight=weight, eps=module.variance_epsilon)


class _ProductNorm:
    """The norm where PyTorch's own is nine operations: a product with a column of 1/n is a mean in one."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight = weight
        self._eps = weight.new_tensor(eps)
        self._mean = weight.new_full((len(weight), 1), 1 / len(weight))

    def __call__(self, states: Tensor) -> Tensor:
        if states.dim() > 2:
            return self(states.flatten(0, -2)).view(states.shape)
        return (states * torch.addmm(self._eps, states.square(), self._mean).rsqrt_()).mul_(self._weight)


PACKED_BYTES = 256 << 20
"""The most bytes of weights that are copied for joined products; those of a larger model hardly gain from it."""

_ROTARY = ("default", "linear", "llama3", "yarn")  # encodings of positions that do not depend on the text's length
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 0.01, torch.bfloat16: 0.05}
_PROBED = 12  # tokens
_CALLED = ("_proj", "act_fn")  # ends of names of modules that are called as they are, whatever they are
_NUMBERS = ("variance_epsilon", "scaling", "head_dim", "num_key_value_groups", "layer_type")  # read from modules
_CONTAINERS = ("torch.nn.modules.container", "torch.nn.modules.sparse")  # of the layers, and the embeddings


_probed: WeakKeyDictionary[Any, tuple[LeanModel | str, tuple[Any, ...]]] = WeakKeyDictionary()
"""By model: what runs it, and what that was chosen for."""
_lock = Lock()


def forward_of(model: Any, length: int, lean: bool) -> Forward:
    """Returns the forward pass to run a model by, for texts of up to `length` tokens.

    Args:
        lean: whether the lean one may be taken.
    """
    weights = choose(model) if lean else None
    return LeanForward(weights, length) if isinstance(weights, LeanModel) else ModuleForward(model)


def choose(model: Any) -> LeanModel | str:
    """Returns what runs a model as it is now: its weights, up to date, for the lean forward pass, or why none does."""
    if obstacle := next(_obstacles(model), None):
        return obstacle
    made_for = _read(model)
    with _lock:
        if model not in _probed or _probed[model][1] != made_for:
            _probed[model] = (_probe(model), made_for)
        elif isinstance(lean := _probed[model][0], LeanModel):
            lean.refresh()
        return _probed[model][0]


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
def _probe(model: Any) -> LeanModel | str:
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
        return f"its layers do not fit the lean forward pass ({str(error).partition(chr(10))[0]:.80})"
    difference = float((own - theirs).abs().max() / theirs.abs().max())
    if difference <= _TOLERANCE[model.dtype]:
        return lean
    if math.isnan(difference):
        return "its logits on two short texts are not finite, or all zero"
    return f"its logits would differ from transformers' by {difference:.2g} of the largest"


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
    """Whether all linear layers are plain ones of one dtype, and small together.

    Their weights must be PyTorch's own kind of tensor: torchao puts quantised ones into unchanged layers.
    """
    for name, module in model.named_modules():
        if name.endswith(("_proj", "lm_head")):
            weight = module.weight if type(module) is nn.Linear else None
            if type(weight) is not nn.Parameter or type(weight.data) is not Tensor or weight.dtype != model.dtype:
                return False
    size: int = sum(weight.nbytes for weight in model.parameters())
    return size <= PACKED_BYTES
