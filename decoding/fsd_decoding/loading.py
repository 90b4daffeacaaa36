"""Loading of models and tokenizers, and checks that a target and a draft can be used together."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from fsd_decoding.drafters.base import DraftSource
from fsd_decoding.errors import UsageError
from fsd_decoding.hub import cannot_load, fetch_small, fetch_weights
from fsd_decoding.models.checkpoint_files import CheckpointFiles
from fsd_decoding.models.fingerprint import tokenizer_difference
from fsd_decoding.models.known_digests import remember_checkpoint

ModelSource = str | os.PathLike[str]


def check_device(device: str) -> None:
    """Raises UsageError where tensors cannot be created on `device`."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().split("\n")[0]
        raise UsageError(f"device {device!r} cannot be used here: {reason}") from error


def check_pair(target: Any, draft: Any) -> None:
    """Checks the types of target and draft, and warns where they seem to be swapped.

    Raises:
        UsageError: the target is not a loaded causal LM, or the draft is neither that nor a `DraftSource`.
    """
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
        raise UsageError(f"the {role} is the class {model.__name__}; pass an instance, {model.__name__}(…)")
    if not isinstance(model, torch.nn.Module) or not _has_head(model):
        raise UsageError(
            f"the {role} is {model!r:.60}; it must be a causal LM (AutoModelForCausalLM), or a path or hub id"
        )


def _has_head(model: Any) -> bool:
    return hasattr(model, "get_output_embeddings") and model.get_output_embeddings() is not None


def default_device() -> str:
    """Returns "cuda" where it is available, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def load_model(source: ModelSource, device: str, dtype: str | torch.dtype | None) -> Any:
    """Loads a causal LM in eval mode onto `device`; dtype None keeps the checkpoint's own."""
    requested = as_dtype(dtype)
    fetched = fetch_weights(os.fspath(source))
    files = CheckpointFiles(fetched or Path(source))
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            _resolved(source), dtype=requested, output_loading_info=True, **_pinned(fetched)
        )
    except Exception as error:  # a damaged file raises whatever the libraries involved raise
        raise UsageError(_cannot_load("model", source, error)) from error
    model, info = loaded[0].to(device).eval(), loaded[1]
    if fetched is not None:
        model.config._commit_hash = fetched.name  # for profiles; transformers 5.23 sets it no more
    remember_checkpoint(model, files.key(model, info))
    return model


def load_tokenizer(source: ModelSource) -> Any:
    """Loads a tokenizer from a path or hub id."""
    return _load_small("tokenizer", AutoTokenizer, source)


def load_config(source: ModelSource) -> Any:
    """Loads a model's configuration from a path or hub id, without its weights."""
    return _load_small("configuration", AutoConfig, source)


def _load_small(what: str, kind: Any, source: ModelSource) -> Any:
    pinned = _pinned(fetch_small(what, os.fspath(source)))
    try:
        return kind.from_pretrained(_resolved(source), **pinned)
    except Exception as error:  # as above
        raise UsageError(_cannot_load(what, source, error)) from error


def _pinned(fetched: Path | None) -> dict[str, str]:
    """At its commit transformers reads what was fetched, and asks the hub for no file of it again."""
    return {} if fetched is None else {"revision": fetched.name}


def is_source(model: Any) -> bool:
    """Whether `model` is a hub id or a path, rather than a loaded model."""
    return isinstance(model, (str, os.PathLike))


def shared_tokenizer(target: Any, draft: Any, tokenizer: Any) -> Any:
    """Returns `tokenizer`, or the target's where it is None.

    Raises:
        UsageError: a model that is loaded from a path or hub id has a different tokenizer.
    """
    tokenizers = [tokenizer] if tokenizer is not None else []
    tokenizers += [load_tokenizer(model) for model in (target, draft) if is_source(model)]
    if not tokenizers:
        raise UsageError("target and draft are loaded models; pass their tokenizer= as well")
    for other in tokenizers[1:]:
        if difference := tokenizer_difference(tokenizers[0], other):
            raise UsageError(f"target and draft cannot decode together, their tokenizers differ: {difference}")
    return tokenizers[0]


def as_dtype(dtype: str | torch.dtype | None) -> Any:
    """Returns `dtype` as transformers expects it; None stands for the checkpoint's own.

    Raises:
        UsageError: it is not a floating-point type.
    """
    if dtype is None:
        return "auto"
    resolved = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(resolved, torch.dtype) or not resolved.is_floating_point:
        raise UsageError(f"dtype is {dtype!r}; it must be one of float32, bfloat16, float16, float64")
    return resolved


def _resolved(source: ModelSource) -> str:
    """The source, made absolute where it is a local path, so that a profile finds the model from any folder."""
    path = Path(source)
    return str(path.resolve()) if path.exists() else os.fspath(source)


def _cannot_load(what: str, source: ModelSource, error: Exception) -> str:
    if not Path(source).exists():
        return cannot_load(what, os.fspath(source), error)
    reason = str(error).strip().split("\n")[0].rstrip(". ")
    return f"{what} at {os.fspath(source)!r} cannot be loaded: {reason}"
