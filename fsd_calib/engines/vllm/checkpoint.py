"""What profiles, keys and the ledger record of a pair of checkpoints that vLLM loads by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from fsd_calib.engines.base import Pair, short_name
from fsd_calib.vllm_plugin.model_checks import too_large
from fsd_common.errors import UsageError
from fsd_decoding.loading import load_model, shared_tokenizer
from fsd_decoding.models.fingerprint import family_id, tokenizer_fingerprint
from fsd_decoding.models.runner import context_length, vocabulary_size
from fsd_decoding.profile.parts import ModelInfo


@dataclass(frozen=True)
class Checkpoints:
    """Facts of a target and a draft, read from their checkpoints on the CPU before vLLM loads them.

    Attributes:
        family: See `Engine.family`.
        short_names: See `Engine.short_names`.
        vocabulary: Of the tokens that both models have.
        context: The most tokens of a prompt and its text together; None: no limit is known.
    """

    pair: Pair
    tokenizer: Any
    family: str
    short_names: tuple[str, str]
    vocabulary: int
    context: int | None


def read_checkpoints(target: str, draft: str, dtype: str | None) -> Checkpoints:
    """Loads both models on the CPU, one after the other, for their fingerprints.

    Args:
        dtype: That they are run in; None: the target checkpoint's own.

    Raises:
        UsageError: A model cannot be loaded, or does not fit into memory, or the tokenizers differ.
    """
    tokenizer = shared_tokenizer(target, draft, None)
    large = _load("target", target, dtype)
    own = str(large.dtype).removeprefix("torch.")
    of_target, family = _Model.of(large), family_id(large)
    del large
    of_draft = _Model.of(_load("draft", draft, own))
    contexts = [model.context for model in (of_target, of_draft) if model.context is not None]
    return Checkpoints(
        Pair(of_target.info, of_draft.info, tokenizer_fingerprint(tokenizer)), tokenizer, family,
        (of_target.name, of_draft.name), min(of_target.vocabulary, of_draft.vocabulary), min(contexts, default=None),
    )  # fmt: skip


class _Model(NamedTuple):
    """Facts of one loaded model."""

    info: ModelInfo
    name: str
    vocabulary: int
    context: int | None

    @classmethod
    def of(cls, model: Any) -> Self:
        return cls(ModelInfo.of(model), short_name(model), vocabulary_size(model), context_length(model))


def _load(role: str, source: str, dtype: str | None) -> Any:
    if (reason := too_large(source, dtype)) is not None:
        raise UsageError(
            f"the {role} {source!r} cannot be loaded for its fingerprint, which a certificate is bound to: {reason}; "
            "calibrate on a machine with more memory"
        )
    return load_model(source, "cpu", dtype)
