"""The bar below a notebook's cell, in a real kernel."""

from __future__ import annotations

import re
from typing import Any

import pytest
from jupyter_client.manager import start_new_kernel

from fsd_common.progress.base import Silent
from fsd_common.progress.chosen import called_progress

CODE = """
import time
from fsd_common.progress.base import ProgressEstimate, Stage
from fsd_common.progress.chosen import called_progress

bar, estimate, done = called_progress(), ProgressEstimate(), [0]
with bar.whole(estimate):
    estimate.expect([Stage("search", 100.0, units=10)], lambda: done[0])
    estimate.begin("search")
    estimate.best = "best so far: T = <0.5>"
    with bar.step("decoding", 10) as advance:
        advance(4)
        done[0] = 4
        time.sleep(1.2)  # two drawings at least
    bar.note("a note")
"""


@pytest.fixture(scope="module")
def messages() -> list[dict[str, Any]]:
    """What a kernel sends while it runs the code."""
    manager, client = start_new_kernel(kernel_name="python3")
    found: list[dict[str, Any]] = []
    try:
        client.execute_interactive(CODE, output_hook=found.append, timeout=60)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    return found


def test_it_is_drawn_over_itself_and_is_gone_in_the_end(messages: list[dict[str, Any]]) -> None:
    drawn = [m for m in messages if m["msg_type"] in ("display_data", "update_display_data")]
    assert [m["msg_type"] for m in drawn].count("display_data") == 1
    assert len({m["content"]["transient"]["display_id"] for m in drawn}) == 1
    shown = [m["content"]["data"]["text/html"] for m in drawn]
    assert "<strong>preparing</strong>" in shown[0]
    assert any(
        "<strong>search</strong>" in html and "decoding: 4 of 10" in html and "T = &lt;0.5&gt;" in html and "%" in html
        for html in shown
    )
    assert shown[-1] == ""


def test_notes_and_the_time_it_took_stay_as_text(messages: list[dict[str, Any]]) -> None:
    said = "".join(m["content"]["text"] for m in messages if m["msg_type"] == "stream")
    assert re.match(r"a note\ndone in 0:\d\d \(preparing 0:00, search 0:\d\d\)\n", said)


def test_elsewhere_nothing_is_shown() -> None:
    assert isinstance(called_progress(), Silent)
