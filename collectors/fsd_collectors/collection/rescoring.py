"""`with_scores`: further scores of traces that are there, from the likeliest tokens that they hold of p and of q."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from fsd_collectors.collection.likeliest import COLUMNS, Likeliest
from fsd_collectors.collection.measures import Measures, Positions, chunk_size
from fsd_collectors.manifest import Manifest
from fsd_collectors.store.reading import Traces
from fsd_common.errors import UsageError
from fsd_decoding.noise import problem_keys
from fsd_decoding.sampling import Sampling
from fsd_decoding.scores import addon_of, score_named

_OF_DRAFTED = ("drafted", "target_probability", "draft_probability")
_NEEDED = (*COLUMNS, "problem", "position", *_OF_DRAFTED)


def with_scores(traces: Traces, scores: Sequence[str]) -> Rescored:
    """Returns traces with further scores, which `replay` and `sweep` take like those that were collected.

    Args:
        traces: collected with `log_probs`.
        scores: names, such as "margin@10", or "mine:Name"; those that were collected stay as they are.

    Raises:
        UsageError: the traces hold no log-probabilities, or a score that other code has computed; or one is unknown.
    """
    manifest = traces.manifest
    for each in manifest.addons:
        if each.name in {name.partition("@")[0] for name in scores if name in manifest.scores}:
            each.require(f"the column of traces {str(traces.path)!r}")
    names = tuple(name for name in dict.fromkeys(scores) if name not in manifest.scores)
    if names and not manifest.log_probs:
        raise UsageError(
            f"traces {str(traces.path)!r} hold no log-probabilities, of which {', '.join(names)} could be computed; "
            "collect again with log_probs (--log-probs 50)"
        )
    for name in names:
        score_named(name)  # raises UsageError
    return Rescored(traces, names)


@dataclass(frozen=True)
class Rescored:
    """Traces with further scores.

    What lies beyond the k likeliest tokens of p and of q is spread evenly over the other tokens, see `Likeliest`, so a
    score that reads it is an approximation; `exact` tells which ones are none.
    """

    traces: Traces
    scores: tuple[str, ...]

    @cached_property
    def manifest(self) -> Manifest:
        """That of the traces, with the further scores."""
        own = self.traces.manifest
        addons = [each for each in map(addon_of, self.scores) if each is not None]
        return own.model_copy(
            update={
                "scores": (*own.scores, *self.scores),
                "addons": tuple(dict.fromkeys([*own.addons, *addons])),
            }
        )

    def exact(self, name: str) -> bool:
        """Whether a further score is what collecting would have measured, but for rounding."""
        score, manifest = score_named(name), self.traces.manifest
        sampling, k = manifest.sampling, manifest.log_probs
        if (score.on or manifest.on) == "processed" and sampling.temperature > 0:
            if sampling.top_k is not None and sampling.top_k <= k:
                return True  # all that is left of p and of q is known
            if sampling.temperature != 1 or sampling.top_k or sampling.top_p or sampling.min_p:
                return False
        return score.reads_top is not None and score.reads_top <= k

    def left_out(self) -> tuple[float, float]:
        """Returns the mean share of p beyond its k likeliest tokens, and that of q."""
        sums, rows = np.zeros(2), 0
        for table in self.traces.batches(COLUMNS):
            sums += [float(share.sum()) for share in _likeliest(table).left_out]
            rows += table.num_rows
        return float(sums[0] / rows), float(sums[1] / rows)

    def batches(self, columns: Sequence[str], where: Any = None, table: str = "tokens") -> Iterator[pa.Table]:
        """Yields the rows as `Traces.batches` does; `where` selects by the columns that were collected."""
        wanted = [name for name in self.scores if name in columns] if table == "tokens" else []
        if not wanted:
            yield from self.traces.batches(columns, where, table)
            return
        others = [name for name in columns if name not in wanted]
        for rows in self.traces.batches(list(dict.fromkeys([*others, *_NEEDED])), where):
            scored = self._scored(rows, wanted)
            for name, values in zip(wanted, scored, strict=True):
                rows = rows.append_column(name, pa.array(values.numpy()))
            yield rows.select(list(columns))

    def _scored(self, rows: pa.Table, names: Sequence[str]) -> Tensor:
        """The scores of rows: (scores, rows), in fp32."""
        own = self.traces.manifest
        measures = Measures(names, own.on, Sampling(**own.sampling.model_dump()))
        problems, of_problem = np.unique(rows["problem"].to_numpy(), return_inverse=True)
        keys = problem_keys(own.seed, problems.tolist())[of_problem]
        prompts = np.array([self._prompt_tokens[problem] for problem in problems.tolist()])
        places = torch.from_numpy(rows["position"].to_numpy() + prompts[of_problem])
        x, p_x, q_x = (torch.tensor(rows[name].to_numpy()) for name in _OF_DRAFTED)
        likeliest, parts = _likeliest(rows), []
        size = max(1, chunk_size(p_x) // own.vocabulary)
        for begin in range(0, rows.num_rows, size):
            part = slice(begin, begin + size)
            p, q = likeliest[part].logits(x[part].long(), p_x[part], q_x[part], own.vocabulary)
            parts.append(measures.scores(Positions(p, q, x[part].long(), x[part].long(), places[part], keys[part])))
        return torch.cat(parts, 1)[[measures.scored.index(name) for name in names]]

    @cached_property
    def _prompt_tokens(self) -> dict[int, int]:
        """The lengths of the prompts by problem, which tell what noise is at a position."""
        columns = self.traces.completions.to_table(columns=["problem", "prompt_tokens"]).to_pydict()
        return dict(zip(columns["problem"], columns["prompt_tokens"], strict=True))


def _likeliest(rows: pa.Table) -> Likeliest:
    flat = (rows[name].combine_chunks().flatten().to_numpy() for name in COLUMNS)
    return Likeliest(*(torch.tensor(values.reshape(rows.num_rows, -1)) for values in flat))
