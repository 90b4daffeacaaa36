"""Decoding over trees: equal to plain Python, to the target's own text at T < 0, and to chains where a tree is one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from fsd_decoding import noise
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.divergence import divergence
from fsd_decoding.drafters.ngram import NGram
from fsd_decoding.engine.result import Result
from fsd_decoding.noise import Stream
from fsd_decoding.tree_shape import TreeShape
from fsd_decoding.trees import FIRST_CHILD
from support.models.tiny_models import EOS, FAMILIES, random_model, word_tokenizer
from support.models.tiny_pair import disturb, ragged_prompts, related, tiny_decoder

# Decoding over trees in plain Python: one text at a time, one uncached forward pass per node, from the formulas.

Path = tuple[int, ...]


@dataclass
class PlainText:
    """A decoded text with its statistics, in the words of `Result`."""

    tokens: list[int] = field(default_factory=list)
    finish_reason: str = "length"
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    bonus: int = 0
    interval: tuple[float, float] = (-math.inf, math.inf)


@dataclass(frozen=True)
class PlainTrees:
    """The settings of `PlainTrees.decode`; models are in float64."""

    target: Any
    draft: Any
    rule: str
    threshold: float
    shape: TreeShape
    depth: int
    temperature: float = 0.0

    def decode(self, prompt: list[int], number: int, new: int, eos: set[int]) -> PlainText:
        """Decodes one prompt, whose noise has this number."""
        keys = noise.problem_keys(0, [number])
        text = PlainText()
        while True:
            before = Path(prompt + text.tokens)
            tree = self.grow(before, keys, min(self.depth, new - len(text.tokens)))
            emitted, decisions, whole = self.walk(before, tree, keys)
            kept = emitted[: new - len(text.tokens)]
            ended = next((n for n, token in enumerate(kept) if token in eos), None)
            kept = kept if ended is None else kept[: ended + 1]
            text.rounds += 1
            text.drafted += sum(map(len, tree.values()))
            text.accepted += min(len(emitted) - 1, len(kept))
            text.bonus += whole and 1 < len(emitted) == len(kept)
            for score, spared in filter(None, decisions[: len(kept)]):
                low, high = text.interval
                text.interval = (max(low, score), high) if spared else (low, min(high, score))
            text.tokens += kept if ended is None else kept[:-1]
            if ended is not None:
                text.finish_reason = "eos"
                return text
            if len(text.tokens) == new:
                return text

    def grow(self, before: Path, keys: Tensor, depth: int) -> dict[Path, list[int]]:
        """The children of every node, by the tokens that lead to it; x is the first."""
        found: list[tuple[float, bool, Path]] = []
        frontier: list[tuple[float, bool, Path]] = [(0.0, True, ())]
        for _ in range(depth):
            level = [
                (score + more, valid and possible, (*path, token))
                for score, valid, path in frontier
                for more, possible, token in self._children(before + path, keys)
            ]
            found += level
            frontier = sorted(level, key=lambda node: -node[0])[: self.shape.top_k]  # sorting is stable
        kept = sorted(found, key=lambda node: -node[0])[: self.shape.nodes]
        paths = {path for _, valid, path in kept if valid}
        tree: dict[Path, list[int]] = {(): []}
        for _, _, path in found:
            if path in paths:
                tree.setdefault(path[:-1], []).append(path[-1])
        return tree

    def _children(self, before: Path, keys: Tensor) -> list[tuple[float, bool, int]]:
        """What each child adds to a score, whether it can be drawn, and its token."""
        log_q = self._log_probabilities(self.draft, before)
        ranking = log_q + self._noise(keys, len(before), Stream.TOKEN, len(log_q))
        tokens = ranking.sort(descending=True, stable=True).indices[: self.shape.top_k].tolist()
        likely = [float(log_q[token]) for token in tokens]
        if self.rule in ("sd", "fsd-sd") and self.temperature:
            shares = [FIRST_CHILD * (1 - FIRST_CHILD) ** rank for rank in range(len(tokens))]
            return [(math.log(s), q > -math.inf, t) for s, q, t in zip(shares, likely, tokens, strict=True)]
        return [(max(likely[rank:]), likely[rank] > -math.inf, token) for rank, token in enumerate(tokens)]

    def walk(
        self, before: Path, tree: dict[Path, list[int]], keys: Tensor
    ) -> tuple[list[int], list[tuple[float, bool] | None], bool]:
        """The tokens of a round; for each, the score that decided on it and whether it was spared; whether none was
        rejected."""
        emitted: list[int] = []
        decisions: list[tuple[float, bool] | None] = []
        while children := tree.get(Path(emitted)):
            token, decision = self._judge(before + Path(emitted), children, keys)
            emitted.append(token)
            decisions.append(decision)
            if token not in children:
                return emitted, decisions, False
        return [*emitted, self._choice(before + Path(emitted), keys)], [*decisions, None], True

    def _judge(self, before: Path, children: list[int], keys: Tensor) -> tuple[int, tuple[float, bool] | None]:
        """The token at a node, and the score that decided on it, if one did."""
        x, y = children[0], self._choice(before, keys)
        score = float(divergence("js", _logits(self.target, before), _logits(self.draft, before)))
        fuzzy = score <= self.threshold
        if self.rule == "fsd":
            return (x if fuzzy else y), (score, fuzzy)
        if self.rule in ("sd", "fsd-sd") and self.temperature:
            y = self._by_residuals(before, children, keys)
        if self.rule in ("coupled", "sd") or y in children:
            return y, None
        return (x if fuzzy else y), (score, fuzzy)

    def _by_residuals(self, before: Path, children: list[int], keys: Tensor) -> int:
        p, q = (self._log_probabilities(model, before).exp() for model in (self.target, self.draft))
        for rank, x in enumerate(children):
            position = torch.tensor([[len(before)]])
            u = noise.uniform(keys, position, Stream.ACCEPT, torch.float64, rank)
            if u * q[x] <= p[x]:
                return x
            p = (p - q).clamp_min(0)
            p, q = p / p.sum(), q.index_fill(0, torch.tensor([x]), 0.0)
            q = q / q.sum()
        return int((p.log() + self._noise(keys, len(before), Stream.RESIDUAL, len(p))).argmax())

    def _choice(self, before: Path, keys: Tensor) -> int:
        log_p = self._log_probabilities(self.target, before)
        return int((log_p + self._noise(keys, len(before), Stream.TOKEN, len(log_p))).argmax())

    def _log_probabilities(self, model: Any, before: Path) -> Tensor:
        return torch.log_softmax(_logits(model, before) / (self.temperature or 1.0), -1)

    def _noise(self, keys: Tensor, position: int, stream: Stream, vocabulary: int) -> Tensor:
        if not self.temperature:
            return torch.zeros(vocabulary, dtype=torch.float64)
        return noise.gumbel(keys, torch.tensor([[position]]), stream, vocabulary, torch.float64)[0, 0]


@cache
def _logits(model: Any, before: Path) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([before]), use_cache=False).logits[0, -1]
    return logits


NEW = 24
_NOISE = 1e-9  # of D in float64, and far below the distance of any two
TEMPERATURES = [0.0, 0.9]
ONE, CHAIN, WIDE, DEEP, LARGE = (
    TreeShape(1, 1), TreeShape(1, 9), TreeShape(6, 7), TreeShape(2, 6), TreeShape(4, 30)
)  # fmt: skip
SHAPES = [(ONE, 1), (CHAIN, 4), (WIDE, 2), (DEEP, 6), (LARGE, 4), (LARGE, 1)]
TREE_RULES = ["coupled", "sd", "fsd", "fsd-sd", "fsd-coupled"]


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    return tiny_decoder()


def over(decoder: SpeculativeDecoder, tree: TreeShape, rule: str, threshold: float = 0.1) -> SpeculativeDecoder:
    return decoder.with_config(tree=tree, rule=rule, threshold=threshold if rule.startswith("fsd") else None)


# --- plain Python ------------------------------------------------------------------------------------


@pytest.mark.thinned(every=17)
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("rule", TREE_RULES)
@pytest.mark.parametrize(("tree", "depth"), [(CHAIN, 3), (WIDE, 2), (DEEP, 4), (LARGE, 3)], ids=str)
def test_it_equals_plain_python(
    decoder: SpeculativeDecoder, tree: TreeShape, depth: int, rule: str, temperature: float
) -> None:
    """Text, rounds, counts and interval of each of six prompts, decoded in three rows."""
    prompts, threshold = ragged_prompts(6), 0.08
    plain = PlainTrees(decoder.target, decoder.draft, rule, threshold, tree, depth, temperature)
    actual = over(decoder, tree, rule, threshold).generate(
        prompts, 12, temperature, draft_length=depth, batch_size=3, ids=range(6)
    )
    for number, (prompt, result) in enumerate(zip(prompts, actual, strict=True)):
        expected = plain.decode(prompt, number, 12, set(EOS))
        assert result.interval == pytest.approx(expected.interval, abs=1e-9)
        for name in ("tokens", "rounds", "drafted", "accepted", "bonus", "finish_reason"):
            assert getattr(result, name) == getattr(expected, name), name


# --- token for token ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone(decoder: SpeculativeDecoder) -> dict[float, list[Result]]:
    return {t: decoder.generate(ragged_prompts(30), NEW, t, rule="target") for t in TEMPERATURES}


@pytest.mark.thinned(every=25)
@pytest.mark.parametrize(("tree", "depth"), SHAPES, ids=str)
@pytest.mark.parametrize(
    ("rule", "temperature"),
    [*product(("coupled", "fsd", "fsd-coupled"), TEMPERATURES), ("sd", 0.0), ("fsd-sd", 0.0)],
)
def test_lossless_trees_write_the_targets_own_text(
    decoder: SpeculativeDecoder, alone: dict[float, list[Result]], rule: str, temperature: float, tree: TreeShape,
    depth: int,
) -> None:  # fmt: skip
    actual = over(decoder, tree, rule, -1e-9).generate(
        ragged_prompts(30), NEW, temperature, draft_length=depth, batch_size=20
    )
    assert [r.tokens for r in actual] == [r.tokens for r in alone[temperature]]
    assert [r.finish_reason for r in actual] == [r.finish_reason for r in alone[temperature]]


@pytest.mark.thinned(every=10)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_of_models_reads_trees(family: str) -> None:
    """The target's own text, where windows are shorter than texts, with a draft that is nearly the target."""
    target, draft = (random_model(FAMILIES[family], seed=0) for _ in range(2))
    disturb(draft, seed=0, spread=0.1)
    decoder = SpeculativeDecoder(target, draft, word_tokenizer(), rule="coupled", tree=LARGE, draft_length=4)
    prompts = ragged_prompts(6)
    own = decoder.generate(prompts, NEW, 0.9, rule="target")
    trees = decoder.generate(prompts, NEW, 0.9, batch_size=4)
    assert [r.tokens for r in trees] == [r.tokens for r in own]
    chains = decoder.with_config(tree=CHAIN).generate(prompts, NEW, 0.9)
    assert sum(r.accepted for r in trees) >= sum(r.accepted for r in chains) > 20


