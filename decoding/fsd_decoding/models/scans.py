"""Scans of recurrent layers that tell the state after each token of a short pass.

transformers' scans tell the state after the last token alone, and some cannot go on from a state, or leave out the
limits of a step's size in a pass of one token. They are called by name in the module of a model's family, where
`prepare` puts functions that are the scans themselves, but where a `StateCache` of the same thread asks for states.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from threading import local
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus
from transformers import Cache

from fsd_decoding.models.slot_cache import CONVOLUTION, FULL
from fsd_decoding.models.state_cache import StateCache

_asking = local()
_Scan = Callable[..., Any]


@contextmanager
def recording(cache: StateCache) -> Iterator[None]:
    """Inside, scans of this thread tell a cache the states that it needs."""
    _asking.cache = cache
    try:
        yield
    finally:
        _asking.cache = None


def tells_states(model: Any) -> bool:
    """Returns whether the code of a model with recurrent layers is that of transformers 5.24 or later."""
    code = sys.modules[type(model.get_decoder()).__module__]
    recurrent = set(model.config.get_text_config().layer_types) - {CONVOLUTION, FULL}
    return hasattr(Cache, "get_recurrent_state") and (not recurrent or any(hasattr(code, name) for name in _SCANS))


def prepare(model: Any) -> None:
    """Makes the scans of a model's family tell states."""
    code = sys.modules[type(model.get_decoder()).__module__]
    for name, of_scan in _SCANS.items():
        scan = getattr(code, name, None)
        if scan is not None and not hasattr(scan, "tells_states"):
            setattr(code, name, of_scan(scan, code))


def _telling(scan: _Scan, by_token: _Scan, goes_on: _Scan) -> _Scan:
    """What calls a scan by itself, in a short pass with a cache `by_token`, and in a long one `goes_on`."""

    @wraps(scan)
    def told(*args: Any, **kwargs: Any) -> Any:
        cache: StateCache | None = getattr(_asking, "cache", None)
        if cache is None:
            return scan(*args, **kwargs)
        return (by_token if cache.records else goes_on)(cache, *args, **kwargs)

    told.tells_states = True  # type: ignore[attr-defined]
    return told


def _of_mamba2(scan: _Scan, code: ModuleType) -> _Scan:
    def goes_on(cache: StateCache, *args: Any, **kwargs: Any) -> Any:
        return scan(*args, **kwargs | {"initial_states": cache.before})

    return _telling(scan, _ssd, goes_on)


def _of_mamba(scan: _Scan, code: ModuleType) -> _Scan:
    return _telling(scan, _selective, _selective)  # transformers' begins anew in every pass


def _of_delta_rule(step: str) -> Callable[[_Scan, ModuleType], _Scan]:
    """Of a gated delta rule (arXiv 2412.06464). step: the name of its function for single tokens."""

    def of(scan: _Scan, code: ModuleType) -> _Scan:
        one: _Scan = getattr(code, step)

        def goes_on(cache: StateCache, *args: Any, **kwargs: Any) -> Any:
            return scan(*args, **kwargs | {"initial_state": cache.before})

        def by_token(
            cache: StateCache, *args: Tensor, g: Tensor, beta: Tensor, initial_state: None = None, **kwargs: Any
        ) -> tuple[Tensor, Tensor]:
            state, out, states = cache.before, [], []
            for i in range(g.shape[1]):
                query, key, value, gate, rate = (each[:, i : i + 1] for each in (*args, g, beta))
                done, state = one(query, key, value, g=gate, beta=rate, initial_state=state, **kwargs)
                out.append(done)
                states.append(state)
            cache.record(states)
            return torch.cat(out, 1), states[-1]

        return _telling(scan, by_token, goes_on)

    return of


_SCANS: dict[str, Callable[[_Scan, ModuleType], _Scan]] = {
    "mamba2_chunk_scan": _of_mamba2,
    "mamba_selective_scan": _of_mamba,
    "torch_chunk_gated_delta_rule": _of_delta_rule("torch_recurrent_gated_delta_rule"),
    "chunk_kimi_delta_attention": _of_delta_rule("recurrent_kimi_delta_attention"),
}


def _ssd(
    cache: StateCache, inputs: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, *, D: Tensor, dt_bias: Tensor,  # noqa: N803
    dt_limit: tuple[float, float], **kwargs: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Mamba-2's scan (arXiv 2405.21060, section 3) with dt = softplus(dt + bias).

    Args:
        inputs: (B, Q, heads, P). dt: (B, Q, heads). A, D, dt_bias: (heads,). B, C: (B, Q, groups, N).
    """
    wide = torch.promote_types(inputs.dtype, torch.float32)
    steps = softplus(dt + dt_bias.to(dt.dtype)).clamp(*dt_limit).to(wide)
    heads = inputs.shape[2] // B.shape[2]
    entry, exit = (each.to(wide).repeat_interleave(heads, 2) for each in (B, C))
    x = inputs.to(wide)
    decay, entering = (steps * A.to(wide)).exp(), x * steps[..., None]
    state = x.new_zeros((*x[:, 0].shape, B.shape[-1])) if cache.before is None else cache.before.to(wide)
    states, out = [], []
    for i in range(x.shape[1]):
        state = state * decay[:, i, :, None, None] + entering[:, i, :, :, None] * entry[:, i, :, None]
        states.append(state)
        out.append((state * exit[:, i, :, None]).sum(-1) + D.to(wide)[:, None] * x[:, i])
    cache.record(states)
    return torch.stack(out, 1), state


def _selective(
    cache: StateCache, inputs: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, *, D: Tensor, z: Tensor,  # noqa: N803
    delta_bias: Tensor | None = None, **kwargs: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Mamba's scan (arXiv 2312.00752, section 3) with dt = softplus(dt + bias), which goes on from the cache's state;
    transformers' begins anew.

    Args:
        inputs, dt, z: (B, width, Q). A: (width, N). B, C: (B, N, Q). D, delta_bias: (width,).
    """
    wide = torch.promote_types(inputs.dtype, torch.float32)
    bias = 0.0 if delta_bias is None else delta_bias.to(dt.dtype)[:, None]
    steps, x, decays = softplus(dt + bias).to(wide), inputs.to(wide), A.to(wide)
    state = x.new_zeros((*x.shape[:2], A.shape[1])) if cache.before is None else cache.before.to(wide)
    states, out = [], []
    for i in range(x.shape[2]):
        step, entering = steps[..., i, None], x[..., i, None]
        state = state * (step * decays).exp() + step * B[:, None, :, i].to(wide) * entering
        if cache.records:
            states.append(state)
        out.append((state * C[:, None, :, i].to(wide)).sum(-1) + D.to(wide) * x[..., i])
    if states:
        cache.record(states)
    return (torch.stack(out, -1) * silu(z.to(wide))).to(inputs.dtype), state
