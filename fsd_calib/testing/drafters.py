"""What every drafter must do, as functions of its name that raise AssertionError where it does not."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import torch
from torch import Tensor

from fsd_calib.testing.promises import bundled, promise, promise_equal
from fsd_decoding.drafters.base import Drafter, DraftSource, layers_read
from fsd_decoding.drafters.named import drafter_named

SLOTS, VOCABULARY = 40, 24
_LENGTHS = (1, 2, 9, 5)  # of the prompts
_STEPS = 4
_CLOSE = 1e-4  # of log q


def every_step_has_a_distribution(given: str | DraftSource) -> None:
    """Logits are finite, in fp32 or fp64, and have the shape (B, 1, V)."""
    drafter, lengths = _begun(given, _texts()), torch.tensor(_LENGTHS)
    for step in range(_STEPS):
        logits = drafter.logits(_texts(), lengths, step, max(_LENGTHS) + step)
        wanted = len(_LENGTHS), 1, VOCABULARY
        promise(tuple(logits.shape) == wanted, f"logits have the shape {tuple(logits.shape)}; it must be {wanted}")
        promise(logits.dtype in (torch.float32, torch.float64), f"logits are {logits.dtype}; give fp32 or fp64")
        promise(bool(logits.isfinite().all()), "logits are not all finite")


def it_is_deterministic(given: str | DraftSource) -> None:
    """The same texts have the same logits."""
    drafter, lengths = _begun(given, _texts()), torch.tensor(_LENGTHS)
    first = _drafted(drafter, _texts(), lengths)
    promise(torch.equal(_drafted(drafter, _texts(), lengths), first), "a round that is drafted twice has other logits")


def rows_do_not_matter_to_each_other(given: str | DraftSource) -> None:
    """A row has the same logits whatever other rows there are."""
    lengths = torch.tensor(_LENGTHS)
    together = _drafted(_begun(given, _texts()), _texts(), lengths)
    for i in range(len(_LENGTHS)):
        one, length = _texts()[i : i + 1], lengths[i : i + 1]
        alone = _drafted(_begun(given, one, length), one, length)
        promise_equal(alone, together[i : i + 1], f"row {i} by itself has other logits", _CLOSE)


def only_the_text_before_matters(given: str | DraftSource) -> None:
    """What is in the slots beyond a row's text changes nothing: it is what an earlier round has left there."""
    lengths = torch.tensor(_LENGTHS)
    clean = _drafted(_begun(given, _texts()), _texts(), lengths)
    for step in range(_STEPS):
        beyond = torch.arange(SLOTS) >= lengths[:, None] + step
        other = torch.where(beyond, _texts(seed=1), _texts())
        found = _drafted(_begun(given, other), other, lengths, step + 1)[:, step]
        promise_equal(found, clean[:, step], f"what lies beyond the text changes the logits of step {step}", _CLOSE)


def rejected_tokens_are_forgotten(given: str | DraftSource) -> None:
    """A round that begins at a shorter length has the logits of a drafter that reads the text for the first time."""
    lengths, tokens, rng = torch.tensor(_LENGTHS), _texts(), Random(0)
    drafter = _begun(given, tokens)
    for round_ in range(5):
        _drafted(drafter, tokens, lengths)
        lengths = lengths + torch.tensor([rng.randint(0, _STEPS) for _ in _LENGTHS])
        tokens = torch.where(torch.arange(SLOTS) < lengths[:, None], tokens, _texts(seed=2 + round_))
        lengths = lengths + 1
        fresh = _drafted(_begun(given, tokens, lengths), tokens, lengths)
        promise_equal(_drafted(drafter, tokens, lengths), fresh, f"after {round_ + 1} rounds logits are others", _CLOSE)


def a_refilled_row_forgets_its_text(given: str | DraftSource) -> None:
    """A row that a new prompt goes into has the logits of that alone, and the others keep theirs."""
    lengths, tokens = torch.tensor(_LENGTHS), _texts()
    drafter = _begun(given, tokens)
    _drafted(drafter, tokens, lengths)
    tokens[2], lengths[2] = _texts(seed=5)[2], 3
    drafter.prefill(torch.tensor([2]), tokens[2:3], 2)
    fresh = _drafted(_begun(given, tokens, lengths), tokens, lengths)
    promise_equal(_drafted(drafter, tokens, lengths), fresh, "after a new prompt logits are others", _CLOSE)


