"""Requests for prompts: what a body holds, and the engine that decodes a task's prompts by sending them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fsd_calib.engines.base import Begin, DecodingRequest, KeyedPrompt, OnFinish, TextEngine
from fsd_calib.engines.cache_key import CacheKey, GenerationLimits
from fsd_calib.options.server import Body, Knob, ServerDescription, merged, plain
from fsd_calib.servers.answers import Answer
from fsd_calib.servers.client import NoAnswerError, side_by_side
from fsd_calib.servers.identity import ServerIdentity
from fsd_calib.servers.messages import messages_in
from fsd_calib.servers.served import Served
from fsd_common.digests import facts_digest
from fsd_decoding.config import DecodingConfig
from fsd_decoding.engine.result import Result
from fsd_decoding.profile.parts import EngineInfo
from fsd_decoding.profile.setting import KNOB, Setting
from fsd_decoding.sampling import SETTINGS, Sampling

NAME = "server"
"""The engine's name."""
_SEEDS = 1 << 31


def setting_of(server: ServerDescription, value: float) -> Setting:
    """Returns the setting of a value of the knob. Its T rises from strict to loose, whichever way the values go."""
    assert server.knob is not None
    strict = server.knob.ladder[0]
    return Setting(KNOB, looseness_of(server.knob), 1, value if _is_looseness(server.knob) else abs(value - strict))


def looseness_of(knob: Knob) -> str:
    """Returns what T is: the knob's value, or how far that is from the strictest."""
    strict = plain(knob.ladder[0])
    if _is_looseness(knob):
        return knob.name
    return f"{strict} - {knob.name}" if knob.ladder[-1] < strict else f"{knob.name} - {strict}"


def _is_looseness(knob: Knob) -> bool:
    return 0 <= knob.ladder[0] <= knob.ladder[-1]


def value_of(server: ServerDescription, setting: Setting) -> float | None:
    """Returns the knob's value under a setting; None: the lossless reference."""
    if setting.threshold is None:
        return None
    return next(value for value in server.knob.ladder if setting_of(server, value) == setting)  # type: ignore[union-attr]


def body_of(
    server: ServerDescription, prompt: KeyedPrompt, sampling: Sampling, limits: GenerationLimits, arguments: Body,
    seed: int,
) -> dict[str, Any]:  # fmt: skip
    """Returns what a request holds for a prompt, before the fields of a setting.

    Args:
        arguments: Of the server's chat template.
        seed: Of the noise, which is the same under every setting where a server has it so.
    """
    chosen = {name: getattr(sampling, name) for name in ("temperature", "top_p", "top_k", "min_p")}
    body: dict[str, Any] = {
        "model": server.model, "max_tokens": limits.max_new_tokens,
        **{name: value for name, value in chosen.items() if value is not None},
    }  # fmt: skip
    if limits.stop:
        body["stop"] = list(limits.stop)
    if not sampling.greedy:
        body["seed"] = (prompt.id + seed) % _SEEDS  # the same noise under every setting, where a server has it so
    if server.endpoint == "completions":
        return body | {"prompt": prompt.prompt}
    rendered = {"chat_template_kwargs": dict(arguments)} if arguments else {}
    return body | {"messages": messages_in(prompt.prompt), **rendered}


class ServerEngine(TextEngine):
    """Decodes by asking a server. Settings are the values of its knob, and `target` is its lossless reference.

    Args:
        served: The server.
        identity: What the server says of itself.
        decoding: Sampling and seed.
        limits: Where texts end.
        arguments: Of the server's chat template.
    """

    name = NAME

    def __init__(
        self, served: Served, identity: ServerIdentity, decoding: DecodingConfig, limits: GenerationLimits,
        arguments: Body,
    ) -> None:  # fmt: skip
        self.served, self.identity, self.decoding, self.limits = served, identity, decoding, limits
        self.arguments = arguments

    def decode(
        self, request: DecodingRequest, on_finish: OnFinish | None = None, begin: Begin | None = None
    ) -> list[Result]:
        """See `Engine.decode`. A prompt that stays unanswered has an `unanswered` result."""
        way = self.served.at(value_of(self.served.description, request.setting))
        left, results = iter(enumerate(request.prompts)), dict[int, Result]()

        async def stream() -> None:
            for place, prompt in left:
                if begin is not None and not begin(place):
                    continue
                body = merged(self.body(prompt, request.seed), way.fields)
                try:
                    results[place] = _result(await way.client.ask(body), request.setting)
                except NoAnswerError:
                    results[place] = _unanswered(request.setting)
                if on_finish is not None:
                    on_finish(place, results[place])

        way.client.run(side_by_side(stream() for _ in range(min(request.batch_size, len(request.prompts)))))
        return [results[place] for place in sorted(results)]

    def body(self, prompt: KeyedPrompt, seed: int) -> dict[str, Any]:
        """Returns what a request holds for a prompt, before the fields of a setting."""
        return body_of(self.served.description, prompt, self.decoding.sampling, self.limits, self.arguments, seed)

    def key(self, setting: Setting, seed: int) -> CacheKey:
        server, sampling = self.served.description, self.decoding.sampling
        knob = None if server.knob is None else server.knob.model_dump(mode="json", exclude={"values", "range"})
        reference = None if server.reference is None else server.reference.model_dump(mode="json")
        engine = {
            "identity": self.identity.facts, "endpoint": server.endpoint, "body": server.body, "knob": knob,
            "reference": reference, "value": value_of(server, setting), "arguments": self.arguments,
        }  # fmt: skip
        return CacheKey(
            setting=replace(setting.arm, draft=None), criterion=None, models={"target": None, "draft": None},
            sampling={name: getattr(sampling, name) for name in SETTINGS}, seed=None if sampling.greedy else seed,
            max_new_tokens=self.limits.max_new_tokens, stop=sorted(set(self.limits.stop)), engine=engine,
        )  # fmt: skip

    @property
    def family(self) -> str:
        said = [self.identity.model.get(name) for name in ("id", "root")]
        return facts_digest([self.served.description.name or self.served.description.model, *said])

    @property
    def short_names(self) -> tuple[str, str]:
        server = self.served.description
        return server.name or server.model, "what it drafts with"

    @property
    def score(self) -> str:
        knob = self.served.description.knob
        return NAME if knob is None else looseness_of(knob)

    @property
    def exact_texts(self) -> bool:
        return self.decoding.sampling.greedy

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(name=NAME, version=self.identity.version)

    def with_limits(self, limits: GenerationLimits) -> ServerEngine:
        return ServerEngine(self.served, self.identity, self.decoding, limits, self.arguments)


def prompts_of(problems: Sequence[Any]) -> list[KeyedPrompt]:
    """Returns the prompts of problems."""
    return [KeyedPrompt(problem.id, problem.prompt) for problem in problems]


def _result(answer: Answer, setting: Setting) -> Result:
    """The result of an answer. Servers tell how many tokens there are, and not which: their ids are 0."""
    drafts = answer.acceptance
    counts = (
        (max(answer.tokens, 1), 0, 0) if drafts is None else (max(drafts.rounds, 1), drafts.drafted, drafts.accepted)
    )
    reason: Any = "length" if answer.cut else "stop"
    return Result(answer.text, [0] * answer.tokens, *counts, 0, _alone(setting), reason)


def _unanswered(setting: Setting) -> Result:
    return Result("", [], 0, 0, 0, 0, _alone(setting), "unanswered")


def _alone(setting: Setting) -> tuple[float, float]:
    """The interval of a text, which holds for its own value alone."""
    value = setting.threshold
    return (-math.inf, math.inf) if value is None else (value, math.nextafter(value, math.inf))
