"""vLLM's schedulers, which decode audited requests losslessly once more while no other request is there."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from vllm.sampling_params import SamplingParams
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from fsd_calib.vllm_plugin import KEY
from fsd_calib.vllm_plugin.audit import NAMES, AuditLog, Pair, grader_named, is_audited
from fsd_calib.vllm_plugin.running_requests import RunningRequest, describe
from fsd_calib.vllm_plugin.settings import ServeSettings
from fsd_calib.vllm_plugin.telemetry.counters import AUDITS, Counters
from fsd_calib.vllm_plugin.telemetry.texts import Ends
from fsd_decoding.profile.threshold_profile import ThresholdProfile

_OWN = "fsd-audit-"  # what ids of requests that the audit makes begin with
_WAITING = 1024  # texts at most
_TOGETHER = 4  # of them that are decoded at once


class _Auditing:
    """Keeps audited requests until no other one is there, and decodes them then.

    When another request comes, what is being decoded is given up and begins again later, behind what waits, so that
    nobody waits for it. Nothing of it leaves the scheduler.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        config: Any = self.vllm_config  # type: ignore[attr-defined]
        settings = ServeSettings(**config.additional_config[KEY])
        self._profile, self._share = ThresholdProfile.from_content(settings.content), settings.audit
        self._tokenizer = cached_tokenizer_from_config(config.model_config)
        self._context, self._ends = config.model_config.max_model_len, Ends(self._tokenizer)
        grader = None if settings.grader is None else grader_named(settings.grader)
        counters = Path(settings.counters, AUDITS.format(config.parallel_config.data_parallel_index))
        file = Path(settings.audit_file) if settings.audit_file else None
        self._log = AuditLog(Counters(counters, NAMES), file, grader)
        self._comparing = ThreadPoolExecutor(1, "fsd-audit")  # steps do not wait for a grader
        self._served: dict[str, Any] = {}  # audited requests that run
        self._waiting: deque[tuple[Any, list[int]]] = deque()  # with their texts
        self._decoding: dict[str, tuple[Any, tuple[Any, list[int]]]] = {}  # by id: the request made, and of what

    def add_request(self, request: Any) -> None:
        self._give_way()
        super().add_request(request)  # type: ignore[misc]
        if self._is_audited(request):
            self._served[request.request_id] = request

    def finish_requests(self, request_ids: Any, finished_status: Any) -> Any:
        """vLLM's; front ends end texts so where they find a stop string, or where a client has left. None: all."""
        if request_ids is None:
            self._waiting.clear()  # the engine is to stop
        ended = super().finish_requests(request_ids, finished_status)  # type: ignore[misc]
        for request in ended:
            self._decoding.pop(request.request_id, None)
        self._note_ended(request.request_id for request in ended)
        return [request for request in ended if not request.request_id.startswith(_OWN)]

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        found = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        for of_client in found.values():
            self._note_ended(each.request_id for each in of_client.outputs if each.finish_reason is not None)
            of_client.outputs = [each for each in of_client.outputs if not each.request_id.startswith(_OWN)]
        self._note_decoded()
        return found

    def has_requests(self) -> bool:
        """Whether there is work: audits, if there is no other and the engine is not paused."""
        if super().has_requests():  # type: ignore[misc]
            return True
        if self.pause_state != PauseState.UNPAUSED:  # type: ignore[attr-defined]
            return False
        while self._waiting and len(self._decoding) < _TOGETHER:
            self._begin(*self._waiting.popleft())
        return bool(self._decoding)

    def _is_audited(self, request: Any) -> bool:
        parameters: SamplingParams | None = request.sampling_params
        if parameters is None or request.prompt_token_ids is None or request.use_structured_output:
            return False
        if request.mm_features or request.resumable or not is_audited(request.request_id, self._share):
            return False
        described = describe(parameters, self._profile)
        return described.as_calibrated and described.threshold >= 0

    def _note_ended(self, ids: Iterable[str]) -> None:
        """Keeps the texts of audited requests that have ended by themselves."""
        for name in ids:
            request = self._served.pop(name, None)
            if request is None:
                continue
            text = list(request.output_token_ids)
            length, reason = self._ends.of(text, self._described(request))
            if reason == "abort":
                continue
            if len(self._waiting) < _WAITING:
                self._waiting.append((request, text[:length]))
            else:
                self._log.drop()

    def _described(self, request: Any) -> RunningRequest:
        """What ends a request's text: the context does, too."""
        described = describe(request.sampling_params, self._profile)
        room = self._context - len(request.prompt_token_ids)
        return replace(described, limit=room if described.limit is None else min(described.limit, room))

    def _begin(self, served: Any, text: list[int]) -> None:
        parameters = served.sampling_params.clone()
        parameters.extra_args = {**(parameters.extra_args or {}), "fsd": "off"}
        made = Request(
            request_id=f"{_OWN}{served.request_id}", prompt_token_ids=served.prompt_token_ids,
            sampling_params=parameters, pooling_params=None, client_index=served.client_index,
            lora_request=served.lora_request, cache_salt=served.cache_salt, block_hasher=served._block_hasher,
        )  # fmt: skip
        self._decoding[made.request_id] = (made, (served, text))
        super().add_request(made)  # type: ignore[misc]

    def _give_way(self) -> None:
        """Gives up what is being decoded, until later."""
        given_up, self._decoding = self._decoding, {}
        for name, (_, of) in given_up.items():
            super().finish_requests(name, RequestStatus.FINISHED_ABORTED)  # type: ignore[misc]
            self._waiting.append(of)

    def _note_decoded(self) -> None:
        for name, (made, (served, text)) in list(self._decoding.items()):
            lossless = list(made.output_token_ids)
            described = self._described(made)
            length, reason = self._ends.of(lossless, described)
            if reason == "abort" and not made.is_finished():
                continue
            if not made.is_finished():  # at a stop string, which vLLM looks for in its front end only
                super().finish_requests(name, RequestStatus.FINISHED_ABORTED)  # type: ignore[misc]
            del self._decoding[name]
            if reason != "abort":  # else vLLM ended it in a way that nothing is known of
                pair = Pair(served.request_id, served.prompt_token_ids, text, lossless[:length], described)
                self._comparing.submit(self._log.add, pair, self._tokenizer)


class AuditingScheduler(_Auditing, Scheduler):
    """vLLM's scheduler, with audits."""


class AuditingAsyncScheduler(_Auditing, AsyncScheduler):
    """vLLM's asynchronous scheduler, with audits."""


SCHEDULERS = {False: f"{__name__}.{AuditingScheduler.__name__}", True: f"{__name__}.{AuditingAsyncScheduler.__name__}"}
"""Full names, by whether scheduling is asynchronous."""