@pytest.mark.thinned(every=8)
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("rule", ["coupled", "sd", "fsd-sd", "fsd-coupled"])
def test_a_tree_without_branches_is_the_chain(decoder: SpeculativeDecoder, rule: str, temperature: float) -> None:
    prompts, lengths = ragged_prompts(20), [1 + i % 5 for i in range(20)]
    chains, trees = (
        each.generate(prompts, NEW, temperature, draft_length=lengths, batch_size=7)
        for each in (decoder.with_config(rule=rule), over(decoder, CHAIN, rule))
    )
    for chain, tree in zip(chains, trees, strict=True):
        assert_same(chain, tree)


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_fsd_writes_the_chains_text_and_goes_on_where_the_target_draws_the_drafted_token(
    decoder: SpeculativeDecoder, temperature: float
) -> None:
    """A chain ends at D > T even where the token emitted instead is the drafted one."""
    chains, trees = (
        each.generate(ragged_prompts(40), NEW, temperature, draft_length=4)
        for each in (decoder.with_config(rule="fsd", threshold=-1.0), over(decoder, CHAIN, "fsd", -1.0))
    )
    assert [r.tokens for r in trees] == [r.tokens for r in chains]
    assert sum(r.rounds for r in trees) < 0.8 * sum(r.rounds for r in chains)


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_trees_of_an_ngram_draft(decoder: SpeculativeDecoder, temperature: float) -> None:
    """Lossless, wider than the chain where they branch, and the chain where they do not."""
    chain = SpeculativeDecoder(decoder.target, NGram(), decoder.tokenizer, rule="fsd-coupled", draft_length=4)
    repetitive = [prompt * 3 for prompt in ragged_prompts(20)]

    def texts(**changes: Any) -> list[Result]:
        return chain.with_config(**changes).generate(repetitive, NEW, temperature, batch_size=8)

    lossless = {"rule": "coupled"}
    own, drafted = texts(rule="target"), texts(tree=LARGE, **lossless)
    assert [r.tokens for r in drafted] == [r.tokens for r in own]
    assert sum(r.rounds for r in drafted) < sum(r.rounds for r in texts(**lossless))
    for one, other in zip(texts(threshold=0.3), texts(threshold=0.3, tree=CHAIN), strict=True):
        assert_same(one, other, rounding=1e-6)  # n-gram logits are fp32


