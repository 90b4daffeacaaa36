"""The decoders that a worker keeps: models are loaded once for each process, whatever is decoded with them."""

from __future__ import annotations

import json

import torch
import transformers

from fsd_common.errors import UsageError
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.drafters.base import DraftSource
from fsd_decoding.engine.engine import ENGINE_VERSION
from fsd_decoding.loading import ModelSource, keywords_of
from fsd_decoding.models.fingerprint import model_fingerprint, tokenizer_fingerprint
from fsd_decoding.models.forward import attention_kind
from fsd_decoding.workers.model_workers import AnyDraft, Sources

OTHER_MODELS = (
    "a worker has other models, or other versions of libraries or add-ons, than the process that started it; do not "
    "change them while they are used, and install the same versions on all machines"
)

_kept: dict[tuple[Sources, AnyDraft], SpeculativeDecoder] = {}


def decoder_of(sources: Sources, draft: ModelSource | None = None) -> SpeculativeDecoder:
    """Returns the decoder of the target with the draft of this name (see `Sources.draft_named`), loaded at the first
    call.

    Decoders of one target share it. Those of other sources are dropped.
    """
    chosen = sources.draft_named(draft)
    for other in [key for key in _kept if key[0] != sources]:
        del _kept[other]
    if (sources, chosen) not in _kept:
        first = next(iter(_kept.values()), None)
        target, tokenizer = (sources.target, None) if first is None else (first.target, first.tokenizer)
        _kept[sources, chosen] = SpeculativeDecoder.from_pretrained(
            target, chosen, device=sources.device, dtype=sources.dtype, tokenizer=tokenizer,
            **keywords_of(sources.loading, target, chosen),
        )  # fmt: skip
    return _kept[sources, chosen]


def texts_identity(decoder: SpeculativeDecoder) -> str:
    """Returns what texts depend on besides their settings: weights, tokenizer, and versions of what computes them."""
    models = [model for model in (decoder.target, decoder.draft) if not isinstance(model, DraftSource)]
    facts = {
        "models": [[model_fingerprint(model), str(model.dtype), attention_kind(model)] for model in models],
        "tokenizer": tokenizer_fingerprint(decoder.tokenizer),
        "versions": [ENGINE_VERSION, torch.__version__, transformers.__version__],
        "device": decoder.device.type,
        "lean": [run.startswith("lean") for run in decoder.run_by.values()],
    }
    return json.dumps(facts)


def check_identity(decoder: SpeculativeDecoder, identity: str) -> None:
    """Raises UsageError where a worker's models or libraries are not those of the process that hands out work."""
    if texts_identity(decoder) != identity:
        raise UsageError(OTHER_MODELS)