def kept_rows_are_renumbered(given: str | DraftSource) -> None:
    """After `keep` the rows that are left have their logits, in the order that was given."""
    lengths, tokens, kept = torch.tensor(_LENGTHS), _texts(), [2, 0]
    drafter = _begun(given, tokens)
    whole = _drafted(drafter, tokens, lengths)
    drafter.keep(kept)
    promise_equal(_drafted(drafter, tokens[kept], lengths[kept]), whole[kept], "kept rows have other logits", _CLOSE)


def copied_rows_know_what_was_read(given: str | DraftSource) -> None:
    """After `copy`, a row whose prompt begins as another's needs to read the rest of it alone."""
    lengths, tokens = torch.tensor(_LENGTHS), _texts()
    drafter = _begun(given, tokens)
    _drafted(drafter, tokens, lengths)
    tokens[3, :6], lengths[3] = tokens[2, :6], 8
    drafter.catch_up()
    drafter.copy([2], [3], 6)
    drafter.prefill(torch.tensor([3]), tokens[3:4], 7, start=6)
    fresh = _drafted(_begun(given, tokens, lengths), tokens, lengths)
    promise_equal(_drafted(drafter, tokens, lengths), fresh, "a copied row has other logits", _CLOSE)


def texts_stay_the_targets(given: str | DraftSource) -> None:
    """Under `coupled` the bundled target writes its own texts, whatever drafts, in any batch."""
    bench = bundled()
    alone = bench.decoded({"rule": "target"})
    decoder = type(bench.decoder)(bench.decoder.target, _source(given), bench.decoder.tokenizer, rule="coupled")
    for batch_size in (len(bench.prompts), 3):
        found = decoder.generate(bench.prompts, bench.tokens, draft_length=bench.length, batch_size=batch_size)
        for place, (was, now) in enumerate(zip(alone, found, strict=True)):
            promise(
                now.tokens == was.tokens, f"text {place} is {now.text!r:.60}, and the target's own {was.text!r:.60}"
            )


CHECKS: tuple[Callable[[str], None], ...] = (
    every_step_has_a_distribution,
    it_is_deterministic,
    rows_do_not_matter_to_each_other,
    only_the_text_before_matters,
    rejected_tokens_are_forgotten,
    a_refilled_row_forgets_its_text,
    kept_rows_are_renumbered,
    copied_rows_know_what_was_read,
    texts_stay_the_targets,
)
"""For drafters that read the text: one that reads the target's hidden states is checked by `texts_stay_the_targets`."""


def _source(given: str | DraftSource) -> DraftSource:
    return drafter_named(given) if isinstance(given, str) else given


def _texts(seed: int = 0) -> Tensor:
    """(rows, slots) tokens with repetitions."""
    return torch.randint(2, 9, (len(_LENGTHS), SLOTS), generator=torch.Generator().manual_seed(seed))


def _begun(given: str | DraftSource, tokens: Tensor, lengths: Tensor | None = None) -> Drafter:
    """A drafter that has read prompts of these lengths."""
    source = _source(given)
    promise(not layers_read(source), "it reads the target's hidden states, of which there are none here")
    drafter = source.drafter(len(tokens), SLOTS, VOCABULARY)
    longest = max(_LENGTHS) if lengths is None else int(lengths.max())
    drafter.prefill(torch.arange(len(tokens)), tokens, longest - 1)
    return drafter


def _drafted(drafter: Drafter, tokens: Tensor, lengths: Tensor, steps: int = _STEPS) -> Tensor:
    """log q at every step of a round whose drafts are in `tokens` already: (B, steps, V)."""
    longest = int(lengths.max())
    with torch.inference_mode():
        logits = [drafter.logits(tokens, lengths, step, longest + step) for step in range(steps)]
    return torch.log_softmax(torch.cat(logits, 1), -1)
