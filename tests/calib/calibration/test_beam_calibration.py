"""Calibration of T for beams: frozen by tuning problems, certified on others, lossless where nothing is certified."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fsd_calib.calibration.beams import BeamCalibration, Step, calibrate_beams, worth_testing
from fsd_calib.engines.base import DecodingRequest, KeyedPrompt
from fsd_calib.engines.beams import BeamEngine, best_of
from fsd_calib.options.run_config import RunConfig
from fsd_decoding.beams.settings import BeamSettings
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.profile.setting import Setting
from support.messages import usage_error
from support.models.tiny_calibration import far_apart, task
from support.models.tiny_models import word_tokenizer
from support.models.tiny_pair import tiny_decoder

BEAMS = BeamSettings(2, 2)
ARM = Setting("fsd-coupled", "js", 3)


def calibrated(folder: Path, min_acc: float, problems: int = 36, **given: Any) -> BeamCalibration:
    torch.set_num_threads(1)
    decoder = SpeculativeDecoder(*far_apart(), word_tokenizer(), draft_length=3)
    config = RunConfig(cache=folder / "cache", state=folder / "state", batch_size=20)
    return calibrate_beams(decoder, task(problems), BEAMS, min_acc, ladder=(0.05, 10.0), config=config, **given)


@pytest.mark.slow
def test_a_certificate_is_of_problems_that_were_not_tuned_on(tmp_path: Path) -> None:
    """Half of all texts are right, whatever is accepted."""
    found = calibrated(tmp_path, 0.3)
    assert found.chosen is not None
    assert found.threshold == found.chosen.threshold == 10.0
    assert found.attempt == 1
    assert found.evidence[-1].passed
    assert found.speed_up is not None
    tuned = 36 - found.evidence[-1].paired.problems
    assert 0 < tuned < 36
    again = calibrated(tmp_path, 0.3)  # the same attempt, decided
    assert (again.threshold, again.attempt) == (10.0, 1)


def test_where_nothing_is_kept_it_is_lossless(tmp_path: Path) -> None:
    found = calibrated(tmp_path, 5.0)
    assert (found.chosen, found.threshold, found.attempt, found.evidence) == (None, -1.0, None, ())
    assert [step.setting.threshold for step in found.steps] == [0.05, 10.0]


def test_so_it_is_where_a_dynamic_width_was_asked_for(tmp_path: Path) -> None:
    """Which is lossless at no T: it goes with the certificate."""
    decoder = SpeculativeDecoder(*far_apart(), word_tokenizer(), draft_length=2, rule="fsd-sd", temperature=1.0)
    config = RunConfig(cache=tmp_path / "cache", state=tmp_path / "state", batch_size=20)
    asked = BeamSettings(2, 2, replacement=True, chance=0.7)
    found = calibrate_beams(decoder, task(20), asked, 5.0, ladder=(0.05,), config=config)
    assert (found.chosen, found.threshold, found.settings) == (None, -1.0, replace(asked, chance=0.0))


def test_what_is_frozen_keeps_enough_in_ever_fewer_rounds() -> None:
    """Whatever the clock says."""
    steps = [Step(ARM.at(t), kept, layers, speed_up=0.9 - t) for t, kept, layers in
             [(0.1, 1.0, 1.0), (0.2, 1.0, 1.2), (0.3, 0.99, 1.1), (0.4, 0.9, 1.4), (0.5, 0.98, 1.3)]]  # fmt: skip
    assert [setting.threshold for setting in worth_testing(steps, 0.98)] == [0.2, 0.5]


def test_the_engine_answers_with_the_best_beam_and_its_key_holds_the_beams() -> None:
    decoder, problems = tiny_decoder(temperature=1.0), task(4)
    engine = BeamEngine(decoder, problems, BEAMS)
    prompts = [KeyedPrompt(problem.id, problem.prompt) for problem in problems.problems]
    results = engine.decode(DecodingRequest(ARM.at(0.1), 3, prompts, 2), begin=lambda place: place != 1)
    found = decoder.generate_beams(
        [prompt.prompt for prompt in prompts], 2, problems.max_new_tokens, width=2, depth=3, threshold=0.1, seed=3,
        ids=[prompt.id for prompt in prompts],
    )  # fmt: skip
    assert [r.tokens for r in results] == [r.tokens for i, r in enumerate(found) if i != 1]
    assert engine.emitted(DecodingRequest(ARM.at(0.1), 3, prompts, 2)) == sum(result.layers for result in found)
    assert sum(result.layers for result in found) != sum(r.emitted for r in map(best_of, found))
    assert [r.interval for r in results] == [pytest.approx(r.interval) for i, r in enumerate(found) if i != 1]
    others = [BeamEngine(decoder, problems, each) for each in (BeamSettings(2, 3), replace(BEAMS, length_penalty=3))]
    alone, fuzzy = Setting.alone("js"), ARM.at(0.1)
    assert [other.key(fuzzy, 0) == engine.key(fuzzy, 0) for other in others] == [False, False]
    assert [other.key(alone, 0) == engine.key(alone, 0) for other in others] == [True, False]


@pytest.mark.parametrize(("rule", "message"), [("coupled", "rule is 'coupled', which has no T"), ("fsd", "rule 'fsd'")])
def test_rules_without_a_threshold_on_beams_are_refused(rule: str, message: str) -> None:
    decoder = tiny_decoder(temperature=1.0, rule=rule)
    assert message in usage_error(lambda: calibrate_beams(decoder, task(20), BEAMS, 0.9))
