"""Whether an engine serves the models of a profile: by their fingerprints, or by less where these are not at hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fsd_calib.vllm_plugin.speculation import asked_revision, check_drafter
from fsd_common.errors import UsageError
from fsd_decoding.free_memory import available
from fsd_decoding.loading import load_config, load_model, load_tokenizer
from fsd_decoding.memory import UnknownSizeError, skeleton
from fsd_decoding.models.fingerprint import architecture_digest, tokenizer_fingerprint
from fsd_decoding.profile.parts import ModelInfo
from fsd_decoding.profile.threshold_profile import ThresholdProfile


def check_models(config: Any, profile: ThresholdProfile) -> list[str]:
    """Compares an engine's models and tokenizer with the profile's, before any process of the engine starts.

    Fingerprints are computed from the checkpoints on the CPU, one model after the other, and kept in the user's cache.
    A quantised or sharded model, and one that does not fit into memory a second time, is compared by its configuration.

    Returns:
        Warnings, among them one that says what was not compared.

    Raises:
        UsageError: a model or the tokenizer is another.
    """
    tokenizer = load_tokenizer(config.model_config.tokenizer)
    served = {"target": config.model_config, "draft": config.speculative_config.draft_model_config}
    loads = {"target": config.load_config, "draft": config.speculative_config.draft_load_config or config.load_config}
    found: dict[str, ModelInfo] = {}
    doubts = list(filter(None, [profile.prompt_doubt(tokenizer)]))
    for role, then in (("target", profile.target), ("draft", profile.draft)):
        if role == "draft" and then.kind != "model":
            doubts += check_drafter(config.speculative_config, then)
        elif role == "draft" and config.speculative_config.method != "draft_model":
            raise UsageError(
                f"the profile's draft is the draft model {then.id!r}, but this engine drafts by "
                f"{config.speculative_config.method!r}; serve that model, or calibrate again"
            )
        elif reason := next(_uncomputable(config, served[role], loads[role]), None):
            doubts += _compare_configurations(role, then, served[role], reason)
            now = str(served[role].dtype).removeprefix("torch.")
            if now != then.dtype:
                doubts.append(f"the profile was calibrated with the {role} in {then.dtype}, this one is in {now}")
        else:
            found[role] = ModelInfo.of(load_model(served[role].model, "cpu", served[role].dtype))
    return profile.compare_facts(found, tokenizer_fingerprint(tokenizer)) + doubts


def _uncomputable(config: Any, served: Any, load: Any) -> Iterator[str]:
    """Yields why the weights that an engine serves have no fingerprint, or none at an acceptable cost."""
    shards = config.parallel_config.world_size
    if served.quantization is not None:
        yield f"it is quantised ({served.quantization})"
    if shards > 1:
        yield f"it is sharded over {shards} workers"
    if load.load_format not in ("auto", "hf", "safetensors"):
        yield f"it is loaded as {load.load_format!r}"
    if (asked := asked_revision(served)) is not None:
        yield f"its revision {asked!r} is given"
    if served.trust_remote_code:
        yield "it may run code of its own"
    if (reason := too_large(served.model, served.dtype)) is not None:
        yield reason


def too_large(model: str, dtype: Any) -> str | None:
    """Returns why a checkpoint cannot be loaded on the CPU, for its fingerprint; None: it can."""
    free = available("cpu")
    try:
        built = skeleton(load_config(model), dtype)
    except UnknownSizeError as error:
        return str(error)
    size = sum(tensor.nbytes for tensor in built.parameters())
    if free is None or size <= free:
        return None
    return f"its weights take {size / 1e9:.1f} GB, and {free / 1e9:.1f} GB of memory are free"


def _compare_configurations(role: str, then: ModelInfo, served: Any, reason: str) -> list[str]:
    """Compares what is known without weights; returns what was not compared."""
    width = served.get_vocab_size()
    if width != then.vocab_size:
        raise UsageError(
            f"the profile's {role} is {then.id!r} with vocab_size {then.vocab_size}, but this {role} has {width}; "
            "serve that model, or calibrate again"
        )
    try:
        calibrated = architecture_digest(load_config(then.id))
    except UsageError:
        return [f"the weights of the {role} are not compared with the profile's, as {reason}; only its vocabulary and "
                f"tokenizer are, as {then.id!r} cannot be read"]  # fmt: skip
    if architecture_digest(load_config(served.model)) != calibrated:
        raise UsageError(
            f"the profile's {role} is {then.id!r}, but the configuration of this one, {served.model!r}, differs; serve "
            "that model, or calibrate again"
        )
    return [f"the weights of the {role} are not compared with the profile's, as {reason}; its configuration and "
            "tokenizer are"]  # fmt: skip
