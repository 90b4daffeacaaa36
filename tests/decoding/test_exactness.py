"""Exactness of whole texts: in distribution, token for token, and independent of the batch.

Only the decoder's public interface is used, and uncached forward passes to compare with. Tiny random models in float64,
so that differences in rounding between a verification and a single step do not matter.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import chisquare
from torch import Tensor
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from fsd_calib.tasks import load_task
from fsd_data import pair_paths
from fsd_decoding import noise
from fsd_decoding.adaptive import Phase
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.engine.result import Result
from fsd_decoding.rules import RULES
from fsd_decoding.sampling import Sampling
from fsd_decoding.tree_shape import TreeShape
from support.models.tiny_models import EOS, word_tokenizer
from support.models.tiny_pair import ragged_prompts, related, tiny_decoder

# --- the distribution over all continuations ---------------------------------------------------------

WORDS, STEPS, PROMPT = 5, 3, [2, 4, 3]
DECODINGS = {1: 600, 8: 2000}  # batch size -> texts
PLAIN = Sampling(1.0)
WARPED = [Sampling(0.6), Sampling(1.0, top_k=3), Sampling(1.0, top_p=0.8), Sampling(1.4, top_k=4, top_p=0.9)]
TREES = [TreeShape(2, 5), TreeShape(3, 12), TreeShape(5, 5)]  # the last with all five words as children of a node
LAWS = [
    *product(("sd", "sd-block", "coupled"), (1, 4, 7), (1, 8), (PLAIN,), (None,)),
    *product(("sd", "sd-block", "coupled"), (4,), (8,), WARPED, (None,)),
    *product(("sd",), (3,), (8,), (PLAIN,), TREES),
    *product(("sd",), (2,), (8,), WARPED, (TreeShape(4, 7),)),
]
FALSE_ALARM = 1e-6 / (len(LAWS) + len([PLAIN, *WARPED]))  # of each, so 1e-6 of them all


def endless_decoder(seed: int) -> SpeculativeDecoder:
    """A vocabulary of five words, none of which ends a text, each with a substantial probability."""
    pair = related(seed=2, spread=0.2, layers=1, vocab_size=WORDS, eos_token_id=[WORDS])
    with torch.no_grad():
        for model in pair:
            model.get_output_embeddings().weight.mul_(0.125)
    return SpeculativeDecoder(*pair, word_tokenizer(WORDS), seed=seed)


def law(model: Any, sampling: Sampling) -> NDArray[np.float64]:
    """The probability of each of the WORDS ** STEPS continuations in lexical order, by uncached forward passes."""
    every = torch.tensor(list(product(range(WORDS), repeat=STEPS)))
    prompts = torch.tensor(PROMPT).expand(len(every), -1)
    with torch.inference_mode():
        logits = model(torch.cat([prompts, every], 1), use_cache=False).logits[:, len(PROMPT) - 1 : -1]
    logged = torch.log_softmax(warp(logits.reshape(-1, WORDS), sampling), -1).view_as(logits)
    chosen: Tensor = logged.gather(-1, every[:, :, None]).sum((1, 2))
    return chosen.exp().numpy()


def warp(logits: Tensor, sampling: Sampling) -> Tensor:
    steps = LogitsProcessorList([TemperatureLogitsWarper(sampling.temperature)])
    if sampling.top_k is not None:
        steps.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p is not None:
        steps.append(TopPLogitsWarper(sampling.top_p))
    actual: Tensor = steps(torch.empty((len(logits), 0), dtype=torch.int64), logits)  # type: ignore[arg-type]
    return actual


def p_value(results: list[Result], expected: NDArray[np.float64]) -> float:
    """The p-value of the texts under the law; 0 where one of them is impossible."""
    places = [int("".join(map(str, r.tokens)), WORDS) for r in results]
    counts = np.bincount(places, minlength=len(expected))
    if counts[expected == 0].any():
        return 0.0
    cells = merge_rare_cells(np.stack([counts, expected * len(results)]))
    return float(chisquare(*cells).pvalue)


def merge_rare_cells(cells: NDArray[np.float64], least: float = 5.0) -> NDArray[np.float64]:
    """(counts, expected counts) x cells, with the rarest cells merged so that each expects `least` or more."""
    cells = cells[:, np.argsort(cells[1])]
    small = int(np.searchsorted(np.cumsum(cells[1]), least)) + 1
    small = max(small, int((cells[1] < least).sum()))
    return np.concatenate([cells[:, :small].sum(1, keepdims=True), cells[:, small:]], 1)


def texts(
    count: int, rule: str, draft_length: int, batch_size: int, sampling: Sampling, seed: int,
    tree: TreeShape | None = None,
) -> list[Result]:  # fmt: skip
    return endless_decoder(seed).with_config(tree=tree).generate(
        [PROMPT] * count, STEPS, sampling.temperature, sampling.top_k, sampling.top_p, rule=rule,
        threshold=math.inf, draft_length=draft_length, batch_size=batch_size,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "draft_length", "batch_size", "sampling", "tree"), LAWS, ids=str)
def test_lossless_rules_write_the_targets_distribution(
    rule: str, draft_length: int, batch_size: int, sampling: Sampling, tree: TreeShape | None
) -> None:
    seed = LAWS.index((rule, draft_length, batch_size, sampling, tree))  # different noise for each
    results = texts(DECODINGS[batch_size], rule, draft_length, batch_size, sampling, seed, tree)
    assert all(len(r.tokens) == STEPS for r in results)
    most = len(results) * (STEPS - STEPS // (draft_length + 1))  # all but the bonus tokens
    assert 0.4 * most < sum(r.accepted for r in results) < (0.95 if tree is None else 1.0) * most
    assert p_value(results, law(endless_decoder(0).target, sampling)) > FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [PLAIN, *WARPED], ids=str)
def test_as_many_texts_from_the_draft_would_be_detected(sampling: Sampling) -> None:
    """The power of the test above at its smallest number of texts.

    `fsd` at T = ∞ writes the draft's distribution where L = 7, and takes every second token from it where L = 1.
    """
    pair = endless_decoder(0)
    drafted = texts(min(DECODINGS.values()), "fsd", 7, 100, sampling, seed=0)
    assert p_value(drafted, law(pair.draft, sampling)) > FALSE_ALARM
    mixed = texts(min(DECODINGS.values()), "fsd", 1, 100, sampling, seed=0)
    for results in (drafted, mixed):
        assert p_value(results, law(pair.target, sampling)) < FALSE_ALARM


PHASED = [*product(("fsd", "fsd-sd", "fsd-coupled"), ((1, 3), (3, 1)))]  # the second phase begins with the prompt's end


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "markers"), PHASED, ids=str)
def test_outside_a_phase_texts_have_the_targets_distribution(rule: str, markers: tuple[int, int]) -> None:
    """And inside the draft's, where every drafted token is accepted. A false alarm has a probability of 1e-6."""
    pair, seed = endless_decoder(0), PHASED.index((rule, markers))
    results = endless_decoder(100 + seed).generate(
        [PROMPT] * 3000, STEPS, 1.0, rule=rule, threshold=Phase(1e9, -1, *markers), draft_length=7, batch_size=100
    )
    laws = law_by_phase(pair.target, pair.draft, markers), law_by_phase(pair.draft, pair.target, markers)
    assert p_value(results, laws[0]) > 1e-6 / len(PHASED)
    for other in (laws[1], law(pair.target, PLAIN), law(pair.draft, PLAIN)):
        assert p_value(results, other) < 1e-6


