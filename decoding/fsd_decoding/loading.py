"""Loading of models and tokenizers, and checks that a target and a draft can be used together."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from fsd_common.argument_checks import check_path
from fsd_common.errors import UsageError, in_one_line
from fsd_common.progress.base import Advance, Progress, Silent, reading
from fsd_decoding.drafters.base import DraftSource
from fsd_decoding.drafters.eagle import Eagle
from fsd_decoding.hub import cannot_load, fetch_small, fetch_weights
from fsd_decoding.model_options import (
    USUAL,
    USUAL_LOADING,
    Loading,
    ModelKwargs,
    ModelOptions,
    check_runs,
    scheme_of,
)
from fsd_decoding.models.fingerprint import tokenizer_difference
from fsd_decoding.models.forward import unknown_rope_type
from fsd_decoding.models.lean import place_weights
from fsd_decoding.models.slot_cache import CONVOLUTION, LINEAR
from fsd_decoding.models.weights_digest import CheckpointFiles, remember_checkpoint

if TYPE_CHECKING:
    from fsd_decoding.profile.threshold_profile import ThresholdProfile


@contextmanager
def without_weight_bars() -> Iterator[None]:
    """Inside, transformers shows no bars; afterwards it does what it did before.

    Bars of downloads, which take minutes, are huggingface_hub's and stay as they are: transformers switches both.
    """
    shown, downloads = logging.is_progress_bar_enabled(), not are_progress_bars_disabled()
    logging.disable_progress_bar()
    if downloads:
        enable_progress_bars()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
            if not downloads:
                disable_progress_bars()


_WEIGHTS = "*.safetensors", "*.bin"  # files, of which the first kind that there is counts
_BAR = "Loading weights"  # what transformers calls its own bar


@contextmanager
def _reading(folder: Path, progress: Progress) -> Iterator[None]:
    """Inside, the progress of transformers' reading of a checkpoint is told, tensor by tensor."""
    sizes = next(filter(None, ([file.stat().st_size for file in folder.glob(kind)] for kind in _WEIGHTS)), [])
    total = sum(sizes)
    with reading(progress, f"reading the weights of {folder.name}", total) as add:

        def counted(bar: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
            shown = bar(*arguments, **keywords)
            return _told(shown, len(arguments[0]), total, add) if arguments and keywords.get("desc") == _BAR else shown

        before = logging.set_tqdm_hook(counted)
        try:
            yield
        finally:
            logging.set_tqdm_hook(before)


def _told(items: Iterable[Any], count: int, total: int, add: Advance) -> Iterator[Any]:
    """Yields items, and adds each one's share of the total."""
    for place, item in enumerate(items):
        yield item
        add(total * (place + 1) // count - total * place // count)


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
        UsageError: the target is not a loaded causal LM, or the draft is neither that nor a `DraftSource` or `Eagle`.
    """
    _check_causal("target", target)
    if isinstance(draft, DraftSource | Eagle) and not isinstance(draft, type):
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
    if not isinstance(model, torch.nn.Module) or getattr(model, "get_output_embeddings", lambda: None)() is None:
        raise UsageError(
            f"the {role} is {model!r:.60}; it must be a causal LM (AutoModelForCausalLM), or a path or hub id"
        )
    check_runs(role, model)


def default_device() -> str:
    """Returns "cuda" where it is available, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def check_loading(
    target: Any, drafts: Sequence[Any], device: str | None, model_kwargs: ModelKwargs | None,
    draft_model_kwargs: ModelKwargs | None, followed: ThresholdProfile | None = None,
) -> Loading:  # fmt: skip
    """Returns how a target and its drafts are to be loaded, checked before anything is fetched.

    Args:
        target, drafts: hub ids, paths or loaded models.
        device: the device that was requested; None: none was.
        followed: a profile of the target and the first draft, which says what is not given.

    Raises:
        UsageError: the options are for a loaded model, contradict each other or the device, or need a missing library.
    """
    loading = Loading.of(model_kwargs, draft_model_kwargs)
    _check_given("target", target, model_kwargs, loading.target)
    for draft in drafts:
        if isinstance(draft, DraftSource | Eagle):
            _check_no_model(draft, loading)
        else:
            _check_given("draft", draft, draft_model_kwargs, loading.draft)
    if followed is not None:
        loading = loading.following(followed, target, drafts[0])
    for models, options in (([target], loading.target), (drafts, loading.draft)):
        if any(map(is_source, models)):
            options.check(device, default_device())
    return loading


def _check_no_model(draft: Any, loading: Loading) -> None:
    """UsageError: options are given for a draft that is no model. What is given for the target is not for it."""
    own, revision = getattr(draft, "revision", None), loading.draft.revision
    if different := [*["revision"] * (revision not in (None, own)), *loading.draft.differing(loading.target)]:
        raise UsageError(
            f"{', '.join(different)} of the draft {'is' if len(different) == 1 else 'are'} given, and the draft is "
            f"{draft!r:.80}, which is not loaded as a model is; leave that out"
        )


def keywords_of(loading: Loading, target: Any, draft: Any) -> dict[str, Any]:
    """Returns keywords of `SpeculativeDecoder.from_pretrained`, without those of a model that is loaded already."""
    return {
        "model_kwargs": loading.target if is_source(target) else None,
        "draft_model_kwargs": loading.draft if is_source(draft) else None,
    }


def _check_given(role: str, model: Any, given: ModelKwargs | None, options: ModelOptions) -> None:
    """UsageError: a source is empty, options are given for a loaded model, or a revision for a local folder."""
    check_path(role, model)
    if not is_source(model):
        if ModelOptions.of(given) != USUAL:
            raise UsageError(
                f"{'draft_' * (role == 'draft')}model_kwargs is given, but the {role} is a loaded "
                f"{type(model).__name__}; load it with them, or give its path or hub id"
            )
    elif options.revision is not None and Path(model).exists():
        raise UsageError(
            f"the {role}'s revision is {options.revision!r}, but {os.fspath(model)!r} is a local folder, which has "
            "none; leave the revision out, or give a hub id"
        )


def load_model(
    source: ModelSource, device: str, dtype: str | torch.dtype | None, options: ModelOptions = USUAL,
    progress: Progress | None = None,
) -> Any:  # fmt: skip
    """Loads a causal LM in eval mode; dtype None keeps the checkpoint's own.

    Args:
        device: where it is put, unless `options` have a device map.
        progress: receives the megabytes that are read.

    Raises:
        UsageError: it cannot be loaded, is quantised already in another way than is requested, or the device map is
            not one of its modules.
    """
    requested = as_dtype(dtype)
    fetched = fetch_weights(os.fspath(source), options.revision)
    folder, told = fetched or Path(source), progress or Silent()
    files = CheckpointFiles(folder)
    config = _from_files(AutoConfig, "configuration", source, fetched, options.for_configuration())
    keywords = _keywords(source, config, device, options)
    try:
        with without_weight_bars(), _reading(folder, told):
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                _resolved(source), dtype=requested, output_loading_info=True, **_pinned(fetched), **keywords
            )
    except Exception as error:  # a damaged file raises whatever the libraries involved raise
        given = f"; model_kwargs gives it {', '.join(options.others)}" if options.others else ""
        rope = unknown_rope_type(config.get_text_config().to_dict()) if isinstance(error, KeyError) else None
        raise UsageError(_cannot_load("model", source, UsageError(rope) if rope else error) + given) from error
    model, info = loaded
    options.check_map(model)
    if "device_map" not in keywords:
        model = model.to(device)
    if fetched is not None:
        model.config._commit_hash = fetched.name  # for profiles; transformers 5.23 sets it no more
    size = sum(weight.nbytes for weight in chain(model.parameters(), model.buffers()))
    with reading(told, f"copying the weights of {folder.name} into memory", size) as add:
        place_weights(model.eval(), add)  # now, as the files' digest holds for the weights where they are
    remember_checkpoint(model, None if options.others else files.key(model, info))
    return model


def _keywords(source: ModelSource, config: Any, device: str, options: ModelOptions) -> dict[str, Any]:
    """The keywords that weights are loaded with; quantised ones are loaded onto their device and stay there."""
    own = scheme_of(config)
    if own is not None and options.scheme not in (None, own):
        raise UsageError(
            f"model {os.fspath(source)!r} is quantised already ({own}), so quantization {options.scheme!r:.60} cannot "
            "be applied; leave it out, or give the checkpoint that is not quantised"
        )
    if not _attends(config):
        options = replace(options, attn=None)
    keywords = (options if own is None else replace(options, quantization=None)).keywords()
    return keywords if own is None and options.scheme is None else {"device_map": device} | keywords


def _attends(config: Any) -> bool:
    """Whether a model has attention, whose kind transformers lets one choose: what is only recurrent has none."""
    kinds = getattr(config.get_text_config(), "layer_types", None)
    return not kinds or not {*kinds} <= {LINEAR, CONVOLUTION}


def load_tokenizer(source: ModelSource, options: ModelOptions = USUAL) -> Any:
    """Loads a tokenizer from a path or hub id."""
    return _load_small("tokenizer", AutoTokenizer, source, options.revision, options.for_tokenizer())


def load_config(source: ModelSource, options: ModelOptions = USUAL) -> Any:
    """Loads a model's configuration from a path or hub id, without its weights."""
    return _load_small("configuration", AutoConfig, source, options.revision, options.for_configuration())


def _load_small(what: str, kind: Any, source: ModelSource, revision: str | None, keywords: Mapping[str, Any]) -> Any:
    return _from_files(kind, what, source, fetch_small(what, os.fspath(source), revision), keywords)


def _from_files(kind: Any, what: str, source: ModelSource, fetched: Path | None, keywords: Mapping[str, Any]) -> Any:
    try:
        return kind.from_pretrained(_resolved(source), **_pinned(fetched), **keywords)
    except Exception as error:  # as above
        raise UsageError(_cannot_load(what, source, error)) from error


def _pinned(fetched: Path | None) -> dict[str, str]:
    """At its commit transformers reads what was fetched, and asks the hub for no file of it again."""
    return {} if fetched is None else {"revision": fetched.name}


def is_placed(model: Any) -> bool:
    """Whether a device map or quantisation decided where a loaded model is, so that it stays there."""
    return getattr(model, "hf_device_map", None) is not None or getattr(model, "hf_quantizer", None) is not None


def is_source(model: Any) -> bool:
    """Whether `model` is a hub id or a path, rather than a loaded model."""
    return isinstance(model, (str, os.PathLike))


def shared_tokenizer(target: Any, draft: Any, tokenizer: Any, loading: Loading = USUAL_LOADING) -> Any:
    """Returns `tokenizer`, or the target's where it is None.

    Raises:
        UsageError: a model that is loaded from a path or hub id has a different tokenizer.
    """
    tokenizers = [tokenizer] if tokenizer is not None else []
    sides = ((target, loading.target), (draft, loading.draft))
    tokenizers += [load_tokenizer(model, options) for model, options in sides if is_source(model)]
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
    return f"{what} at {os.fspath(source)!r} cannot be loaded: {in_one_line(error)}"
