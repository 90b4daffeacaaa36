"""The tables of traces, from texts that were served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fsd_calib.vllm_plugin.telemetry.texts import Round, ServedText
from fsd_collectors.collection.on_policy import DraftedTokens, Drafts
from fsd_collectors.collection.portions import Completions
from fsd_collectors.manifest import Manifest

Array = NDArray[Any]

_OF_STEP = ("judged", "fuzzy", "most_likely")  # the facts that every `Step` has
_OF_NOISE = ("target_choice", "same_token", "sd_accepts", "sd_probability")  # unknown of sampled tokens


@dataclass(frozen=True)
class Served:
    """A finished text, with what the table of completions needs of it."""

    text: str  # cut before a stop string
    tokens: list[int]  # without the token that ended it
    finish_reason: str
    emitted: int  # tokens, one that ended it included
    drafted: int
    accepted: int
    parts: Sequence[Round]
    prompt: Sequence[int]
    greedy: bool

    @classmethod
    def of(cls, text: ServedText, tokenizer: Any) -> Self:
        """Describes a finished text, which `tokenizer` decodes."""
        tokens = text.tokens[:-1] if text.reason == "eos" else text.tokens
        decoded = tokenizer.decode(tokens, skip_special_tokens=True)
        if text.reason == "stop":
            places = [place for stop in text.request.stops if (place := decoded.find(stop)) >= 0]
            decoded = decoded[: min(places, default=None)]
        return cls(decoded, tokens, text.reason, len(text.tokens), text.drafted, text.accepted, text.rounds,
                   text.request.prompt, text.request.greedy)  # fmt: skip

    @property
    def rounds(self) -> int:
        return len(self.parts)


def tables_of(manifest: Manifest, measured: Sequence[str], texts: Sequence[Served], first: int) -> dict[str, pa.Table]:
    """Returns the tables of a portion.

    Args:
        manifest: of the run.
        measured: names of the columns that follow the first three facts of a drafted token.
        texts: of the portion.
        first: number of the first of them in the run.
    """
    count = len(texts)
    problems, unknown = range(first, first + count), [None] * count
    done = Completions(manifest, problems, ["serving"] * count, [text.prompt for text in texts], texts, unknown)
    drafts = _drafts(texts)
    columns = (*_OF_STEP, *measured)
    facts = [np.empty((len(columns), 0), np.float32), *(part.facts for text in texts for part in text.parts)]
    first_tokens = np.cumsum(drafts.proposed) - drafts.proposed
    drafted = DraftedTokens.of(drafts.proposed, first_tokens, np.concatenate(facts, 1), None)
    named = _columns(manifest, dict(zip(columns, drafted.measured, strict=True)))
    sampled = ~np.array([text.greedy for text in texts], bool)[drafts.owner[drafted.round_]]
    named |= {name: np.ma.masked_array(named[name], sampled) for name in _OF_NOISE}
    return {"tokens": done.on_policy(drafts, drafted, named), "completions": done.table()}


def _columns(manifest: Manifest, facts: dict[str, Array]) -> dict[str, Array]:
    """Returns the facts with the D that decided in its own column, which may differ in the last digit."""
    assert manifest.policy is not None
    return facts | {manifest.policy.divergence: facts["judged"]}


def _drafts(texts: Sequence[Served]) -> Drafts:
    parts = [(owner, number, part) for owner, text in enumerate(texts) for number, part in enumerate(text.parts)]
    values = [
        (owner, number, len(texts[owner].prompt) + part.begin, part.facts.shape[1], part.accepted)
        for owner, number, part in parts
    ]
    return Drafts(*np.array(values, np.int64).reshape(-1, 5).T)
