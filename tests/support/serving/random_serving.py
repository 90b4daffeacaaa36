"""Serving as vLLM's model runner does it, with random logits: steps that verify drafts, without vLLM.

What is accepted is worked out here one token at a time, independently of the plugin, which sees the steps alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fsd_calib.vllm_plugin.draft_logits import HostDraftLogits
from fsd_calib.vllm_plugin.judge import Judge, Verification
from fsd_calib.vllm_plugin.running_requests import RunningRequest
from fsd_calib.vllm_plugin.telemetry.steps import Emitted, StepLog
from fsd_collectors.collection.measures import Measures
from fsd_decoding.divergence import divergence

VOCABULARY, DRAFTS, THRESHOLD, EOS = 40, 4, 0.2, 0


@dataclass
class Drafted:
    """A drafted token, as the test expects it to be recorded."""

    position: int
    token: int
    divergence: float
    choice: int
    accepted: bool


@dataclass
class Running:
    """A request that is served."""

    name: str
    request: RunningRequest
    tokens: list[int] = field(default_factory=list)  # that vLLM would return: up to the text's end
    drafted: list[Drafted] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return EOS in self.tokens or len(self.tokens) == self.request.limit


def request(prompt: int, limit: int, greedy: bool = True, stops: Sequence[str] = ()) -> RunningRequest:
    return RunningRequest(THRESHOLD, greedy, (), frozenset({EOS}), tuple(stops), range(prompt), limit)


def serve(
    log: StepLog, requests: Sequence[RunningRequest], measures: Measures | None, seed: int = 0, reported: bool = True
) -> list[Running]:
    """Serves a batch of greedy requests to their ends.

    Those that have finished are reported a step later, as vLLM does; it ends without the last report (`reported`).
    """
    random = torch.Generator().manual_seed(seed)
    batch = [Running(f"{seed}-{number}", request) for number, request in enumerate(requests)]
    _prefill(log, batch, random)
    running = [each for each in batch if not each.ended]
    log.finish([each.name for each in batch if each.ended and reported])
    while running:
        _step(log, running, measures, random)
        log.finish([each.name for each in running if each.ended and reported])
        running = [each for each in running if not each.ended]
    return batch


def _prefill(log: StepLog, batch: Sequence[Running], random: torch.Generator) -> None:
    """Reads the prompts in two chunks; what vLLM samples behind the first is no token of a text."""
    names, requests = [each.name for each in batch], [each.request for each in batch]
    for done in (False, True):
        sampled = torch.randint(1, VOCABULARY, (len(batch), 1), generator=random, dtype=torch.int32)
        begins = torch.tensor([len(each.prompt) - (0 if done else 1) for each in requests], dtype=torch.int32)
        log.add(names, requests, None, Emitted(sampled, begins, [0] * len(batch), np.full(len(batch), done)))
    for each, token in zip(batch, sampled[:, 0].tolist(), strict=True):
        each.tokens.append(token)


def _step(log: StepLog, running: Sequence[Running], measures: Measures | None, random: torch.Generator) -> None:
    names, requests = [each.name for each in running], [each.request for each in running]
    target = torch.randn(len(running), DRAFTS + 1, VOCABULARY, generator=random) * 2
    draft = target[:, :DRAFTS] + torch.randn(len(running), DRAFTS, VOCABULARY, generator=random)
    tokens = draft.argmax(-1)
    drafts = HostDraftLogits(VOCABULARY)
    drafts.begin()
    for place in range(DRAFTS):
        drafts.add(draft[:, place], changes=False)
    drafts.end(names)
    judge = Judge(drafts, "js", None)
    rows = torch.tensor([b * (DRAFTS + 1) + place for b in range(len(running)) for place in range(DRAFTS)])
    step = Verification(names, [DRAFTS] * len(running), target.flatten(0, 1), rows, None, tokens.flatten())
    judged = judge(step, [each.threshold for each in requests], measures)
    assert judged is not None
    ends = torch.tensor([len(each.request.prompt) + len(each.tokens) + DRAFTS for each in running], dtype=torch.int32)
    sampled = torch.full((len(running), DRAFTS + 1), -1, dtype=torch.int32)
    for row, each in enumerate(running):
        emitted = _verify(each, target[row], draft[row], tokens[row].tolist())
        sampled[row, : len(emitted)] = torch.tensor(emitted, dtype=torch.int32)
    most_likely = (tokens == target[:, :DRAFTS].argmax(-1)).flatten()
    emitted_ = Emitted(sampled, ends, step.counts, np.full(len(running), True))
    judged.accepted(most_likely)
    log.add(names, requests, judged, emitted_)


def _verify(running: Running, target: Tensor, draft: Tensor, tokens: Sequence[int]) -> list[int]:
    """Returns what vLLM's sampler emits for a request, and adds it to the request as far as it belongs to its text."""
    distances = divergence("js", target[:DRAFTS].double(), draft.double()).tolist()
    begin, emitted, open_ = len(running.tokens), [], True
    for place, (token, distance) in enumerate(zip(tokens, distances, strict=True)):
        choice = int(target[place].argmax())
        open_ = open_ and (token == choice or distance <= THRESHOLD)
        running.drafted.append(Drafted(begin + place, token, distance, choice, open_))
        emitted += [token] if open_ else []
    emitted.append(int(target[len(emitted)].argmax()))
    for token in emitted:
        if not running.ended:
            running.tokens.append(token)
    return emitted
