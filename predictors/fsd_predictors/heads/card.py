"""card.md, the model card of an EAGLE head, and the drafts that it reports on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fsd_common.pages.blocks import Sheet
from fsd_common.pages.markdown import table
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.drafters.eagle_head import Eagle3Head
from fsd_decoding.tree_shape import TreeShape
from fsd_predictors.heads.source import Source

_DRAFTS = {"chain of 3": (3, None), "chain of 5": (5, None), "tree 5 deep, 16 nodes": (5, TreeShape(4, 16))}
_TEXT = """# EAGLE-3 head for {target}

Drafts {known} of the target's tokens from its hidden states {layers}. Load it with `Eagle(folder)`.

It was trained on {trained_on:,} tokens that the target wrote itself for problems of the tuning part of task {task}:
{epochs} epochs by {steps} steps of training-time test, {batch} texts at a time, with a learning rate up to {rate:.2g}
and seed {seed}. The figures below are of {held_out} other problems of that part.

{along}

{drafts}
"""


def drafts(target: Any, head: Eagle3Head, tokenizer: Any, source: Source, count: int) -> dict[str, float]:
    """Returns tokens per round of lossless greedy decoding of the first `count` prompts, by what is drafted."""
    found = {}
    for name, (length, tree) in _DRAFTS.items():
        decoder = SpeculativeDecoder(target, head, tokenizer, rule="coupled", draft_length=length, tree=tree)
        results = decoder.generate(list(source.prompts[:count]), source.max_new_tokens, stop=source.stop)
        found[name] = sum(r.emitted for r in results) / max(1, sum(r.rounds for r in results))
    return found


def card(record: Mapping[str, Any]) -> str:
    """Returns the card.

    Args:
        record: what training.json holds.
    """
    recipe = record["recipe"]
    known = "all" if recipe["vocabulary"] is None else recipe["vocabulary"]
    return _TEXT.format(
        target="/".join(Path(record["target"]).parts[-2:]), layers=", ".join(map(str, recipe["layers"])), known=known,
        task=record["source"]["name"], trained_on=record["trained_on"], held_out=record["held_out"],
        epochs=recipe["epochs"], steps=recipe["steps"], batch=recipe["batch_size"], rate=recipe["learning_rate"],
        seed=recipe["seed"],
        along=_markdown(by_epoch(record)), drafts=_markdown(by_draft(record)),
    )  # fmt: skip


def by_epoch(record: Mapping[str, Any]) -> Sheet:
    """Returns the table of loss and agreement after each epoch."""
    numbers = range(1, record["recipe"]["steps"] + 1)
    return Sheet(
        "Along the target's text",
        ("epoch", *(f"loss {n}" for n in numbers), *(f"agreement {n}" for n in numbers)),
        tuple(
            (str(number), *map(_cell, [*epoch["loss"], *epoch["agreement"]]))
            for number, epoch in enumerate(record["history"], 1)
        ),
        "Loss: the cross-entropy of q under the target's p, in nats, for the 1st, 2nd, … token drafted after one "
        "another. Agreement: the share of places where q and p have the same likeliest token. "
        "-: there is none, as all texts are too short.",
    )


def by_draft(record: Mapping[str, Any]) -> Sheet:
    """Returns the table of tokens per round."""
    return Sheet(
        "Decoding",
        ("draft", "tokens per round"),
        tuple((name, f"{value:.2f}") for name, value in record["drafts"].items()),
        "Lossless and greedy: the drafted tokens that are accepted in a round, and one of the target's own.",
    )


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _markdown(sheet: Sheet) -> str:
    return f"## {sheet.title}\n\n{table(sheet)}\n\n{sheet.note}"
