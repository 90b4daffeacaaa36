"""What every score must do, as functions of its name that raise AssertionError where it does not."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fsd_calib.testing.promises import HOW, bundled, intervals_hold, lossless_below_zero, promise, promise_equal
from fsd_calib.testing.rounds import SAMPLINGS, random_round
from fsd_collectors.collection.likeliest import Likeliest
from fsd_collectors.collection.measures import Measures, Positions
from fsd_decoding.divergence import DistributionPair, log_softmax
from fsd_decoding.rules import rule_named
from fsd_decoding.scores import Seen, score_named

_ROWS, _COLUMNS, _TOKENS = 12, 20, 50
_CLOSE, _SHORT = 1e-9, 2e-3  # relative, of fp64, and of shorter types


def every_token_has_a_number(name: str) -> None:
    """Scores have the shape of the drafted tokens, and are numbers of 0 or more in fp32 or fp64, or infinite; `largest`
    bounds the finite ones."""
    score = score_named(name)
    for dtype in (torch.float32, torch.float64):
        seen = _seen(dtype)
        found = score.of(seen)
        promise(
            isinstance(found, Tensor) and found.shape == seen.drafted.shape,
            f"of() returned {_shown(found)}; it must be a tensor of the shape of seen.drafted, {(_ROWS, _COLUMNS)}",
        )
        promise(found.dtype in (torch.float32, torch.float64), f"of() returned {_shown(found)}; give fp32 or fp64")
        promise(not found.isnan().any().item(), f"{_count(found.isnan())} tokens have the score NaN")
        promise(not (found < 0).any().item(), f"{_count(found < 0)} tokens have a score below 0, so T < 0 keeps them")
        finite = found[found.isfinite()]
        promise(finite.numel() > 0, "all scores of random distributions are infinite")
        beyond = finite > score.largest * (1 + _SHORT)
        promise(not beyond.any().item(), f"scores go up to {finite.max().item():g}; largest says {score.largest:g}")


def batches_do_not_matter(name: str) -> None:
    """A token has the same score whatever else is scored with it, in whatever shape and memory layout."""
    score, seen = score_named(name), _seen(torch.float64)
    whole = score.of(seen)
    flat = score.of(_changed(seen, lambda values: values.flatten(0, 1)))
    promise_equal(flat, whole.flatten(), "scores of (N,) tokens differ from those of (B, L)", _CLOSE)
    turned = score.of(_changed(seen, lambda values: values.transpose(0, 1)))
    promise_equal(turned, whole.T, "scores of tensors that are not contiguous differ", _CLOSE)
    for row in range(0, _ROWS, 5):
        alone = score.of(_changed(seen, lambda values, row=row: values[row : row + 1, 3:4]))  # type: ignore[misc]
        promise_equal(alone, whole[row : row + 1, 3:4], "the score of a token by itself differs", _CLOSE)


def logits_are_known_up_to_a_constant(name: str) -> None:
    """Adding a number to all logits of a position changes no distribution, and no score."""
    score, seen = score_named(name), _seen(torch.float64)
    moved = Seen(seen.target_logits + 3.0, seen.draft_logits - 2.0, seen.drafted, seen.uniform)
    promise_equal(score.of(moved), score.of(seen), "a constant added to all logits changes the score", 1e-7)


def it_reads_what_it_says(name: str) -> None:
    """Where `reads_token` is False the score does not depend on x; where `reads_draft` is, not on q; where
    `reads_noise` is, it does not ask for u."""
    score, seen = score_named(name), _seen(torch.float64)
    found = score.of(seen)
    if not score.reads_token:
        other = Seen(seen.target_logits, seen.draft_logits, (seen.drafted + 1) % _TOKENS, seen.uniform)
        promise_equal(score.of(other), found, "the score depends on x, and reads_token is False")
    if not score.reads_draft:
        other = Seen(seen.target_logits, seen.draft_logits.flip(-1), seen.drafted, seen.uniform)
        promise_equal(score.of(other), found, "the score depends on q, and reads_draft is False")
    if not score.reads_noise:
        try:
            score.of(Seen(seen.target_logits, seen.draft_logits, seen.drafted, _no_noise))
        except _NoNoiseError:
            raise AssertionError("the score asks for u, and reads_noise is False") from None


def it_reads_no_more_tokens_than_it_says(name: str) -> None:
    """Where `reads_top` is a number, the score does not depend on how the rest of p and of q is spread over the tokens
    beyond so many of the likeliest: it is exact where traces hold as many log-probabilities."""
    score, seen = score_named(name), _changed(_seen(torch.float64), lambda values: values.flatten(0, 1))
    if score.reads_top is None:
        return
    likeliest = Likeliest.of(DistributionPair(*map(log_softmax, _both(seen))), max(score.reads_top, 1))
    p_x, q_x = (logits.softmax(-1).gather(-1, seen.drafted.unsqueeze(-1)).squeeze(-1) for logits in _both(seen))
    spread = Seen(*likeliest.logits(seen.drafted, p_x, q_x, _TOKENS), seen.drafted, seen.uniform)
    broken = f"the score depends on tokens beyond the {score.reads_top} likeliest, and reads_top is {score.reads_top}"
    promise_equal(score.of(spread), score.of(seen), broken, 1e-6)


def short_types_are_about_the_same(name: str) -> None:
    """Scores of logits in bfloat16 and fp32 are those of the same values in fp64, to rounding."""
    score = score_named(name)
    for dtype in (torch.bfloat16, torch.float32):
        short = _seen(dtype)
        exact = _changed(short, lambda values: values.double() if values.is_floating_point() else values)
        broken = f"of logits in {str(dtype).removeprefix('torch.')} the score is not that of their values in fp64"
        promise_equal(score.of(short), score.of(exact), broken, _SHORT)


def a_larger_threshold_keeps_more(name: str) -> None:
    """In a round, whatever is accepted at T is accepted at every larger T."""
    for sampling in SAMPLINGS:
        kept = None
        for threshold in (-1.0, 0.0, 0.05, 0.3, 0.9, 5.0, math.inf):
            accepted = rule_named("fsd-coupled").judge(random_round(sampling, threshold, name=name)).accepted
            promise(
                kept is None or not (kept & ~accepted).any().item(),
                f"under {sampling} a token that is accepted at a smaller T is rejected at T = {threshold:g}",
            )
            kept = accepted


def traces_hold_what_decoding_compares(name: str) -> None:
    """The column of traces has the values that decoding compares with T."""
    for sampling in SAMPLINGS:
        round_ = random_round(sampling, 0.1, name=name)
        length = round_.drafted.shape[1]
        at = Positions(
            round_.target_logits[:, :-1].flatten(0, 1), round_.draft_logits.flatten(0, 1), round_.drafted.flatten(),
            round_.target_choice[:, :-1].flatten(), round_.positions[:, :-1].flatten(),
            round_.keys[:, None].expand(-1, length, -1).flatten(0, 1),
        )  # fmt: skip
        measures = Measures([name], "raw", sampling)
        column = measures(at)[measures.columns.index(name)]
        promise_equal(column, round_.scores.flatten(), "traces have another score than decoding", 1e-5)


def below_zero_it_is_lossless(name: str) -> None:
    """At T < 0 the bundled pair writes the texts of the lossless rule, in as many rounds."""
    for setting in HOW.values():
        lossless_below_zero(bundled(), {**setting, "score": name}, rule_named(setting["rule"]).lossless)


def intervals_decode_equal(name: str) -> None:
    """Decoded again at another T of its interval, a text of the bundled pair is the same."""
    for setting in HOW.values():
        given = {**setting, "score": name}
        intervals_hold(bundled(), given, bundled().thresholds(name, setting))


CHECKS: tuple[Callable[[str], None], ...] = (
    every_token_has_a_number,
    batches_do_not_matter,
    logits_are_known_up_to_a_constant,
    it_reads_what_it_says,
    it_reads_no_more_tokens_than_it_says,
    short_types_are_about_the_same,
    a_larger_threshold_keeps_more,
    traces_hold_what_decoding_compares,
    below_zero_it_is_lossless,
    intervals_decode_equal,
)


class _NoNoiseError(Exception):
    """u was asked for."""


def _no_noise() -> Tensor:
    raise _NoNoiseError


def _seen(dtype: torch.dtype) -> Seen:
    """Random, related distributions at (12, 20) places, the last rows of which are special: a certain token, tokens
    that are impossible, equal distributions, uniform ones."""
    generator = torch.Generator().manual_seed(1)
    shape = _ROWS, _COLUMNS, _TOKENS
    target = 2 * torch.randn(shape, generator=generator, dtype=torch.float64)
    draft = target + torch.randn(shape, generator=generator, dtype=torch.float64)
    drafted = torch.multinomial(draft.softmax(-1).flatten(0, 1), 1, generator=generator).view(_ROWS, _COLUMNS)
    target[-4] = -math.inf
    target[-4, :, 7], drafted[-4, ::2] = 0.0, 7
    target[-3, :, ::2] = -math.inf
    draft[-2] = target[-2]
    target[-1], draft[-1] = 0.0, 0.0
    u = torch.rand(_ROWS, _COLUMNS, generator=generator, dtype=torch.float64)
    return Seen(target.to(dtype), draft.to(dtype), drafted, lambda: u)


def _both(seen: Seen) -> tuple[Tensor, Tensor]:
    return seen.target_logits, seen.draft_logits


def _changed(seen: Seen, change: Callable[[Tensor], Tensor]) -> Seen:
    """The same places, arranged otherwise."""
    assert seen.uniform is not None
    u = change(seen.uniform())
    return Seen(change(seen.target_logits), change(seen.draft_logits), change(seen.drafted), lambda: u)


def _count(mask: Tensor) -> str:
    return f"{int(mask.sum())} of {mask.numel()}"


def _shown(found: object) -> str:
    return f"a tensor of {found.dtype} {tuple(found.shape)}" if isinstance(found, Tensor) else f"{found!r:.60}"