def assert_same(one: Result, other: Result, rounding: float = 1e-9) -> None:
    """Compares every field; the ends of the interval may differ in rounding."""
    assert one.interval == pytest.approx(other.interval, abs=rounding)
    assert dataclasses.replace(one, interval=other.interval) == other


# --- the batch, graphs, streams ----------------------------------------------------------------------


@pytest.mark.thinned(every=10)
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("rule", TREE_RULES)
def test_results_do_not_depend_on_the_batch(decoder: SpeculativeDecoder, rule: str, temperature: float) -> None:
    """The result is the same alone, in a batch of 10, after refills, and in another order; depths differ by row."""
    prompts, depths = ragged_prompts(24), [1 + i % 5 for i in range(24)]

    def run(order: Sequence[int], batch_size: int) -> dict[int, Result]:
        actual = over(decoder, DEEP, rule).generate(
            [prompts[i] for i in order], NEW, temperature, draft_length=[depths[i] for i in order], ids=order,
            batch_size=batch_size,
        )  # fmt: skip
        return dict(zip(order, actual, strict=True))

    together = run(range(24), 10)
    for order, batch_size in ((range(21, 24), 1), (range(23, -1, -1), 7)):
        for i, result in run(order, batch_size).items():
            assert_same(result, together[i])


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize("rule", ["fsd", "fsd-coupled", "fsd-sd"])
def test_every_threshold_in_the_interval_gives_the_same_text(decoder: SpeculativeDecoder, rule: str) -> None:
    """And one outside gives another, but for `fsd`, where the drafted token may be the target's own.

    A bound is the D of a token, whose last bits depend on the batch on some CPUs: thresholds are a little off it.
    """
    prompts = ragged_prompts(8)
    for result, prompt, number in zip(
        over(decoder, LARGE, rule, 0.08).generate(prompts, NEW, 0.9, draft_length=3), prompts, range(8), strict=True
    ):
        low, high = result.interval
        assert low <= 0.08 < high
        inside = [max(low, -1.0) + _NOISE, min(high, 2.0) - _NOISE]
        outside = [low - _NOISE] * (low > -math.inf) + [high + _NOISE] * (high < math.inf)
        for threshold in inside + outside * (rule != "fsd"):
            (again,) = over(decoder, LARGE, rule, threshold).generate([prompt], NEW, 0.9, draft_length=3, ids=[number])
            same = (again.tokens, again.rounds) == (result.tokens, result.rounds)
            assert same == (threshold in inside)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["sd", "fsd-coupled"])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_graphs_give_the_same(rule: str, temperature: float) -> None:
    pair = related(seed=1, spread=0.05)
    eager, graphs = (
        SpeculativeDecoder(*pair, word_tokenizer(), rule=rule, tree=DEEP, draft_length=3, compile=compile)
        for compile in (False, "capture")
    )
    prompts = ragged_prompts(6)
    for one, other in zip(*(each.generate(prompts, NEW, temperature, batch_size=4) for each in (eager, graphs)),
                          strict=True):  # fmt: skip
        assert_same(one, other)


def test_a_stream_is_the_text_of_generate(decoder: SpeculativeDecoder) -> None:
    trees = over(decoder, LARGE, "fsd-coupled")
    prompt = ragged_prompts(1)[0]
    assert "".join(trees.stream(prompt, NEW)) == trees.generate([prompt], NEW)[0].text


def test_the_rule_target_drafts_nothing(decoder: SpeculativeDecoder) -> None:
    (result,) = over(decoder, LARGE, "coupled").generate(ragged_prompts(1), NEW, rule="target")
    assert result.drafted == 0
