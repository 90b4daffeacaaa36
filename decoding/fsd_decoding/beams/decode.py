"""Decoding of prompts to beams: what it cannot be asked for, and the models with their caches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fsd_common.errors import UsageError
from fsd_decoding.batch import Request
from fsd_decoding.beams.reading import ForestReader
from fsd_decoding.beams.rounds import BeamRounds, BeamRow, BeamWork
from fsd_decoding.beams.settings import BeamSettings
from fsd_decoding.decoding_setting import DecodingSetting
from fsd_decoding.divergence import check_name
from fsd_decoding.drafters.base import DraftSource
from fsd_decoding.graphs.callers import EagerCaller
from fsd_decoding.models.forward import has_states
from fsd_decoding.models.runner import ModelRunner

RULES_WITHOUT, RULES_WITH = ("target", "coupled", "fsd-coupled"), ("target", "sd", "fsd-sd")
"""The rules by which beams are decoded without and with replacement."""


def check_beams(setting: DecodingSetting, settings: BeamSettings, target: Any, draft: Any) -> None:
    """Checks that beams can be decoded so.

    Args:
        setting: how texts are decoded.
        settings: how many beams, and how they are drafted.
        target, draft: the models, as a decoder has them.

    Raises:
        UsageError: they cannot.
    """
    for obstacle in _obstacles(setting, settings, target, draft):
        raise UsageError(f"beams is {settings.beams}, and {obstacle}")
    if setting.rule.bounds_score:
        check_name(setting.criterion.score)


def _obstacles(setting: DecodingSetting, settings: BeamSettings, target: Any, draft: Any) -> Iterator[str]:
    """Yields what stands against beams, and the way out, as the rest of a sentence."""
    rule, sampling = setting.rule, setting.sampling
    greedy = sampling.greedy and not settings.replacement
    known = RULES_WITH if settings.replacement else RULES_WITHOUT + RULES_WITH[1:] * greedy
    if rule.name not in known:
        kind = "with replacement" if settings.replacement else "without replacement"
        yield f"rule {rule.name!r} does not judge beams drawn {kind}; use one of {', '.join(known)}"
    if settings.replacement and sampling.greedy:
        yield "at temperature 0 nothing is drawn; set a temperature above 0, or give replacement=False"
    if settings.early_stopping is not False and (settings.replacement or not sampling.greedy):
        yield f"early_stopping is {settings.early_stopping!r}, which ends beam search at temperature 0; leave it out"
    if sampling.repetition_penalty != 1.0 or sampling.processors:
        yield (
            "a repetition penalty or logits processors read the text before each token, of which there are several; "
            "leave them out"
        )
    if not rule.drafts:
        drafts: Sequence[Any] = []
    else:
        drafts = [draft]
        if isinstance(draft, DraftSource):
            yield f"{type(draft).__name__} drafts single texts alone; draft with a model, or use rule 'target'"
        if setting.tree is not None:
            yield "a tree is given, and beams are drafted as a forest of their own; give tree='chain'"
        if setting.stop_policy is not None:
            yield f"{type(setting.stop_policy).__name__} ends drafts of single texts; leave the stop policy out"
    if setting.threshold_policy is not None:
        yield f"{type(setting.threshold_policy).__name__} moves T along a single text; give T as a number"
    for model in (target, *drafts):
        if has_states(model):
            kind = model.config.model_type
            yield f"{kind} has recurrent layers, whose state is that of one text; use a model with attention alone"


def decode_beams(
    models: Sequence[Any],
    lean: bool,
    vocabulary: int,
    requests: Sequence[Request],
    work: BeamWork,
    batch_size: int,
    begun: Iterator[Request],
) -> Iterator[BeamRow]:
    """Yields the rows of prompts as they are done.

    Args:
        models: the target, and the draft if something is to be drafted.
        lean: whether the lean forward pass may run them.
        vocabulary: number of token ids that they share.
        requests: the prompts.
        work: how they are decoded.
        batch_size: the most prompts at a time.
        begun: the prompts to be decoded, each taken when a row is free for it.
    """
    rows, settings = min(batch_size, len(requests)), work.settings
    prompt = max(len(request.prompt) for request in requests)
    shared, most = (
        EagerCaller().size(prompt + max(nodes(r.max_new_tokens, r.draft_length) for r in requests))
        for nodes in (settings.shared, settings.nodes)
    )
    readers = [
        ForestReader(ModelRunner(model, rows, shared, vocabulary, lean), number, most)
        for number, model in enumerate(models)
    ]
    yield from BeamRounds(readers[0], readers[1] if len(readers) > 1 else None, rows, work).run(begun)
