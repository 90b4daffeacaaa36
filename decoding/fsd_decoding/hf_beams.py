"""Beams of transformers' `generate(num_beams=…, custom_generate=fsd_generate)`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    MaxLengthCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
)

from fsd_common.errors import UsageError
from fsd_decoding.beams.rounds import BeamRow
from fsd_decoding.beams.settings import BeamSettings
from fsd_decoding.decoder import SpeculativeDecoder


@dataclass(frozen=True)
class BeamsOfGenerate:
    """What a call of `generate` asks of beams.

    Args:
        decoder: with the sampling of `generate`, and its noise.
        settings: how many beams, and how they end.
        stop: strings that end a text.
        returned: texts of each prompt that `generate` returns.
    """

    decoder: SpeculativeDecoder
    settings: BeamSettings
    stop: tuple[str, ...]
    returned: int

    @classmethod
    def of(
        cls, decoder: SpeculativeDecoder, config: GenerationConfig, criteria: StoppingCriteriaList, width: int | None
    ) -> Self:
        """Returns what the arguments of `generate` ask for.

        Args:
            width: see `BeamSettings`; None: that of the decoder's profile, or the usual one.

        Raises:
            UsageError: beams do not end by a criterion, or a value is out of range.
        """
        ending = {"length_penalty": config.length_penalty, "early_stopping": config.early_stopping}
        settings = BeamSettings.over(decoder.own_beams, config.num_beams, width, **ending)
        if not decoder.sampling.greedy:
            decoder = decoder.reconfigured(replace(decoder.decoding, seed=int(torch.randint(2**63 - 1, ()))))
        return cls(decoder, settings, _stops(criteria, decoder), config.num_return_sequences)

    @property
    def doubt(self) -> str | None:
        """A warning where the decoder's profile certifies no such beams; None: it does, or there is none."""
        coverage = self.decoder.coverage
        if coverage is None or self.decoder.setting.lossless:
            return None
        return coverage.other_beams(self.settings) or coverage.unvoted(self.returned)

    def decode(self, prompts: Sequence[list[int]], most: int) -> list[BeamRow]:
        """Returns the rows of the prompts, each with at most so many new tokens, in their order."""
        requests = self.decoder.requests(prompts, most)
        rows = self.decoder.beam_rows(self.settings, requests, len(requests), self.stop, iter(requests))
        return sorted(rows, key=lambda row: row.request.index)


def _stops(criteria: StoppingCriteriaList, decoder: SpeculativeDecoder) -> tuple[str, ...]:
    """The stop strings among the criteria. UsageError: there is one that beams do not end by."""
    stops: list[str] = []
    for criterion in criteria:
        if isinstance(criterion, StopStringCriteria):
            stops += criterion.stop_strings
        elif isinstance(criterion, EosTokenCriteria):
            if (asked := sorted(criterion.eos_token_id.tolist())) != sorted(decoder.eos):
                raise UsageError(
                    f"eos_token_id is {asked}, and beams end with {sorted(decoder.eos)}, those of the model's "
                    "generation_config; set them there"
                )
        elif not isinstance(criterion, MaxLengthCriteria):
            raise UsageError(f"{type(criterion).__name__} is given, by which beams do not end; leave it out")
    if not any(isinstance(criterion, EosTokenCriteria) for criterion in criteria) and decoder.eos:
        raise UsageError(
            f"eos_token_id is None, and beams end with {sorted(decoder.eos)}; set None in the model's generation_config"
        )
    if stops and decoder.tokenizer is None:
        raise UsageError("a stop string is given without fsd_tokenizer, which finds it in beams; give both")
    return tuple(stops)
