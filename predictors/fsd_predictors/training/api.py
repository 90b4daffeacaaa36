"""`train`: trains a predictor on traces and saves it, with a card that reports its quality."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from fsd_collectors.manifest import Manifest
from fsd_collectors.replay.cases import REPLAYABLE, check_divergence, check_rule
from fsd_collectors.store.reading import Traces
from fsd_common.errors import UsageError
from fsd_common.progress.base import Progress
from fsd_decoding.acceptance import rule_named
from fsd_decoding.loading import load_tokenizer
from fsd_decoding.model_options import ModelOptions
from fsd_decoding.models.fingerprint import tokenizer_fingerprint
from fsd_predictors import files
from fsd_predictors.facts import check_version
from fsd_predictors.features import TokenKinds
from fsd_predictors.models.registry import MODELS
from fsd_predictors.predictor import Predictor
from fsd_predictors.training.rows import split_problems
from fsd_predictors.training.trainer import STEPS, Trainer


def train(
    traces: Traces, out: str | os.PathLike[str], kind: str = "boosted", rule: str = "fsd-coupled",
    divergences: Sequence[str] = ("js",), *, trials: int = 8, seed: int = 0, limit: int | None = None,
    tokenizer: Any = None, progress: Progress | None = None,
) -> Predictor:  # fmt: skip
    """Trains a predictor on the traces' tuning problems and writes it, with a card, into the folder `out`.

    Args:
        traces: traces collected along the target.
        out: folder to write; an earlier predictor there is replaced.
        kind: kind of its two models, a key of `models.registry.MODELS`.
        rule: acceptance rule the predictor will be used with.
        divergences: divergences it will be used with; it serves every threshold on each of them.
        trials: Optuna trials for each of the two models; 0 takes the default settings.
        seed: seed of the training rows, of the tuning and of the models.
        limit: maximum number of problems to use.
        tokenizer: the target's tokenizer; by default loaded from the target that the traces name.
        progress: receives the progress of the training steps.

    Raises:
        UsageError: the traces are on-policy, were made with another version of the divergences or another tokenizer,
            hold too few problems, or only drafted tokens that are all accepted or all rejected; the kind, rule or
            divergence is unknown; the folder cannot be written or holds other files.
    """
    names = tuple(dict.fromkeys(divergences))
    _check(traces, kind, rule, names)
    files.check_place(Path(out))
    ids = split_problems(traces, limit)
    kinds = TokenKinds.of(_tokenizer(traces.manifest, tokenizer), traces.manifest.eos)
    with progress.step("training", STEPS) if progress else nullcontext(lambda done: None) as done:
        predictor, card = Trainer(traces, kind, rule, names, ids, kinds, trials, seed).train(done)
        predictor.save(out, card)
    return predictor


def _check(traces: Traces, kind: str, rule: str, divergences: Sequence[str]) -> None:
    if traces.manifest.way != "along-target":
        raise UsageError(
            f"these traces are {traces.manifest.way}; training needs traces along the target: collect some with "
            "fsd-collect, without --rule"
        )
    check_version("the traces'", traces.manifest.divergence_version, "collect again")
    if kind not in MODELS:
        raise UsageError(f"kind {kind!r} is unknown; choose one of {', '.join(MODELS)}")
    rule_named(rule, lambda known: known.fuzzy and known.name in REPLAYABLE)
    check_rule(rule)
    if not rule_named(rule).fuzzy:
        raise UsageError(f"rule {rule!r} has no threshold; train for fsd-{rule}, which equals {rule} at T < 0")
    if not divergences:
        raise UsageError("no divergences are given; name at least one")
    for name in divergences:
        check_divergence(traces, name)


def _tokenizer(manifest: Manifest, tokenizer: Any) -> Any:
    """Returns the tokenizer that the traces were collected with, loading it where none is given."""
    if tokenizer is None:
        tokenizer = load_tokenizer(manifest.target.id, ModelOptions(manifest.target.revision))
    if tokenizer_fingerprint(tokenizer) != manifest.tokenizer:
        raise UsageError(
            f"the traces were collected with the tokenizer of {manifest.target.id!r}, this is another; pass that one"
        )
    return tokenizer
