"""What a profile records of a draft, and what a decoder is given for such a record."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from fsd_common.errors import UsageError
from fsd_decoding.drafters.base import DraftSource
from fsd_decoding.drafters.eagle import Eagle
from fsd_decoding.drafters.eagle_head import EagleHead
from fsd_decoding.drafters.named import NamedDrafter
from fsd_decoding.drafters.ngram import NGram
from fsd_decoding.drafters.vllm_draft import VllmDraft
from fsd_decoding.models.runner import vocabulary_size
from fsd_decoding.profile.parts import DraftKind, ModelInfo


def kind_of(draft: Any) -> DraftKind | None:
    """Returns the kind of a draft, loaded or not; None: it is a `DraftSource` that no profile can name."""
    if isinstance(draft, Eagle | EagleHead):
        return "eagle"
    if isinstance(draft, NGram):
        return "ngram"
    if isinstance(draft, VllmDraft):
        return "vllm"
    if isinstance(draft, NamedDrafter):
        return "addon"
    return None if isinstance(draft, DraftSource) else "model"


def info_of(draft: Any, target: Any) -> ModelInfo:
    """Describes a loaded draft of any kind.

    Args:
        target: its loaded target, over whose vocabulary it drafts.
    """
    kind = kind_of(draft)
    if kind == "model":
        return ModelInfo.of(draft)
    name, vocabulary = repr(draft), vocabulary_size(target)
    if kind == "eagle":
        dtype = str(next(draft.parameters()).dtype).removeprefix("torch.")
        return ModelInfo(id=draft.name or name, revision=draft.revision, fingerprint=draft.fingerprint,
                         vocab_size=vocabulary, dtype=dtype, quantization=None, attention=None, kind=kind)  # fmt: skip
    fingerprint = hashlib.sha256(name.encode()).hexdigest()
    name = draft.name if kind == "addon" else name
    return ModelInfo(id=name, revision=None, fingerprint=fingerprint, vocab_size=vocabulary, dtype="float32",
                     quantization=None, attention=None, kind=kind or "model")  # fmt: skip


def draft_of(info: ModelInfo) -> Any:
    """Returns the draft of a record in the form that calibrations and `SpeculativeDecoder.from_pretrained` take.

    Raises:
        UsageError: it is an n-gram draft with a corpus, whose file is not recorded.
    """
    if info.kind == "eagle":
        return Eagle(info.id, info.revision)
    if info.kind == "vllm":
        return VllmDraft(info.id)
    if info.kind == "addon":
        return NamedDrafter(info.id)
    return _ngram(info.id) if info.kind == "ngram" else info.id


def _ngram(name: str) -> NGram:
    found = re.fullmatch(r"NGram\((?:order=(\d+))?\)", name)
    if found is None:
        raise UsageError(
            f"the profile's draft is {name}, and a profile does not hold a corpus; give NGram with that corpus as the "
            "draft, in Python"
        )
    return NGram() if found[1] is None else NGram(int(found[1]))
