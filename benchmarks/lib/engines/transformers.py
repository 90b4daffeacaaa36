"""transformers' `generate`, alone and assisted by the draft, as an engine that decodes work one prompt at a time."""

from __future__ import annotations

import time
from dataclasses import dataclass

from lib.engines.work import Decoded, Engine, Work


@dataclass(frozen=True)
class TransformersSettings:
    """How transformers is set up: paths of the models."""

    models: tuple[str, str]

    def build(self) -> Engine:
        return TransformersEngine(self)


class TransformersEngine:
    """transformers in this process. Its ways are "target" and "sd L"; work has a batch of 1 and no stop strings."""

    def __init__(self, settings: TransformersSettings) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging

        logging.set_verbosity_error()
        self._models = [AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in settings.models]
        self._tokenizer = AutoTokenizer.from_pretrained(settings.models[0])

    def decode(self, work: Work, way: str) -> Decoded:
        from lib.decoding.peers import Peer

        assert (work.batch, work.stop) == (1, ()), "transformers assists one text at a time, up to EOS"
        rule, _, length = way.partition(" ")
        target, draft = self._models
        peer = Peer(target, draft, int(length or 1), work.max_new_tokens)
        decode = peer.assisted if rule == "sd" else peer.generate
        cpu, wall = time.process_time(), time.perf_counter()
        made = [decode(self._tokenizer(prompt)["input_ids"]) for prompt in work.prompts]
        texts = tuple(str(self._tokenizer.decode(text.tokens, skip_special_tokens=True)) for text in made)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        return Decoded(texts, sum(text.emitted for text in made), 0, cpu, wall)
