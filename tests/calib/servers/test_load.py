"""Loads: streams that never rest, and requests that arrive by themselves."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import kstest

from fsd_calib.options.server import ServerDescription
from fsd_calib.servers.answers import Acceptance, Timed
from fsd_calib.servers.client import Client
from fsd_calib.servers.load import Load, Piece, Seen, Slo, _arrivals, send
from fsd_calib.servers.served import Way
from support.servers.stand_in import TOKENS, standing_in

BODIES = [{"model": "model", "prompt": f"x{number}"} for number in range(12)]


@pytest.mark.parametrize("load", [Load(1), Load(4), Load(1, rate=200.0)], ids=str)
def test_every_request_is_sent_once_and_timed(load: Load) -> None:
    with standing_in() as server, Client(_described(server.url)) as client:
        piece = send(Way(client, {"vllm_xargs": {"fsd_threshold": 0.3}}), BODIES, load, 0)
    assert sorted(body["prompt"] for body in server.behaviour.asked) == sorted(body["prompt"] for body in BODIES)
    assert all(body["vllm_xargs"] == {"fsd_threshold": 0.3} for body in server.behaviour.asked)
    assert len(piece.timed) == 12
    assert sum(each.tokens for each in piece.timed) == 12 * TOKENS
    assert piece.rate(load) > 0


@pytest.mark.parametrize("streams", [1, 4])
def test_streams_keep_so_many_requests_under_way(streams: int) -> None:
    with standing_in(seconds=lambda value: 2e-3) as server, Client(_described(server.url)) as client:
        send(Way(client, {}), BODIES, Load(streams), 0)
    assert server.behaviour.most_under_way == streams


def test_failures_are_counted_and_not_timed() -> None:
    fails = standing_in(fault=lambda number: "500" if number % 6 == 0 else None)
    with fails as server, Client(_described(server.url)) as client:
        piece = send(Way(client, {}), BODIES, Load(2), 0)
    assert (len(piece.timed), piece.failed) == (10, 2)


@pytest.mark.parametrize("flavour", ["vllm", "sglang", "counters"])
def test_acceptance_is_that_of_the_answers_or_else_of_the_counters(flavour: str) -> None:
    with standing_in(flavour=flavour) as server, Client(_described(server.url)) as client:
        seen = Seen()
        for seed in range(2):
            seen.add(send(Way(client, {}), BODIES, Load(2), seed))
    drafted = 0 if flavour == "sglang" else 50  # it does not tell
    assert seen.acceptance == Acceptance(24 * 10, 24 * drafted, 24 * 10)


def test_arrivals_are_a_poisson_process() -> None:
    """Waits are exponential. False-alarm probability: 1e-4."""
    arrivals = np.array(_arrivals(2000, 5.0, 1))
    assert arrivals[0] == 0
    assert kstest(np.diff(arrivals), "expon", args=(0, 1 / 5.0)).pvalue > 1e-4


def test_figures_of_what_was_seen() -> None:
    seen, slo = Seen(), Slo(ttft=0.15, itl=0.02)
    seen.add(Piece([Timed(0.1, 1.1, 101), Timed(0.2, 1.2, 101), Timed(0.1, 3.1, 101)], 1, 3.0))
    assert seen.tokens_per_second == pytest.approx(101)
    assert seen.first[0] == pytest.approx(0.1)
    assert seen.between == pytest.approx([0.01, 0.0260, 0.0296], abs=1e-4)
    assert seen.goodput(slo) == pytest.approx(1 / 3.0)  # the second begins late, the third is slow


def _described(url: str) -> ServerDescription:
    return ServerDescription(url=url, model="model", endpoint="completions")