def law_by_phase(outside: Any, inside: Any, markers: tuple[int, int]) -> NDArray[np.float64]:
    """As `law`, of one model outside the phase and of another one inside."""
    every = np.array(list(product(range(WORDS), repeat=STEPS)))
    steps = [np.ones(len(every))]
    is_inside = np.full(len(every), [token for token in PROMPT if token in markers][-1] == markers[0])
    for step in range(STEPS):
        of_both = [_step(model, every, step) for model in (outside, inside)]
        steps.append(np.where(is_inside, of_both[1], of_both[0]))
        is_inside = np.where(is_inside, every[:, step] != markers[1], every[:, step] == markers[0])
    return np.asarray(np.prod(steps, 0))


def _step(model: Any, every: NDArray[np.int64], step: int) -> NDArray[np.float64]:
    """The probability of one token of each continuation, given those before it."""
    tokens = torch.cat([torch.tensor(PROMPT).expand(len(every), -1), torch.from_numpy(every)], 1)
    with torch.inference_mode():
        logits = model(tokens, use_cache=False).logits[:, len(PROMPT) - 1 + step]
    probabilities: Tensor = torch.softmax(logits, -1).gather(1, tokens[:, len(PROMPT) + step, None])
    return probabilities[:, 0].numpy()


# --- token for token ---------------------------------------------------------------------------------

