"""The client of a server: requests, repeated where the network or the server fails, and never answered twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Coroutine, Iterable, Mapping
from typing import Any, Self, TypeVar

import httpx2
import openai

from fsd_calib.options.server import ServerDescription, merged
from fsd_calib.servers.answers import Acceptance, Answer, Timed, likeliest_at
from fsd_common.errors import UsageError

_RETRIES = 6  # of a request: for about half a minute, or as long as Retry-After says
# As many as there are requests. Servers close idle ones after five seconds, so that no request begins on one which is
# being closed.
_CONNECTIONS = httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0)
_SOON, _SOON_RETRIES = 10.0, 3  # seconds that an answer about the server itself may take, and repetitions
_NO_SUCH = (400, 404, 405, 500, 501)  # there is no such list; where a server has none, it may also fail
_TRIES, _PAUSE = 3, 1.0  # for an answer that is none, and seconds between them
_REFUSALS = (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError)
_STREAM_FAILURES = (openai.OpenAIError, httpx2.HTTPError, ValueError, TypeError, KeyError, AttributeError)
_MOST_UNANSWERED, _ALWAYS_BORNE = 0.01, 2  # share of requests, and number, that may stay unanswered
_Result = TypeVar("_Result")


class NoAnswerError(Exception):
    """A request stays unanswered, after all its repetitions."""


class Client:
    """Asks one server. Use it as a context manager.

    Attributes:
        asked, unanswered: How many requests there were, and how many of them stay unanswered.

    Args:
        server: Its description.
        url: Another address than the description's; the rest holds for it, too.
        runner: That of a client by whose side it asks; None: one of its own.
    """

    def __init__(self, server: ServerDescription, url: str | None = None, runner: asyncio.Runner | None = None) -> None:
        self.server, self.url = server, (url or server.url).rstrip("/")
        self.asked = self.unanswered = 0
        self._numbers: dict[str, int] | None = {}  # of answers, with a hash of what was asked; None: they tell nothing
        self.runner, self._is_own = runner or asyncio.Runner(), runner is None
        try:
            headers = server.sent_headers()
        except ValueError as error:
            raise UsageError(f"server {self.url}: {error}") from None
        # A variable of the environment may name an organization, which is none of this server's business.
        own: dict[str, Any] = {"OpenAI-Organization": openai.Omit(), "OpenAI-Project": openai.Omit(), **headers}
        self._openai = openai.AsyncOpenAI(
            base_url=self.url, api_key="none", default_headers=own, timeout=server.timeout, max_retries=_RETRIES,
            http_client=openai.DefaultAsyncHttpxClient(limits=_CONNECTIONS),
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.runner.run(self._openai.close())
        if self._is_own:
            self.runner.close()

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Does asynchronous work to its end; Ctrl-C cancels it."""
        return self.runner.run(work)

    async def models(self) -> list[dict[str, Any]] | None:
        """Returns what the server says of its models; None: it has no list of them. UsageError: it does not answer."""
        try:
            found: Any = await self._openai.with_options(max_retries=_SOON_RETRIES).get("/models", cast_to=object)
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            raise UsageError(f"the server at {self.url} refuses requests: {_reason(error)}") from None
        except openai.APIStatusError as error:
            if error.status_code in _NO_SUCH:
                return None
            raise UsageError(f"the server at {self.url} is not ready: {_reason(error)}; wait, or mend it") from None
        except (openai.OpenAIError, ValueError) as error:
            raise UsageError(
                f"the server at {self.url} does not answer ({_reason(error)}); start it, or mend its url"
            ) from None
        if not isinstance(found, Mapping) or not isinstance(found.get("data"), list):
            raise UsageError(f"the server at {self.url} has no list of models; its url must end with /v1")
        return [dict(each) for each in found["data"]]

    async def ask(self, body: Mapping[str, Any]) -> Answer:
        """Returns the answer to a request.

        Raises:
            NoAnswerError: It stays unanswered.
            UsageError: The server refuses all requests, or too many of them stay unanswered.
        """
        self.asked += 1
        reason, content, repeated = "", merged(self.server.body, body), False
        for attempt in range(_TRIES):
            await asyncio.sleep(_PAUSE * attempt)
            try:
                answer = Answer.of(await self._openai.post(self._path, body=content, cast_to=object))
            except _REFUSALS as error:
                raise UsageError(f"the server at {self.url} refuses requests: {_reason(error)}") from None
            except openai.APIError as error:  # after the client's own repetitions
                reason = _reason(error)
                break
            except ValueError as error:
                reason = str(error)
                continue
            if self._is_new(answer, str(content.get("messages", content.get("prompt"))), repeated):
                return answer
            repeated = True
        self._count_unanswered(reason)
        raise NoAnswerError(reason)

    async def time(self, body: Mapping[str, Any]) -> Timed:
        """Returns when the parts of an answer came, which is streamed.

        Where the connection breaks before there is any answer, as some servers close theirs after a stream, it is asked
        for once more on another one, and the time that was lost counts.

        Raises:
            NoAnswerError: It failed.
            UsageError: Too many failed.
        """
        self.asked += 1
        try:
            return await self._timed(body)
        except _STREAM_FAILURES as error:
            self._count_unanswered(_reason(error))
            raise NoAnswerError(_reason(error)) from None

    async def _timed(self, body: Mapping[str, Any]) -> Timed:
        content = merged(self.server.body, body) | {"stream": True, "stream_options": {"include_usage": True}}
        began, first, tokens, acceptance = time.perf_counter(), None, None, None
        try:
            stream = await self._stream(content)
        except openai.APIConnectionError as error:
            if isinstance(error, openai.APITimeoutError):
                raise
            stream = await self._stream(content)  # the time that was lost counts
        async for part in stream:
            if first is None and _says(part):
                first = time.perf_counter() - began
            if isinstance(usage := part.get("usage"), Mapping):
                tokens = int(usage["completion_tokens"])
            acceptance = Acceptance.of(part) or acceptance
        whole = time.perf_counter() - began
        if tokens is None:
            raise ValueError("a streamed answer ended without its usage (stream_options.include_usage)")
        return Timed(whole if first is None else first, whole, tokens, acceptance)

    async def _stream(self, content: Mapping[str, Any]) -> Any:
        return await self._openai.post(
            self._path, body=content, cast_to=object, stream=True, stream_cls=openai.AsyncStream[object],
            options={"max_retries": 0},
        )  # fmt: skip

    async def likeliest(self, body: Mapping[str, Any], at: int) -> dict[str, float]:
        """Returns the likeliest tokens at a character of an answer, with their log probabilities; empty: not told.

        Args:
            body: Asks for log probabilities.
        """
        try:
            content: Any = await self._openai.post(self._path, body=merged(self.server.body, body), cast_to=object)
            return likeliest_at(content, at)
        except (openai.OpenAIError, ValueError):
            return {}

    async def answers(self, url: str) -> bool:
        """Whether an address answers, at once and with success."""
        try:
            await self._openai.with_options(max_retries=0, timeout=_SOON).get(url, cast_to=str)
        except openai.OpenAIError:
            return False
        return True

    async def get(self, url: str, retries: int = _SOON_RETRIES) -> Any:
        """Returns what an address has, as JSON or text; None: there is no such address. UsageError: it fails."""
        try:
            return await self._openai.with_options(max_retries=retries, timeout=_SOON).get(url, cast_to=object)
        except openai.APIStatusError as error:
            if error.status_code in _NO_SUCH:
                return None
            raise UsageError(f"{url} fails: {_reason(error)}; wait until the server is ready") from None
        except (openai.OpenAIError, ValueError) as error:
            raise UsageError(f"{url} fails: {_reason(error)}; wait until the server is ready") from None

    async def send(self, url: str, body: Mapping[str, Any]) -> Any:
        """Returns the answer to JSON that is sent to an address. UsageError: it does not take it."""
        try:
            return await self._openai.post(url, body=dict(body), cast_to=object)
        except (openai.OpenAIError, ValueError) as error:
            raise UsageError(f"{url} does not take the knob's value: {_reason(error)}") from None

    @property
    def _path(self) -> str:
        return "/chat/completions" if self.server.endpoint == "chat" else "/completions"

    def _is_new(self, answer: Answer, asked: str, repeated: bool) -> bool:
        """Whether an answer is to this request, as far as its number tells: a proxy may send one twice.

        Where a request has two such answers in turn (`repeated`), the server's numbers tell nothing.
        """
        if self._numbers is None or self._numbers.setdefault(answer.number, hash(asked)) == hash(asked):
            return True
        if repeated:
            self._numbers = None
        return repeated

    def _count_unanswered(self, reason: str) -> None:
        self.unanswered += 1
        if self.unanswered > max(_MOST_UNANSWERED * self.asked, _ALWAYS_BORNE):
            raise UsageError(
                f"the server at {self.url} left {self.unanswered} of {self.asked} requests unanswered, the last: "
                f"{reason:.200}; more than 1 % end a run: mend the server and run the same command, which goes on"
            )


async def side_by_side(work: Iterable[Awaitable[Any]]) -> None:
    """Does all of the work at once; the first error ends the rest."""
    try:
        async with asyncio.TaskGroup() as group:
            for each in work:
                group.create_task(_wait(each))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _wait(work: Awaitable[Any]) -> None:
    await work


def _says(part: Mapping[str, Any]) -> bool:
    """Whether a part of a stream has text."""
    choices = part.get("choices") or ()
    return any(choice.get("text") or (choice.get("delta") or {}).get("content") for choice in choices)


def _reason(error: Exception) -> str:
    """The error in one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__
