"""train(): from traces to a predictor on disk, and the card that says how good it is.

Knows what training is asked for, and what it refuses. The work is `trainer.py`'s.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from fsd_collectors.collection.protocols import Progress
from fsd_collectors.manifest import Manifest
from fsd_collectors.replay.cases import check_rule
from fsd_collectors.replay.share_quantiles import check_divergence
from fsd_collectors.store.reading import Traces
from fsd_decoding.acceptance.rules import rule_named
from fsd_decoding.errors import UsageError
from fsd_decoding.loading import load_tokenizer
from fsd_decoding.models.fingerprint import tokenizer_fingerprint
from fsd_predictors import files
from fsd_predictors.datasets.split import divide
from fsd_predictors.facts import check_version
from fsd_predictors.features.token_kinds import TokenKinds
from fsd_predictors.models.registry import MODELS
from fsd_predictors.predictor import Predictor
from fsd_predictors.training.trainer import STEPS, Trainer


def train(
    traces: Traces, out: str | os.PathLike[str], kind: str = "boosted", rule: str = "fsd-coupled",
    divergences: Sequence[str] = ("js",), *, trials: int = 8, seed: int = 0, limit: int | None = None,
    tokenizer: Any = None, progress: Progress | None = None,
) -> Predictor:  # fmt: skip
    """Trains a predictor on the traces' tuning problems and writes it, with a card, into the folder `out`.

    Args:
        traces: along the target.
        kind: of its models, one of `models.MODELS`.
        rule, divergences: what it shall be used with; it serves every T of each divergence.
        trials: settings that are tried for each of the two models; 0: their defaults.
        limit: use at most so many problems.
        tokenizer: the target's; by default it is loaded from where the traces say that the target is.

    Raises:
        UsageError: traces that are on-policy, of other formulas or another tokenizer, of too few problems, or whose
            drafted tokens are all accepted or all rejected; no such kind, rule or divergence; or a folder that cannot
            be written or holds something else.
    """
    names = tuple(dict.fromkeys(divergences))
    _check(traces, kind, rule, names)
    files.check_place(Path(out))
    ids = divide(traces, limit)
    kinds = TokenKinds.of(_tokenizer(traces.manifest, tokenizer), traces.manifest.eos)
    with progress.step("training", STEPS) if progress else nullcontext(lambda done: None) as done:
        predictor, card = Trainer(traces, kind, rule, names, ids, kinds, trials, seed).train(done)
        predictor.save(out, card)
    return predictor


def _check(traces: Traces, kind: str, rule: str, divergences: Sequence[str]) -> None:
    if traces.manifest.way != "along-target":
        raise UsageError(
            f"these traces are {traces.manifest.way}; training needs the target's own text: collect some along-target, "
            "fsd-collect's default way"
        )
    check_version("the traces'", traces.manifest.divergence_version, "collect again")
    if kind not in MODELS:
        raise UsageError(f"kind {kind!r} is unknown; train one of {', '.join(MODELS)}")
    check_rule(rule)
    if not rule_named(rule).fuzzy:
        raise UsageError(f"rule {rule!r} has no T; train for fsd-{rule}, which is {rule} where T < 0")
    if not divergences:
        raise UsageError("divergences are empty; name one at least")
    for name in divergences:
        check_divergence(traces, name)


def _tokenizer(manifest: Manifest, given: Any) -> Any:
    """The one that the traces were collected with."""
    tokenizer = load_tokenizer(manifest.target.id) if given is None else given
    if tokenizer_fingerprint(tokenizer) != manifest.tokenizer:
        raise UsageError(
            f"the traces were collected with the tokenizer of {manifest.target.id!r}, this is another; give that one"
        )
    return tokenizer