NEW, TEXTS = 24, 100
TEMPERATURES = [0.0, 0.9]
SAME_TEXT = [*product(("coupled", "fsd", "fsd-coupled"), TEMPERATURES), ("sd", 0.0), ("sd-block", 0.0), ("fsd-sd", 0.0)]


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    return tiny_decoder()


@pytest.fixture(scope="module")
def alone(decoder: SpeculativeDecoder) -> dict[float, list[Result]]:
    return {t: decoder.generate(ragged_prompts(TEXTS), NEW, t, rule="target", batch_size=TEXTS) for t in TEMPERATURES}


@pytest.mark.thinned(every=13)
@pytest.mark.parametrize("draft_length", [1, 3, 8])
@pytest.mark.parametrize(("rule", "temperature"), SAME_TEXT)
def test_lossless_rules_write_the_targets_own_text(
    decoder: SpeculativeDecoder, alone: dict[float, list[Result]], rule: str, temperature: float, draft_length: int
) -> None:
    actual = decoder.generate(
        ragged_prompts(TEXTS), NEW, temperature, rule=rule, threshold=-1e-9, draft_length=draft_length, batch_size=60
    )
    assert [r.tokens for r in actual] == [r.tokens for r in alone[temperature]]
    assert [r.finish_reason for r in actual] == [r.finish_reason for r in alone[temperature]]


def test_the_compared_texts_vary(decoder: SpeculativeDecoder, alone: dict[float, list[Result]]) -> None:
    """Some end early and some do not, many tokens are drafted, and noise or a threshold changes many texts."""
    for temperature, results in alone.items():
        ends = [r.finish_reason for r in results]
        assert min(ends.count("eos"), ends.count("length")) > TEXTS / 10
        exact, wild = (
            decoder.generate(ragged_prompts(TEXTS), NEW, temperature, rule="fsd-coupled", threshold=t)
            for t in (-1e-9, 0.2)
        )
        assert 0.3 < sum(r.accepted for r in exact) / sum(r.emitted for r in exact) < 0.8
        assert sum(a.tokens != b.tokens for a, b in zip(wild, results, strict=True)) > 0.4 * TEXTS
    assert sum(a.tokens != b.tokens for a, b in zip(*alone.values(), strict=True)) > 0.4 * TEXTS


