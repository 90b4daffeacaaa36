"""Requests: whatever goes wrong between client and server, each is answered once, or counted as unanswered."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from fsd_calib.options.server import ServerDescription
from fsd_calib.servers import client as client_module
from fsd_calib.servers.answers import Acceptance, Answer
from fsd_calib.servers.client import Client, NoAnswerError, side_by_side
from fsd_common.errors import UsageError
from support.servers.stand_in import StandIn, references, standing_in


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses are short, and repetitions few."""
    monkeypatch.setattr(client_module, "_PAUSE", 0.01)
    monkeypatch.setattr(client_module, "_RETRIES", 2)
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)


@pytest.fixture
def server() -> Iterator[StandIn]:
    with standing_in() as running:
        yield running


def described(server: StandIn, timeout: float = 5.0) -> ServerDescription:
    return ServerDescription(url=server.url, model="model", endpoint="completions", timeout=timeout)


def ask_all(client: Client, questions: list[str]) -> dict[str, str]:
    """Asks all questions at once; returns the texts of those that were answered."""
    texts = {}

    async def ask(question: str) -> None:
        try:
            texts[question] = (await client.ask({"model": "model", "prompt": question})).text
        except NoAnswerError:
            texts[question] = "unanswered"

    client.run(side_by_side(ask(question) for question in questions))
    return texts


@pytest.mark.parametrize("fault", ["reset", "half", "cut", "html", "unfinished", "duplicate", "429", "500", "503"])
def test_what_goes_wrong_now_and_then_loses_nothing_and_counts_nothing_twice(server: StandIn, fault: str) -> None:
    questions, failed = list(references())[:40], set[str]()

    def first_time(number: int) -> str | None:
        prompt = server.behaviour.asked[number]["prompt"]
        if prompt in failed or questions.index(prompt) % 4 != 3:
            return None
        failed.add(prompt)
        return fault

    server.behaviour.fault = first_time
    with Client(described(server)) as client:
        texts = ask_all(client, questions[:1]) | ask_all(client, questions[1:])  # the first comes again
        assert client.asked == 40
        assert not client.unanswered
    assert texts == {question: f"Then, {references()[question]}" for question in questions}
    assert len(failed) == 10


def test_a_slow_answer_is_asked_for_again(server: StandIn) -> None:
    server.behaviour.fault = lambda number: "slow" if number == 0 else None
    with Client(described(server, timeout=0.3)) as client:
        question = next(iter(references()))
        assert ask_all(client, [question]) == {question: f"Then, {references()[question]}"}


def test_retry_after_is_waited_for(server: StandIn) -> None:
    server.behaviour.fault = lambda number: "429" if number == 0 else None

    async def seconds() -> float:
        before = asyncio.get_running_loop().time()
        await client.ask({"prompt": "x"})
        return asyncio.get_running_loop().time() - before

    with Client(described(server)) as client:
        assert client.run(seconds()) >= 0.1


def test_a_few_may_stay_unanswered_and_more_end_the_run(server: StandIn) -> None:
    questions = list(references())[:50]
    hopeless = set(questions[:2])
    server.behaviour.fault = lambda number: "html" if server.behaviour.asked[number]["prompt"] in hopeless else None
    with Client(described(server)) as client:
        texts = ask_all(client, questions)
        assert {question for question, text in texts.items() if text == "unanswered"} == hopeless
        assert client.unanswered == 2
        hopeless.add(questions[2])
        with pytest.raises(UsageError, match=r"left 3 of 53 requests unanswered.*more than 1 % end a run"):
            ask_all(client, questions[:3])


@pytest.mark.parametrize(("status", "says"), [("401", "refuses requests"), ("404", "refuses requests")])
def test_a_server_that_refuses_everything_is_said_at_once(server: StandIn, status: str, says: str) -> None:
    server.behaviour.fault = lambda number: status
    with Client(described(server)) as client, pytest.raises(UsageError, match=says):
        ask_all(client, ["x"])
    assert len(server.behaviour.asked) == 1


def test_a_request_that_the_server_does_not_take_is_unanswered(server: StandIn) -> None:
    server.behaviour.fault = lambda number: "400"
    with Client(described(server)) as client:
        assert ask_all(client, ["x"]) == {"x": "unanswered"}


def test_a_server_whose_numbers_tell_nothing_is_asked_all_the_same(
    server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = Answer.of

    def numbered(content: object) -> Answer:
        found = of(content)
        return Answer("0", found.text, found.tokens, found.cut)

    monkeypatch.setattr(Answer, "of", numbered)
    questions = list(references())[:5]
    with Client(described(server)) as client:
        assert ask_all(client, questions) == {q: f"Then, {references()[q]}" for q in questions}


def test_headers_and_fields_are_sent(server: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "k")
    sent = described(server).model_copy(update={"headers": {"Authorization": "Bearer ${KEY}"}, "body": {"a": 1}})
    with Client(sent) as client:
        ask_all(client, ["x"])
    (asked,) = server.behaviour.asked
    assert asked["headers"]["authorization"] == "Bearer k"
    assert asked["a"] == 1


def test_acceptance_is_read_from_the_answers_of_vllm_and_of_sglang(server: StandIn) -> None:
    with Client(described(server)) as client:
        assert client.run(client.ask({"prompt": "x"})).acceptance == Acceptance(10, 50, 10)
        server.behaviour.flavour = "sglang"
        told = client.run(client.ask({"prompt": "x"})).acceptance
    assert told == Acceptance(10, 0, 10)
    assert told.record["mean_acceptance_length"] == 2.0


def test_a_stream_tells_when_its_parts_came(server: StandIn) -> None:
    server.behaviour.seconds = lambda value: 0.005
    with Client(described(server)) as client:
        timed = client.run(client.time({"prompt": "x"}))
    assert timed.tokens == 20
    assert 0.05 <= timed.first < timed.whole
    assert timed.between == pytest.approx((timed.whole - timed.first) / 19)


@pytest.mark.parametrize("fault", ["500", "429", "reset", "half", "cut", "html", "midway"])
def test_a_stream_that_fails_is_no_answer(server: StandIn, fault: str) -> None:
    server.behaviour.fault = lambda number: fault
    with Client(described(server)) as client, pytest.raises(NoAnswerError):
        client.run(client.time({"prompt": "x"}))
    assert len(server.behaviour.asked) == (2 if fault == "reset" else 1)  # another connection is tried


def test_a_stream_whose_connection_the_server_had_closed_is_asked_for_on_another(server: StandIn) -> None:
    """As llama.cpp's server closes some after a stream."""
    server.behaviour.fault = lambda number: "reset" if number == 0 else None
    with Client(described(server)) as client:
        assert client.run(client.time({"prompt": "x"})).tokens == 20
    assert (client.asked, client.unanswered) == (1, 0)
