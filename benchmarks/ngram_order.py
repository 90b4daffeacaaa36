"""How good n-gram drafts are for FSD, by order and corpus: `python benchmarks/ngram_order.py [--quick]`.

Along the bundled target's own greedy completions of arithmetic problems, every token has y, which is the target's, and
the n-gram draft's q with its likeliest token x. The corpus is the target's completions of other problems. Chains and
trees then decode some of the problems.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from fsd_calib import NGram, SpeculativeDecoder, TreeShape, load_task
from fsd_data import pair_paths
from fsd_decoding.divergence import divergence
from fsd_decoding.drafters.ngram_corpus import NGramCorpus
from lib.common.machine import machine_facts
from lib.common.results import write_and_print

_SEED, _OTHER_SEED = 90_210, 90_211
_ORDERS, _CORPUS_ORDER = (2, 3, 4, 6, 8), 8
_THRESHOLDS = (0.05, 0.1, 0.2, 0.4, 0.69)  # of js, whose largest value is ln 2 = 0.693
_DRAFT_LENGTH, _FUZZY = 5, 0.4
_TREE = TreeShape(top_k=3, nodes=16)


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    problems: int
    decoded: int  # of them, by chains and trees
    corpora: tuple[int, ...]  # problems whose completions are the corpus; 0: none
    repeats: int  # of a timed step


_FULL = Plan(200, 48, (0, 100, 2000), 200)
_QUICK = Plan(6, 2, (0, 4), 3)


@dataclass(frozen=True)
class Text:
    """A prompt with the target's completion."""

    prompt: list[int]
    completion: list[int]
    p: Tensor  # (n, V) logits of the completion's tokens


def completions(decoder: SpeculativeDecoder, count: int, seed: int) -> list[tuple[list[int], list[int]]]:
    """The target's greedy completions, with their prompts, as token ids."""
    task = load_task("arithmetic", seed=seed, limit=count)
    prompts = [list(decoder.tokenizer(problem.prompt)["input_ids"]) for problem in task.problems]
    results = decoder.generate(prompts, task.max_new_tokens, rule="target", batch_size=64)
    return [(prompt, result.tokens) for prompt, result in zip(prompts, results, strict=True)]


def read(decoder: SpeculativeDecoder, prompt: list[int], completion: list[int]) -> Text:
    with torch.inference_mode():
        logits = decoder.target(torch.tensor([prompt + completion]), use_cache=False).logits[0]
    return Text(prompt, completion, logits[len(prompt) - 1 : -1])


def along(texts: Sequence[Text], source: NGram, vocabulary: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields, for each text, q's logits (n, V) and the tokens y (n,)."""
    for text in texts:
        count, whole = len(text.completion), torch.tensor(text.prompt + text.completion)
        drafter = source.drafter(count, len(whole), vocabulary)
        lengths = torch.arange(len(text.prompt), len(whole))
        with torch.inference_mode():
            yield drafter.logits(whole.expand(count, -1), lengths, 0, len(whole))[:, 0], whole[len(text.prompt) :]


def agreement(texts: Sequence[Text], source: NGram, vocabulary: int) -> dict[str, Any]:
    """How often x is another token than y, and how often D <= T, of all tokens and of those where x is another one."""
    other, divergences = [], []
    for text, (q, y) in zip(texts, along(texts, source, vocabulary), strict=True):
        other.append(q.argmax(-1) != y)
        divergences.append(divergence("js", text.p, q))
    differs, found = torch.cat(other), torch.cat(divergences)
    within = {str(T): float((found <= T).double().mean()) for T in _THRESHOLDS}
    where_other = {str(T): float((found[differs] <= T).double().mean()) for T in _THRESHOLDS}
    return {"tokens": len(differs), "x_is_not_y": float(differs.double().mean()), "D_within": within,
            "D_within_where_x_is_not_y": where_other}  # fmt: skip


def rounds(decoder: SpeculativeDecoder, source: NGram, prompts: Sequence[list[int]]) -> dict[str, float]:
    """Tokens per round of chains and trees."""
    base = SpeculativeDecoder(decoder.target, source, decoder.tokenizer, rule="coupled", draft_length=_DRAFT_LENGTH)
    found = {}
    for name, each in {
        "chain, lossless": base,
        f"chain, js <= {_FUZZY}": base.with_config(rule="fsd-coupled", threshold=_FUZZY),
        "tree, lossless": base.with_config(tree=_TREE),
        f"tree, js <= {_FUZZY}": base.with_config(tree=_TREE, rule="fsd-coupled", threshold=_FUZZY),
    }.items():
        results = each.generate(list(prompts), 96, batch_size=16)
        found[name] = sum(r.emitted for r in results) / sum(r.rounds for r in results)
    return found


def step_seconds(source: NGram, text: Text, vocabulary: int, batch: int, repeats: int) -> float:
    """Seconds of one draft step, the median."""
    drafter = source.drafter(batch, 256, vocabulary)
    tokens = torch.tensor([text.prompt + text.completion] * batch)
    lengths, spent = torch.full((batch,), tokens.shape[1]), []
    with torch.inference_mode():
        for _ in range(repeats):
            began = time.perf_counter()
            drafter.logits(tokens, lengths, 0, tokens.shape[1])
            spent.append(time.perf_counter() - began)
    return median(spent)


def table(rows: Sequence[dict[str, Any]]) -> str:
    columns = ("order", "corpus", "x != y", "D <= .4", "... x != y", "chain", "fuzzy", "tree", "fuzzy", "step, us")
    lines = ["".join(f"{column:>11}" for column in columns)]
    for row in rows:
        agreed = row["agreement"]
        shares = agreed["x_is_not_y"], agreed["D_within"]["0.4"], agreed["D_within_where_x_is_not_y"]["0.4"]
        cells = [f"{row['order']}", f"{row['corpus']}", *(f"{share:.1%}" for share in shares)]
        cells += [f"{tokens:.2f}" for tokens in row["tokens_per_round"].values()]
        lines.append("".join(f"{cell:>11}" for cell in [*cells, f"{1e6 * row['step_seconds']['1']:.0f}"]))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few problems, to try the script")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "ngram_order.json")
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch")
    asked = parser.parse_args()
    plan, began = _QUICK if asked.quick else _FULL, time.perf_counter()
    torch.set_num_threads(asked.threads)
    decoder = SpeculativeDecoder.from_pretrained(*pair_paths(), device="cpu", dtype=torch.float32)
    vocabulary = decoder.target.config.vocab_size
    texts = [read(decoder, *each) for each in completions(decoder, plan.problems, _SEED)]
    others = completions(decoder, max(plan.corpora), _OTHER_SEED)
    rows = []
    for size in plan.corpora:
        corpus = NGramCorpus.of((p + c for p, c in others[:size]), _CORPUS_ORDER) if size else None
        for order in _ORDERS:
            source = NGram(order, corpus)
            rows.append({
                "order": order, "corpus": size, "agreement": agreement(texts, source, vocabulary),
                "tokens_per_round": rounds(decoder, source, [text.prompt for text in texts[: plan.decoded]]),
                "step_seconds": {str(b): step_seconds(source, texts[0], vocabulary, b, plan.repeats) for b in (1, 8)},
            })  # fmt: skip
    results = {
        "machine": machine_facts(),
        "seconds": time.perf_counter() - began,
        "problems": plan.problems,
        "rows": rows,
    }
    write_and_print(results, asked.out, table(rows))


if __name__ == "__main__":
    main()