@pytest.mark.thinned(every=6)
@pytest.mark.parametrize("draft_length", [1, 4])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.9), Sampling(0.9, top_k=5)], ids=str)
def test_without_a_threshold_fsd_writes_the_drafts_text_but_for_the_bonus(
    decoder: SpeculativeDecoder, sampling: Sampling, draft_length: int
) -> None:
    """At T = ∞ every (L + 1)th token is the target's choice given the text so far, every other one the draft's."""
    prompts = ragged_prompts(60)
    actual = decoder.generate(
        prompts, NEW, sampling.temperature, sampling.top_k, rule="fsd", threshold=math.inf, draft_length=draft_length
    )
    disagreed = 0
    for key, (prompt, result) in enumerate(zip(prompts, actual, strict=True)):
        drafts, targets = (choices(m, prompt, result, sampling, key) for m in (decoder.draft, decoder.target))
        bonus = [at % (draft_length + 1) == draft_length for at in range(result.emitted)]
        expected = [t if last else d for d, t, last in zip(drafts, targets, bonus, strict=True)]
        assert result.tokens == expected[: len(result.tokens)]
        assert (result.finish_reason == "eos") == (expected[-1] in EOS)
        assert result.accepted == bonus.count(False)
        assert result.rounds == math.ceil(result.emitted / (draft_length + 1))
        disagreed += sum(d != t for d, t in zip(drafts, targets, strict=True))
    assert disagreed > 200  # else the test could not tell the two models apart


def choices(model: Any, prompt: list[int], result: Result, sampling: Sampling, key: int) -> list[int]:
    """The choices of `model` at every position of a text, from one uncached forward pass."""
    first = len(prompt)
    read = torch.tensor([prompt + result.tokens])[:, : first + result.emitted - 1]
    with torch.inference_mode():
        logits = model(read, use_cache=False).logits[:, first - 1 :]
    positions = torch.arange(first, first + result.emitted)[None]
    warped = sampling.warp(logits, torch.tensor([prompt + result.tokens]), positions)
    chosen = sampling.draw(warped, noise.problem_keys(0, [key]), positions)
    says: list[int] = chosen[0].tolist()
    return says


# --- independence of the batch -----------------------------------------------------------------------


@pytest.mark.thinned(every=9)
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("rule", RULES)
def test_results_do_not_depend_on_the_batch(decoder: SpeculativeDecoder, rule: str, temperature: float) -> None:
    """The result is the same alone, in a batch of 16, after refills, and in another order."""
    prompts = ragged_prompts(40)
    thresholds = [0.05 * (i % 8) for i in range(40)]

    def run(order: Sequence[int], batch_size: int) -> dict[int, Result]:
        actual = decoder.generate(
            [prompts[i] for i in order], NEW, temperature, rule=rule, threshold=[thresholds[i] for i in order],
            draft_length=4, ids=order, batch_size=batch_size,
        )  # fmt: skip
        return dict(zip(order, actual, strict=True))

    together = run(range(40), 16)  # the last 24 in refilled rows
    for order, batch_size in ((range(36, 40), 1), (range(39, -1, -1), 9), (range(24, 40), 16)):
        for i, result in run(order, batch_size).items():
            assert_same(result, together[i])


def assert_same(one: Result, other: Result) -> None:
    """Compares every field; the ends of the interval may differ in rounding."""
    assert one.interval == pytest.approx(other.interval, abs=1e-9)
    assert dataclasses.replace(one, interval=other.interval) == other


# --- fp32 --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "temperature"), [("sd", 0.0), ("fsd", 0.0), ("coupled", 0.6), ("fsd-coupled", 0.6)])
def test_in_single_precision_rounding_changes_few_texts(rule: str, temperature: float) -> None:
    """Of the bundled pair, 200 of 200 texts were the target's own where that was measured; 90 % are on any machine."""
    pair = SpeculativeDecoder.from_pretrained(*pair_paths(), device="cpu", dtype=torch.float32)
    task = load_task("arithmetic", seed=424_242, limit=24)

    def written(rule: str, **how: Any) -> list[str]:
        prompts = [problem.prompt for problem in task.problems]
        results = pair.generate(
            prompts, task.max_new_tokens, temperature, rule=rule, batch_size=24, stop=task.stop, **how
        )
        return [result.text for result in results]

    how = {"threshold": -1e-9} if "fsd" in rule else {}
    alone, lossless = written("target"), written(rule, draft_length=8, **how)
    assert sum(one == other for one, other in zip(alone, lossless, strict=True)) >= 0.9 * len(alone)
