"""What happens where matplotlib, which only pictures need, is not installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fsd_calib import Telemetry
from fsd_collectors.report.plot import plot
from fsd_decoding.errors import UsageError
from fsd_predictors.training import train
from support.models.tiny_models import word_tokenizer
from support.models.tiny_pair import tiny_decoder
from support.traces.tiny_traces import tiny_traces

MESSAGE = r"pictures need matplotlib, which is not installed: pip install 'fsd-calib\[report\]'"


@pytest.fixture(autouse=True)
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)


def test_traces_are_not_plotted(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=MESSAGE):
        plot(tiny_traces(tmp_path / "traces"), tmp_path / "pictures")
    assert not (tmp_path / "pictures").exists()


def test_telemetry_is_a_table_still_and_no_page(tmp_path: Path) -> None:
    telemetry = Telemetry()
    tiny_decoder().generate(["w1 w2"], 12, observer=telemetry)
    assert len(telemetry.frame())
    with pytest.raises(UsageError, match=MESSAGE):
        telemetry.save(tmp_path / "run.html")


@pytest.mark.slow
def test_a_predictor_is_trained_and_its_card_says_what_is_missing(tmp_path: Path) -> None:
    train(tiny_traces(tmp_path / "traces"), tmp_path / "predictor", trials=1, tokenizer=word_tokenizer())
    card = (tmp_path / "predictor" / "card.md").read_text(encoding="utf-8")
    assert "The reliability curves were not drawn: that needs matplotlib" in card
    assert "](" not in card
    assert not list((tmp_path / "predictor").glob("*.png"))
