"""What the plugin knows of every running request."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fsd_calib.vllm_plugin.settings import EXACT, Followed, hidden_noise, requested_threshold
from fsd_common.errors import UsageError
from fsd_decoding.sampling import SETTINGS

logger = logging.getLogger("vllm.fsd")  # vLLM's own handlers take what is logged below its name


@dataclass(frozen=True)
class RunningRequest:
    """Facts of a request, which do not change while it runs."""

    threshold: float  # T; below 0: it is decoded exactly
    greedy: bool
    departures: tuple[str, ...]  # in what it is decoded otherwise than the profile says
    ends: frozenset[int]  # tokens that end its text
    stops: tuple[str, ...]  # strings that its text ends before
    prompt: Sequence[int] = ()  # token ids
    limit: int | None = None  # the most tokens that it may have
    plain: bool = False  # whether it is greedy and nothing changes its logits: the exact token is their argmax
    masked: bool = False  # whether a grammar masks its logits
    fault: str | None = None  # why its options cannot be followed, so that it is decoded exactly

    @property
    def as_calibrated(self) -> bool:
        """Whether it is decoded as the profile says, so that its certificate and its acceptance rates are for it."""
        return not self.departures


class Running:
    """Requests of a step, in order.

    Attributes:
        thresholds: T of each.
        greedy: whether each is.
        all_greedy: whether all are.
        plain: whether all are.
        masked: whether any is.
    """

    def __init__(self, requests: Sequence[RunningRequest]) -> None:
        self.requests = requests
        self.thresholds = [request.threshold for request in requests]
        self.greedy = [request.greedy for request in requests]
        self.all_greedy, self.plain = all(self.greedy), all(request.plain for request in requests)
        self.masked = any(request.masked for request in requests)


class RunningRequests:
    """The requests that a model runner knows, described once each.

    Args:
        known: vLLM's own states of requests, by id.
        followed: what they follow.
        departed: called with what a request departs in, for each new one that departs from that.
        context: the most tokens that a prompt and its text may have together; None: that is not known.
        noise_is_seen: as of `describe`.
    """

    def __init__(
        self, known: Any, followed: Followed, departed: Callable[[tuple[str, ...]], None],
        context: int | None = None, noise_is_seen: bool = True,
    ) -> None:  # fmt: skip
        self._known, self._followed, self._departed, self._context = known, followed, departed, context
        self._noise_is_seen = noise_is_seen
        self._described: dict[str, RunningRequest] = {}
        self._warned = False
        self._last: tuple[list[str], Running] = ([], Running(()))

    def together(self, ids: Sequence[str]) -> Running:
        """Returns the requests with these ids, which are those of the last step more often than not."""
        if self._last[0] != ids:
            self._last = list(ids), Running(self.of(ids))  # vLLM changes its own
        return self._last[1]

    def of(self, ids: Sequence[str]) -> list[RunningRequest]:
        """Returns the requests with these ids."""
        return [self._described.get(request) or self._describe(request) for request in ids]

    def forget(self, finished: Iterable[str]) -> None:
        for request in finished:
            if self._described.pop(request, None) is not None:
                self._last = [], Running(())

    def _describe(self, request: str) -> RunningRequest:
        state = self._known[request]
        described = describe(state.sampling_params, self._followed, self._noise_is_seen)
        ids = state.prompt_token_ids
        prompt = range(len(state.prompt_embeds)) if ids is None else ids  # embeddings have no ids
        room = None if self._context is None else self._context - len(prompt)
        limit = min((limit for limit in (described.limit, room) if limit is not None), default=None)
        described = replace(described, prompt=prompt, limit=limit)
        self._described[request] = described
        if described.departures and described.threshold >= 0:
            self._departed(described.departures)
        if described.fault is not None and not self._warned:
            self._warned = True
            logger.warning("fsd: requests that no front end checked are decoded exactly: %s", described.fault)
        return described


def describe(parameters: Any, followed: Followed, noise_is_seen: bool = True) -> RunningRequest:
    """Describes a request from vLLM's `SamplingParams`; None, as of pooling requests, is decoded exactly.

    So is a request that the front end would have refused: clients of the engine core get past it.

    Args:
        noise_is_seen: whether the plugin sees the u that a sampled request's tokens are tested with.
    """
    if parameters is None:
        return RunningRequest(EXACT, True, ("nothing is sampled",), frozenset(), ())
    own = EXACT if followed.threshold is None else followed.threshold
    threshold, fault = EXACT, None
    try:
        threshold = requested_threshold(parameters.extra_args, own)
    except UsageError as error:
        fault = str(error)
    greedy = parameters.temperature == 0
    if threshold >= 0 and (hidden := hidden_noise(followed.score, greedy, noise_is_seen)):
        threshold, fault = EXACT, hidden
    constrained = [name for name in _CONSTRAINTS if getattr(parameters, name, None)]
    ends = frozenset(parameters.stop_token_ids or ()) if parameters.ignore_eos else parameters.all_stop_token_ids
    return RunningRequest(
        threshold=threshold, plain=greedy and parameters.repetition_penalty == 1 and not constrained, greedy=greedy,
        departures=tuple(_departures(parameters, followed, threshold, own, constrained)), ends=frozenset(ends),
        stops=tuple(parameters.stop or ()), limit=parameters.max_tokens, fault=fault,
        masked="structured_outputs" in constrained,
    )  # fmt: skip


def _departures(
    parameters: Any, followed: Followed, threshold: float, own: float, constrained: Sequence[str]
) -> Iterable[str]:
    if threshold != own:
        yield f"threshold is {threshold:g} instead of {own:g}"
    served = sampling_of(parameters)
    for name in SETTINGS:
        calibrated = getattr(followed.sampling, name)
        if served[name] != calibrated:
            yield f"{name} is {served[name]} instead of {calibrated}"
    yield from (f"{name} is set" for name in constrained)


_CONSTRAINTS = (
    "presence_penalty", "frequency_penalty", "logit_bias", "allowed_token_ids", "bad_words", "min_tokens",
    "structured_outputs", "thinking_token_budget",
)  # fmt: skip


def sampling_of(parameters: Any) -> dict[str, Any]:
    """The settings of `Sampling` by their names; None is off. Greedy decoding has no use for truncations."""
    greedy = parameters.temperature == 0
    return {
        "temperature": parameters.temperature,
        "top_k": None if greedy or parameters.top_k <= 0 else parameters.top_k,
        "top_p": None if greedy or parameters.top_p == 1 else parameters.top_p,
        "min_p": None if greedy or parameters.min_p == 0 else parameters.min_p,
        "repetition_penalty": parameters.repetition_penalty,
    }
