"""What a round over trees costs beyond the models: the mask, the walk, and moving a path's keys and values."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch

from fsd_calib import SpeculativeDecoder, TreeShape
from fsd_decoding.engine.kv_pool import KVCachePool, Models
from fsd_decoding.engine.settings import Settings
from fsd_decoding.engine.tree_rounds import TreeRounds, propose_tree, verify_tree
from fsd_decoding.engine.verify import judge, verify
from fsd_decoding.models.branches import move_path
from fsd_decoding.requests import Prompt


def overhead(decoder: SpeculativeDecoder, prompts: list[Prompt], shape: TreeShape, depth: int, repeats: int) -> Any:
    """Returns the seconds of a round's parts over trees of this shape, and the share that is not the models'.

    A verification is compared with one of as many tokens in a chain. The walk is the rule and the choice of the path.
    """
    requests = decoder.requests(prompts, 32, draft_length=depth)
    slots = max(len(request.prompt) for request in requests) + shape.scratch(depth) + 40
    models = Models(decoder.target, decoder.draft, decoder.target.config.vocab_size)
    caches = KVCachePool(False).acquire(models, len(requests), len(requests), slots, drafts=True, graphs=False)
    settings: Settings = decoder.with_config(rule="coupled", tree=shape, draft_length=depth).settings()
    batch, target, drafter = caches.batch, caches.target, caches.drafter
    assert drafter is not None
    rows = torch.arange(len(requests))
    with torch.inference_mode():
        longest = batch.put(rows, requests, 0)
        for each in (target, drafter):
            each.prefill(rows, batch.tokens[rows], longest - 1)
        rounds = TreeRounds(caches, settings)
        draft = rounds.draft([], depth, slots)
        tree = draft.tree
        assert tree is not None
        logits = verify_tree(target, batch, tree.listed(), depth, slots)
        proposal = propose_tree(batch, settings.criterion, settings.sampling, logits, draft.logits[0], tree)
        judged = judge(settings.rule, proposal, tree.proposed)
        assert judged.path.nodes is not None
        places = judged.path.nodes[:, 1:] - 1

        def walk() -> None:
            fresh = propose_tree(batch, settings.criterion, settings.sampling, logits, draft.logits[0], tree)
            judge(settings.rule, fresh, tree.proposed)

        parts: dict[str, Callable[[], Any]] = {
            "draft": lambda: rounds.draft([], depth, slots),
            "verify": lambda: verify_tree(target, batch, tree.listed(), depth, slots),
            "verify a chain of as many": lambda: verify(target, batch, tree.tokens.shape[1], slots),
            "walk": walk,
            "gather": lambda: move_path(target.cache, batch.lengths, places),
        }
        seconds = _seconds(parts, repeats)
    mask = max(0.0, seconds["verify"] - seconds["verify a chain of as many"])
    whole = seconds["draft"] + seconds["verify"] + seconds["walk"] + 2 * seconds["gather"]  # the draft's cache too
    return {"seconds": seconds, "mask": mask, "share": (mask + seconds["walk"] + 2 * seconds["gather"]) / whole}


def _seconds(parts: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """The median of each part, which take turns, so that what else the machine does meets all of them."""
    spent: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(repeats):
        for name, part in parts.items():
            began = time.perf_counter()
            part()
            spent[name].append(time.perf_counter() - began)
    return {name: median(each) for name, each in spent.items()}
