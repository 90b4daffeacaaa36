"""Loads models and tokenizers, and says plainly what is wrong when they cannot be used together.

Knows transformers' Auto classes. Knows nothing of decoding.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from fsd_decoding.drafters.base import DraftSource
from fsd_decoding.errors import UsageError
from fsd_decoding.models.fingerprint import tokenizer_difference

ModelSource = str | os.PathLike[str]


def check_device(device: str) -> None:
    """UsageError where nothing can be put on `device`."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().split("\n")[0]
        raise UsageError(f"device {device!r} cannot be used here: {reason}") from error


def check_pair(target: Any, draft: Any) -> None:
    """UsageError where either is no loaded causal LM, nor the draft another source; warns where they seem swapped."""
    _check_causal("target", target)
    if isinstance(draft, DraftSource) and not isinstance(draft, type):
        return
    _check_causal("draft", draft)
    sizes = [sum(p.numel() for p in model.parameters()) for model in (target, draft)]
    if sizes[1] > sizes[0]:
        warnings.warn(
            f"the draft has {sizes[1]:,} parameters, the target {sizes[0]:,}: drafting costs more than it saves; "
            "are they swapped?",
            stacklevel=4,
        )


def _check_causal(role: str, model: Any) -> None:
    if isinstance(model, type):
        raise UsageError(f"the {role} is the class {model.__name__}; give an object of it, {model.__name__}(…)")
    if not isinstance(model, torch.nn.Module) or not _has_head(model):
        raise UsageError(
            f"the {role} is {model!r:.60}; it must be a causal LM (AutoModelForCausalLM), or a path or hub id"
        )


def _has_head(model: Any) -> bool:
    return hasattr(model, "get_output_embeddings") and model.get_output_embeddings() is not None


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def load_model(source: ModelSource, device: str, dtype: str | torch.dtype | None) -> Any:
    """A causal LM in eval mode on `device`; dtype None is the checkpoint's own."""
    wanted = as_dtype(dtype)
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(_place(source), dtype=wanted)
    except Exception as error:  # a broken file fails in as many ways as there are libraries on the way
        raise UsageError(_cannot_load("model", source, error)) from error
    return model.to(device).eval()


def load_tokenizer(source: ModelSource) -> Any:
    try:
        return AutoTokenizer.from_pretrained(_place(source))
    except Exception as error:  # as above
        raise UsageError(_cannot_load("tokenizer", source, error)) from error


def is_source(model: Any) -> bool:
    """A hub id or a path, rather than a loaded model."""
    return isinstance(model, (str, os.PathLike))


def shared_tokenizer(target: Any, draft: Any, given: Any) -> Any:
    """The tokenizer given, or the target's; UsageError where a model comes with another."""
    tokenizers = [given] if given is not None else []
    tokenizers += [load_tokenizer(model) for model in (target, draft) if is_source(model)]
    if not tokenizers:
        raise UsageError("target and draft are loaded models; give their tokenizer= too")
    for other in tokenizers[1:]:
        if difference := tokenizer_difference(tokenizers[0], other):
            raise UsageError(f"target and draft cannot decode together, their tokenizers differ: {difference}")
    return tokenizers[0]


def as_dtype(dtype: str | torch.dtype | None) -> Any:
    """What transformers calls it; None is the checkpoint's own. UsageError: no floating-point type."""
    if dtype is None:
        return "auto"
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise UsageError(f"dtype is {dtype!r}; it must be one of float32, bfloat16, float16, float64")
    return found


def _place(source: ModelSource) -> str:
    """Absolute where it is a local path, so that a profile finds the model from any folder."""
    path = Path(source)
    return str(path.resolve()) if path.exists() else os.fspath(source)


def _cannot_load(what: str, source: ModelSource, error: Exception) -> str:
    reason = str(error).strip().split("\n")[0].rstrip(". ")
    if Path(source).exists():
        return f"{what} at {os.fspath(source)!r} cannot be loaded: {reason}"
    return (
        f"{what} {os.fspath(source)!r} is no local folder and cannot be had from the hub: {reason}; "
        "--target and --draft also take paths of local folders"
    )
