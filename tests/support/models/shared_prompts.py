"""Prompts that begin alike, what models read of them, and the texts that each has alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, cast

import pytest
from torch import Tensor

from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.models.forward import Forward
from fsd_decoding.models.runner import ModelRunner
from support.models.tiny_models import VOCABULARY


def worked(count: int, shared: int, seed: int = 0) -> list[list[int]]:
    """Prompts that begin with the same `shared` tokens, and go on for 3 to 9 of their own."""
    rng = Random(seed)

    def text(length: int) -> list[int]:
        return [rng.randrange(2, VOCABULARY) for _ in range(length)]

    beginning = text(shared)
    return [beginning + text(rng.randint(3, 9)) for _ in range(count)]


@contextmanager
def counted() -> Iterator[dict[int, list[int]]]:
    """Yields the number of tokens of every forward pass, by the model's id."""
    passes: dict[int, list[int]] = {}

    def count(runner: ModelRunner, parts: Any) -> None:
        passes.setdefault(id(runner.model), []).append(sum(part.tokens.numel() for part in parts))

    with pytest.MonkeyPatch.context() as patch:
        init: Any = ModelRunner.__init__

        def counting(runner: ModelRunner, *args: Any, **keywords: Any) -> None:
            init(runner, *args, **keywords)
            forward = runner._forward

            class Counting:
                identity, joins = forward.identity, forward.joins

                def __call__(self, parts: Any, *rest: Any) -> Tensor:
                    count(runner, parts)
                    return forward(parts, *rest)

            runner._forward = cast(Forward, Counting())

        patch.setattr(ModelRunner, "__init__", counting)
        yield passes


def alone(decoder: SpeculativeDecoder, prompts: list[list[int]], new: int, **settings: Any) -> list[list[int]]:
    return [decoder.generate([prompt], new, ids=[i], **settings)[0].tokens for i, prompt in enumerate(prompts)]
