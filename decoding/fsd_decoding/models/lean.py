"""A forward pass of common decoder-only models in few operations, over the weights that transformers has loaded.

Most of an eager forward pass of a small model is Python and small operations, of which there are fewer here. It runs
untouched models of a known family, to which it gives the same logits: they are compared before a model is run this way.
To support another family, add it to `ARCHITECTURES`, where its layers differ from Llama's in norms alone.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary
from weakref import ref as weakref

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as torch_modules
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map
from transformers.utils import output_capturing

from fsd_decoding.models.forward import Forward, ModuleForward, Part, attention_kind
from fsd_decoding.models.linears import Copied, Joined, Linears, can_join
from fsd_decoding.models.pages import Pages
from fsd_decoding.models.slot_cache import Masks, SlotCache, attend, fold_mask

ARCHITECTURES: Mapping[str, tuple[str, ...]] = {
    "LlamaForCausalLM": (),
    "MistralForCausalLM": (),
    "Qwen2ForCausalLM": (),
    "Qwen3ForCausalLM": ("q_norm", "k_norm"),
}
"""How the layers of a family differ from Llama's, by the name of its class of transformers: the names of the norms of
every head's queries and keys, before they are rotated. Biases are those that the modules have, windows those that the
configuration names."""


class LeanModel:
    """The weights of a model of `ARCHITECTURES`, ready for forward passes; the model itself is not kept alive.

    Args:
        model: a causal LM whose modules are those of its class. Its weights are laid side by side, or copied where
            that pays; see `linears.py`.
        number: tells apart what was made of a model before its modules were changed, and after.
        pages: where they are laid side by side; None: wherever there is memory.
    """

    def __init__(self, model: Any, number: int = 0, pages: Pages | None = None) -> None:
        self.number, self._copied = number, list[Copied]()
        norms, decoder, copies = ARCHITECTURES[type(model).__name__], model.model, _copies(model)

        def linears(modules: Sequence[Any]) -> Linears:
            if not can_join(modules):
                return Linears(modules)
            if not copies:
                return Joined(modules, pages)
            self._copied.append(Copied(modules))
            return self._copied[-1]

        self.layers = [_Layer(layer, norms, linears) for layer in decoder.layers]
        self.embeddings, self.rotary, self.norm = decoder.embed_tokens, decoder.rotary_emb, _norm(decoder.norm)
        self._head, self._logits = model.lm_head, linears([model.lm_head])
        self._copied_sums = self._sums()

    def refresh(self) -> None:
        """Copies weights anew, in place, where those of the modules have changed since, in whatever way."""
        if not torch.equal(sums := self._sums(), self._copied_sums):
            for weights in self._copied:
                weights.refresh()
            self._copied_sums = sums

    @torch.inference_mode(False)
    @torch.no_grad()
    def _sums(self) -> Tensor:
        return torch.cat([torch.empty(0), *(part for weights in self._copied for part in weights.sums())])

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

    joins = True

    @property
    def identity(self) -> Hashable:
        return "lean", self._model.number

    def __call__(self, parts: Sequence[Part], cache: SlotCache, keep: int, layers: Sequence[int] = ()) -> Tensor:
        """See `Forward`. Weights are read once; each part attends by itself."""
        model, groups = self._model, self._model.layers[0].attention.groups
        steps = [
            _Step(
                part, self._cos[part.positions].unsqueeze(2), self._sin[part.positions].unsqueeze(2),
                {kind: fold_mask(mask, groups) for kind, mask in part.masks.items()},
            )
            for part in parts
        ]  # fmt: skip
        tokens = _cat([part.tokens.flatten() for part in parts])
        hidden = functional.embedding(tokens, model.embeddings.weight)  # (N, H)
        states = {}
        for number, layer in enumerate(model.layers):
            if number in layers:
                states[number] = hidden.clone()  # layers may write in place
            hidden = layer(hidden, steps, cache, number)
        if layers:
            states[-1] = model.norm(hidden) if -1 in layers else hidden
            self._keep_states([states[layer] for layer in layers], parts, cache)
        rows, queries = parts[-1].tokens.shape
        return model.logits(hidden[-rows * queries :].view(rows, queries, -1)[:, -keep:])

    def _keep_states(self, states: Sequence[Tensor], parts: Sequence[Part], cache: SlotCache) -> None:
        """Keeps states (N, H) of all parts."""
        for part, own in zip(parts, zip(*(_split(each, parts) for each in states), strict=True), strict=True):
            part.aim(cache)
            cache.keep_states([each.view(*part.tokens.shape, -1) for each in own])


def _cat(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


def _split(states: Tensor, parts: Sequence[Part]) -> Sequence[Tensor]:
    """The states (N, …) of each part."""
    return [states] if len(parts) == 1 else states.split([part.tokens.numel() for part in parts])


class _Step(NamedTuple):
    """What the layers of one forward pass share of a part."""

    part: Part
    cos: Tensor  # (B, Q, 1, D)
    sin: Tensor  # (B, Q, 1, D), negated in the first half, for `roll`
    masks: Mapping[str, Tensor]  # folded


_Linears = Callable[[Sequence[Any]], Linears]
"""Makes one product of linear layers with one input, where that can be."""


_CACHED = 256
"""Tokens of which a CPU computes an MLP at once: more would not find what was computed in its caches."""


class _Layer:
    """A decoder layer with norms before attention and before the gated MLP."""

    def __init__(self, layer: Any, norms: tuple[str, ...], linears: _Linears) -> None:
        self.attention = _Attention(layer.self_attn, norms, linears)
        self._norm, self._second_norm = _norm(layer.input_layernorm), _norm(layer.post_attention_layernorm)
        mlp = layer.mlp
        self._activation = mlp.act_fn.forward  # hooks, which a module's call looks for, keep a model from being lean
        self._gate_up = linears([mlp.gate_proj, mlp.up_proj])
        self._down = linears([mlp.down_proj])

    def __call__(self, hidden: Tensor, steps: Sequence[_Step], cache: SlotCache, number: int) -> Tensor:
        """(N, H) -> (N, H)."""
        hidden = self.attention(hidden, self._norm(hidden), steps, cache, number)
        if hidden.device.type != "cpu" or len(hidden) <= _CACHED:
            return self._mlp(hidden)
        return torch.cat([self._mlp(rows) for rows in hidden.split(_CACHED)])

    def _mlp(self, hidden: Tensor) -> Tensor:
        """(N, H) -> (N, H), the residual included."""
        gate, up = self._gate_up(self._second_norm(hidden)).chunk(2, -1)
        return self._down.plus(hidden, self._activation(gate).mul_(up))


class _Attention:
    """Grouped-query attention with rotary positions."""

    def __init__(self, attention: Any, norms: tuple[str, ...], linears: _Linears) -> None:
        size = attention.head_dim
        self._size, self._scaling = size, attention.scaling
        self.groups = attention.num_key_value_groups
        self._heads, self._key_heads = attention.config.num_attention_heads, attention.config.num_key_value_heads
        self._kind: str | None = getattr(attention, "layer_type", None)
        self._norms = [_norm(getattr(attention, name)) for name in norms]
        self._projections = linears([attention.q_proj, attention.k_proj, attention.v_proj])
        self._output = linears([attention.o_proj])

    def __call__(
        self, residual: Tensor, hidden: Tensor, steps: Sequence[_Step], cache: SlotCache, number: int
    ) -> Tensor:
        """(N, H), (N, H) -> (N, H)."""
        projected = _split(self._projections(hidden), [step.part for step in steps])
        attended = [self._attend(own, step, cache, number) for own, step in zip(projected, steps, strict=True)]
        return self._output.plus(residual, _cat(attended))

    def _attend(self, projected: Tensor, step: _Step, cache: SlotCache, number: int) -> Tensor:
        """The attention of one part: (B·Q, heads·D) of queries, keys and values -> (B·Q, heads·D)."""
        heads, rotated = self._heads, self._heads + self._key_heads
        states = projected.view(*step.part.tokens.shape, -1, self._size)  # (B, Q, heads, D)
        if self._norms:
            query_norm, key_norm = self._norms
            parts = query_norm(states[:, :, :heads]), key_norm(states[:, :, heads:rotated]), states[:, :, rotated:]
            states = torch.cat(parts, 2)
        self._rotate(states[:, :, :rotated], step)
        step.part.aim(cache)
        keys, values = cache.store(states[:, :, heads:], number).chunk(2, 1)
        mask = step.masks[self._kind] if self._kind is not None else next(iter(step.masks.values()))
        attended = attend(states[:, :, :heads].transpose(1, 2), keys, values, mask, self._scaling)
        return attended.transpose(1, 2).reshape(len(projected), -1)

    def _rotate(self, states: Tensor, step: _Step) -> None:
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


COPIED_BYTES = 256 << 20
"""The most bytes of weights that are copied; those of a larger model gain little from it."""

_ROTARY = ("default", "linear", "llama3", "yarn")  # encodings of positions that do not depend on the text's length
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 0.002, torch.bfloat16: 0.02}
"""By dtype, the root mean square that differences of logits may have, over that of the logits."""
_ROUNDED = (torch.float16, torch.bfloat16)  # judged against fp32, unless layers are quantised
_MORE_ERROR = 1.5  # times that of transformers' own forward pass
_PROBED = 12  # tokens
_FACTS = (Tensor.device.__get__, Tensor.dtype.__get__, Tensor.is_floating_point)  # type: ignore[attr-defined]
_WIDENED = 1 << 22  # elements of a weight at a time
_CALLED = ("_proj", "act_fn")  # ends of names of modules that are called as they are, whatever they are
_NUMBERS = ("variance_epsilon", "scaling", "head_dim", "num_key_value_groups", "layer_type")  # read from modules
_CONTAINERS = ("torch.nn.modules.container", "torch.nn.modules.sparse")  # of the layers, and the embeddings


@dataclass(frozen=True)
class _Chosen:
    """What runs a model, and what that was chosen for. Joined weights, which are the model's own until it is moved, are
    kept alive by what decodes alone."""

    by: LeanModel | weakref[LeanModel] | str
    read: tuple[Any, ...]
    number: int


_numbers = count(1)
_chosen: WeakKeyDictionary[Any, _Chosen] = WeakKeyDictionary()  # by model
_lock = Lock()


def forward_of(model: Any, length: int, lean: bool) -> Forward:
    """Returns the forward pass to run a model by, for texts of up to `length` tokens.

    Args:
        lean: whether the lean one may be taken.
    """
    weights = choose(model) if lean else None
    return LeanForward(weights, length) if isinstance(weights, LeanModel) else ModuleForward(model)


def choose(model: Any) -> LeanModel | str:
    """Returns what runs a model as it is now: its weights, for the lean forward pass, or why that does not."""
    if obstacle := next(_obstacles(model), None):
        return obstacle
    with _lock:
        known = _chosen.get(model)
        if known is None or known.read != _read(model):
            known = _Chosen(_probe(model, number := next(_numbers)), (), number)
        lean = known.by
        if isinstance(lean, weakref):
            lean = lean() or LeanModel(model, known.number)
        if isinstance(lean, str):
            by: LeanModel | weakref[LeanModel] | str = lean
        else:
            lean.refresh()
            by = lean if _copies(model) else weakref(lean)
        _chosen[model] = _Chosen(by, _read(model), known.number)  # after the weights have moved side by side
        return lean


@torch.inference_mode(False)
@torch.no_grad()
def place_weights(model: Any, copied: Callable[[int], None]) -> None:
    """Copies the weights of a model that was just loaded to where forward passes will read them.

    The lean one wants some side by side. On a CPU all are copied, also out of their files, which transformers maps:
    those may then be replaced or written to.

    Args:
        copied: called with the bytes of every copy on a CPU.
    """
    everything = chain(model.parameters(), model.buffers())
    on_cpu = [weight for weight in everything if weight.device.type == "cpu" and type(weight.data) is Tensor]
    pages = Pages(on_cpu, copied)
    if next(_obstacles(model), None) is None and not _copies(model):
        with suppress(AttributeError):  # a changed model, which will be run by its modules
            LeanModel(model, pages=pages if model.device.type == "cpu" else None)
    for weight in on_cpu:
        if weight.untyped_storage().nbytes() == weight.nbytes:  # it is no part of others
            weight.data = pages.cat([weight.flatten()]).view_as(weight)


def _read(model: Any) -> tuple[Any, ...]:
    """What `LeanModel` reads of a model: its modules, their classes and numbers, and where the weights are."""
    modules = tuple(model.modules())[1:]  # without the model, which would be kept alive
    facts = tuple((type(module), *map(vars(module).get, _NUMBERS)) for module in modules)
    return modules, facts, tuple(weight.data_ptr() for weight in model.parameters())


@torch.inference_mode(False)
@torch.no_grad()
def _probe(model: Any, number: int) -> LeanModel | str:
    """Builds the lean weights and compares logits of two random texts with those of transformers' modules.

    Two ways to compute logits in 16 bits differ by rounding alone, in large models by a tenth of the largest. So both
    are compared with fp32, from which the lean ones may not differ much more than the others.
    """
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.get_input_embeddings().num_embeddings, (2, _PROBED), generator=generator)
    tokens = tokens.to(model.device)
    theirs = _logits(model, ModuleForward(model), tokens)
    try:
        lean = LeanModel(model, number)
        own = _logits(model, LeanForward(lean, _PROBED), tokens)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a model that was changed, such as by pruning heads, leads to
        return f"its layers do not fit the lean forward pass ({str(error).partition(chr(10))[0]:.80})"
    difference = _error(own, theirs)
    if math.isnan(difference):
        return "its logits on two short texts are not finite, or all zero"
    if model.dtype not in _ROUNDED or not all(can_join([m]) for m in model.modules() if isinstance(m, nn.Linear)):
        if difference <= _TOLERANCE[model.dtype]:
            return lean
        return f"its logits would differ from transformers' by {difference:.2g} of their size"
    try:
        with InFp32():
            exact = _logits(model, ModuleForward(model), tokens)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a model's own code does with another dtype
        return f"it cannot be compared with fp32 ({str(error).partition(chr(10))[0]:.80})"
    lean_error, module_error = _error(own, exact), _error(theirs, exact)
    if lean_error <= max(_MORE_ERROR * module_error, torch.finfo(model.dtype).eps):
        return lean
    return f"its logits would differ from fp32's by {lean_error:.2g} of their size, transformers' by {module_error:.2g}"


def _error(logits: Tensor, exact: Tensor) -> float:
    """The root mean square of the difference of logits, over that of the exact ones."""
    return float((logits - exact).square().mean().sqrt() / exact.square().mean().sqrt())


class InFp32(TorchFunctionMode):
    """Inside, operations read 16-bit tensors in fp32: some rows of a weight at a time, so that they take no memory."""

    def __init__(self) -> None:
        super().__init__()
        self._wide: Tensor | None = None  # (_WIDENED,)

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None
    ) -> Any:
        if function is functional.embedding:  # its table is not to be converted for some rows
            return _widened(function(*args, **keywords or {}))
        if function in _FACTS:  # nor a weight to be asked for its dtype
            return function(_widened(args[0].new_empty(0)))
        if function is functional.linear:
            return self._linear(*args, **keywords or {})
        args, keywords = tree_map(_widened, (args, keywords or {}))
        return function(*args, **keywords)

    def _linear(self, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """`functional.linear`; the memory to convert weights in is not allocated anew, which would leave holes."""
        if self._wide is None:
            self._wide = torch.empty(_WIDENED, device=weight.device)
        inputs, width, outputs = _widened(inputs), weight.shape[1], list[Tensor]()
        for rows in weight.split(_WIDENED // width):
            wide = self._wide[: rows.numel()].view_as(rows).copy_(rows)
            outputs.append(functional.linear(inputs, wide))
        joined = torch.cat(outputs, -1)
        return joined if bias is None else joined + _widened(bias)


def _widened(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in _ROUNDED else value


def _logits(model: Any, forward: Forward, tokens: Tensor) -> Tensor:
    """The logits of all tokens (B, n): of all but the last two in one pass, then of these."""
    rows, length = tokens.shape
    cache, masks = SlotCache(rows, length, model.device), Masks(model, length)
    logits = []
    for begin, end in ((0, length - 2), (length - 2, length)):
        positions = torch.arange(begin, end, device=model.device).expand(rows, -1)
        part = Part(tokens[:, begin:end], positions, masks(positions, end), None, positions, end)
        logits.append(forward([part], cache, end - begin))
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


def _copies(model: Any) -> bool:
    """Whether the lean forward pass has weights of its own: of a small model, where MKL multiplies by them."""
    size: int = sum(weight.nbytes for weight in model.parameters())
    return model.device.type in ("cpu", "meta") and model.dtype.itemsize >= 4 and size <= COPIED_BYTES


def copied_bytes(model: Any) -> int:
    """Returns the bytes of weights that are copied for a model on a CPU, which one on the meta device tells too."""
    if next(_unknown_family(model), None) is not None or not _copies(model):
        return 0
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return sum(weight.nbytes for linear in linears if can_join([linear]) for weight in linear.parameters())
