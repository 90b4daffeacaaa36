"""Labels of tiny models' mismatches, and what they are by definition, worked out token by token with transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fsd_collectors.judging.collect import collect_labels
from fsd_collectors.judging.labels import read_labels
from support.models.tiny_models import EOS, word_tokenizer
from support.models.tiny_task import TinyTask

Frame = Any  # a pandas DataFrame, whose stubs know columns by name only
TOKENIZER = word_tokenizer()


def labelled(out: Path, pair: tuple[Any, Any], task: TinyTask, **settings: Any) -> Frame:
    given: dict[str, Any] = {"target": pair[0], "draft": pair[1], "tokenizer": TOKENIZER, "batch_size": 4, "seed": 5}
    collect_labels(task, out=out, **given | settings)
    return read_labels(out)


@dataclass(frozen=True)
class ByHand:
    """Greedy decoding as it is defined, without a cache, a batch or the engine."""

    target: Any
    draft: Any
    task: TinyTask

    def whole(self, prompt: Sequence[int], begun: Sequence[int]) -> tuple[list[int], bool]:
        """The target's text behind a beginning, with its EOS where it has one; and whether its answer is right."""
        tokens = list(begun)
        while not self._over(tokens):
            tokens.append(int(logits(self.target, [*prompt, *tokens])[-1].argmax()))
        return tokens, self.right(tokens)

    def right(self, tokens: Sequence[int]) -> bool:
        """Whether the answer of a finished text is right; a stop string is not part of it."""
        text = text_of([token for token in tokens if token not in EOS])
        return self.task.grade(self.task.problems[0], min((text.partition(stop)[0] for stop in self.task.stop),
                               key=len, default=text))  # fmt: skip

    def mismatches(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[tuple[int, int, int]]:
        """Position, x and y wherever the draft has another token."""
        drafted = logits(self.draft, [*prompt, *tokens[:-1]])[len(prompt) - 1 :].argmax(-1).tolist()
        both = enumerate(zip(drafted, tokens, strict=True))
        return [(place, x, y) for place, (x, y) in both if x != y]

    def log_likelihoods(self, prompt: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """Of each token under the target, of the end that of any EOS."""
        log = logits(self.target, [*prompt, *tokens[:-1]])[len(prompt) - 1 :].log_softmax(-1)
        each = [row[list(EOS) if token in EOS else [token]] for row, token in zip(log, tokens, strict=True)]
        return torch.stack([row.logsumexp(-1) for row in each])

    def _over(self, tokens: Sequence[int]) -> bool:
        if not tokens:
            return False
        text = text_of(tokens)
        stopped = any(stop in text for stop in self.task.stop)
        return tokens[-1] in EOS or stopped or len(tokens) == self.task.max_new_tokens


def text_of(tokens: Sequence[int]) -> str:
    """The text of tokens, special ones left out."""
    return str(TOKENIZER.decode(list(tokens), skip_special_tokens=True))


def logits(model: Any, tokens: Sequence[int]) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(input_ids=torch.tensor([list(tokens)])).logits[0]
    return found


def autojudge(by_hand: ByHand, prompt: Sequence[int]) -> list[tuple[int, int, int, bool]]:
    """AutoJudge's labels of a problem whose answer is right: position, x, y and whether the swap is harmful."""
    tokens, correct = by_hand.whole(prompt, [])
    found, at = list[tuple[int, int, int, bool]](), -1
    while correct:
        later = [each for each in by_hand.mismatches(prompt, tokens) if each[0] > at]
        if not later:
            break
        at, x, y = later[0]
        swapped, right = by_hand.whole(prompt, [*tokens[:at], x])
        found.append((at, x, y, not right))
        tokens = swapped if right else tokens
    return found
