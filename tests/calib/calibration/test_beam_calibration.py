"""Calibrations of beams: T, width and depth searched and certified as for single texts, and the profiles of beams."""

from __future__ import annotations

import json
import warnings
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fsd_calib import SpeculativeDecoder, ThresholdProfile, calibrate, load_task
from fsd_calib.calibration.api import Calibration
from fsd_calib.calibration.recertify import decoding_of, setting_of
from fsd_calib.cli import console
from fsd_calib.cli import generate as generate_app
from fsd_calib.cli import inspect as inspect_app
from fsd_calib.cli.drafters import Drafters
from fsd_calib.engines.base import DecodingRequest, KeyedPrompt
from fsd_calib.engines.beams import BeamEngine, Beams
from fsd_calib.exports.engines import ENGINES, export_profile
from fsd_calib.options.goal import Goal
from fsd_calib.options.run_config import RunConfig
from fsd_calib.options.search_space import SearchSpace
from fsd_calib.report.console import usage
from fsd_calib.report.figures import notes
from fsd_calib.report.plan import slots_line
from fsd_calib.report.tables import sheets
from fsd_calib.tasks import Task
from fsd_calib.tasks.grading.graders import contains, same_text
from fsd_calib.vllm_plugin.engine_checks import check_profile
from fsd_common.errors import UsageError
from fsd_data import pair_paths, recurrent_path
from fsd_decoding.adaptive import PerDomain
from fsd_decoding.beams.result import Beam
from fsd_decoding.beams.settings import BeamSettings
from fsd_decoding.profile.json_schema import schema_text
from fsd_decoding.profile.setting import Setting
from support.calibration.fixed_speeds import fix_speeds
from support.calibration.profiles import profile
from support.messages import error_line, usage_error
from support.models import tiny_calibration
from support.models.tiny_calibration import task
from support.models.tiny_models import word_tokenizer
from support.models.tiny_pair import tiny_decoder

BEAMS: dict[str, Any] = {"number": 2, "width": 3, "answer": "majority"}
ARM = Setting("fsd-coupled", "js", 3, width=3)


def run(folder: Path, **settings: Any) -> ThresholdProfile:
    asked: dict[str, Any] = {"beams": 2, "beam_width": (2, 3), "draft_length": (2, 3), "workers": 1, **settings}
    return tiny_calibration.run_surely(folder / "out", folder / "cache", **asked)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("beams")


@pytest.fixture(scope="module")
def made(folder: Path) -> ThresholdProfile:
    with pytest.MonkeyPatch.context() as patch:
        fix_speeds(patch, 2.0)
        return run(folder)


@pytest.mark.slow
def test_what_is_certified_is_in_the_profile_and_generate_beams_follows_it(made: ThresholdProfile) -> None:
    assert made.certificate.certified
    assert made.beams is not None
    assert (made.beams.number, made.beams.answer) == (2, "best")
    assert made.chosen.width == made.beams.width
    assert made.lossless is not None
    assert made.lossless.rule == "coupled"
    assert {point.setting.width for point in made.curve if point.setting.rule != "target"} <= {2, 3}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decoder = SpeculativeDecoder.from_pretrained(
            *tiny_calibration.far_apart(), profile=made, tokenizer=word_tokenizer()
        )
        (own,) = decoder.generate_beams(["w20 w30"], max_new_tokens=12)
    given: dict[str, Any] = {"width": made.chosen.width, "depth": made.draft_length, "threshold": made.threshold}
    alone = SpeculativeDecoder(*tiny_calibration.far_apart(), word_tokenizer())
    (by_hand,) = alone.generate_beams(["w20 w30"], 2, 12, **given)
    assert [beam.tokens for beam in own.beams] == [beam.tokens for beam in by_hand.beams]
    with pytest.warns(UserWarning, match="width is 7 instead of .: the certificate .* does not apply"):
        decoder.generate_beams(["w20 w30"], max_new_tokens=12, width=7)
    for single in (decoder.generate, lambda prompts: list(decoder.stream(prompts[0]))):
        assert "is of 2 beams, which" in usage_error(partial(single, ["w20 w30"]))


@pytest.mark.slow
def test_with_replacement_the_targets_law_is_kept_and_the_profile_says_how_beams_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix_speeds(monkeypatch, 2.0)
    found = run(tmp_path, rule="fsd-sd", temperature=0.5)
    assert found.certificate.certified
    assert found.beams is not None
    assert found.beams.replacement
    assert found.lossless is not None
    assert (found.rule, found.lossless.rule) == ("fsd-sd", "sd")
    assert found.numerical_churn is None  # `sd` has noise of its own
    assert decoding_of(found).replacement
    models = tiny_calibration.far_apart()
    given: dict[str, Any] = {"width": found.chosen.width, "depth": found.draft_length}
    decoder = SpeculativeDecoder.from_pretrained(*models, profile=found, tokenizer=word_tokenizer())
    (own,) = decoder.generate_beams(["w20 w30"], max_new_tokens=12)
    (by_hand,) = SpeculativeDecoder(*models, word_tokenizer()).generate_beams(
        ["w20 w30"], 2, 12, 0.5, rule="fsd-sd", threshold=found.threshold, replacement=True, **given
    )
    assert [beam.tokens for beam in own.beams] == [beam.tokens for beam in by_hand.beams]
    with pytest.warns(UserWarning, match="replacement is False instead of True: the certificate"):
        decoder.generate_beams(["w20 w30"], max_new_tokens=12, rule="fsd-coupled", replacement=False)


@pytest.mark.slow
def test_the_same_command_decodes_nothing_again(
    made: ThresholdProfile, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ThresholdProfile.load(folder / "out") == made
    fix_speeds(monkeypatch, 2.0)
    again = run(folder)
    assert again.effort is not None
    assert again.effort.total.decoded == 0
    assert (again.curve, again.certificate) == (made.curve, made.certificate)


@pytest.mark.slow
def test_its_setting_is_certified_anew_as_a_further_attempt(
    made: ThresholdProfile, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix_speeds(monkeypatch, 2.0)
    config = RunConfig(cache=folder / "cache", state=folder / "cache", out=tmp_path, workers=1)
    calibration = Calibration(
        task(240), *tiny_calibration.far_apart(), Goal(min_acc=0.4), decoding_of(made), config, word_tokenizer(), made
    )
    found = calibration.run()
    assert found.beams == made.beams
    assert found.chosen == made.chosen
    assert found.certificate.attempt == 2


@pytest.mark.slow
def test_workers_decode_beams_and_vote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fix_speeds(monkeypatch, 2.0)
    target, draft = pair_paths()
    asked: dict[str, Any] = {
        "min_acc": 0.5, "beams": 2, "beam_width": 3, "draft_length": 2, "beam_answer": "majority", "limit": 60,
        "cache": tmp_path, "state": tmp_path, "trials": 1,
    }  # fmt: skip
    found = calibrate("arithmetic", target, draft, workers=2, **asked)
    assert found.beams is not None
    assert found.beams.answer == "majority"
    assert found.effort is not None
    assert found.effort.total.decoded > 0


@pytest.mark.slow
def test_the_plan_says_what_memory_beams_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fix_speeds(monkeypatch, 2.0)
    config = RunConfig(cache=tmp_path, state=tmp_path, workers=1, batch_size=8)
    space = SearchSpace(beams=2, beam_width=3, draft_length=2)
    models = tiny_calibration.far_apart()
    memory = Calibration(task(80), *models, Goal(min_acc=0.5), space, config, word_tokenizer()).plan().memory
    assert memory is not None
    assert (memory.beams, memory.rows) == (2, 8)
    settings = BeamSettings(2, 3)
    assert memory.reserved == settings.shared(12, 6)  # 12 new tokens, and depth 6 is tried once
    assert 12 < memory.slots < settings.nodes(12, 6)
    assert f"begin with {memory.reserved} slots behind a prompt" in slots_line(memory)
    assert f"{memory.slots} were in use at most so far" in slots_line(memory)
    single = Calibration(task(80), *models, Goal(min_acc=0.5), SearchSpace(draft_length=2), config, word_tokenizer())
    assert single.plan().memory.beams is None  # type: ignore[union-attr]


def test_the_engine_answers_as_it_is_told_and_counts_layers() -> None:
    decoder, problems = tiny_decoder(temperature=1.0), task(4)
    engine = BeamEngine(decoder, problems, Beams(3))
    prompts = [KeyedPrompt(problem.id, problem.prompt) for problem in problems.problems]
    request = DecodingRequest(ARM.at(0.1), 3, prompts, 2)
    results = engine.decode(request, begin=lambda place: place != 1)
    found = decoder.generate_beams(
        [prompt.prompt for prompt in prompts], 3, problems.max_new_tokens, width=3, depth=3, threshold=0.1, seed=3,
        ids=[prompt.id for prompt in prompts],
    )  # fmt: skip
    kept = [result for place, result in enumerate(found) if place != 1]
    assert [r.tokens for r in results] == [r.tokens for r in kept]
    assert [r.emitted for r in results] == [r.layers for r in kept]
    assert engine.emitted(request) == sum(result.layers for result in found)
    assert engine.most_slots == max(result.slots for result in found)
    assert engine.decode(request, begin=lambda place: False) == []
    layers = engine.layers(request._replace(setting=ARM.under("coupled")), "fsd-coupled")
    exact = decoder.generate_beams(
        [prompt.prompt for prompt in prompts], 3, problems.max_new_tokens, width=3, depth=3, rule="coupled", seed=3,
        ids=[prompt.id for prompt in prompts],
    )  # fmt: skip
    assert (layers.emitted, layers.rounds) == (sum(r.layers for r in exact), sum(r.rounds for r in exact))
    assert 0 < len(layers.scores) <= layers.rounds
    assert 1 <= layers.per_round(3, None) * layers.rounds / layers.emitted < 1.3  # the last rounds draft less


def test_its_keys_tell_beams_widths_and_answers_apart() -> None:
    decoder, problems = tiny_decoder(temperature=1.0), task(4)
    voted = Task("t", problems.problems, 12, (), "tests", same_text)
    asked = Beams(2), Beams(3), Beams(2, voted), Beams(2, replacement=True)
    engines = [BeamEngine(decoder, problems, each) for each in asked]
    settings = Setting.alone("js"), ARM, ARM.under("coupled")
    keys = [engine.key(s if s.rule != "fsd-coupled" else s.at(0.1), 0).json for engine in engines for s in settings]
    assert len({*keys}) == len(keys)
    wider = Setting("fsd-coupled", "js", 3, 0.1, width=4)
    assert engines[0].key(wider, 0) != engines[0].key(ARM.at(0.1), 0)


def test_the_majority_is_the_best_scored_text_of_the_most_frequent_answer() -> None:
    whole = load_task("arithmetic", limit=2)
    (result,) = tiny_decoder().generate_beams([[5, 6]], 4, 4)
    said = ["It is 7.", "She has 12 pies. #### 12", "no number", "#### 12"]
    beams = [Beam(text, *list(vars(beam).values())[1:]) for text, beam in zip(said, result.beams, strict=True)]
    voted = type(result)(beams, *list(vars(result).values())[1:])
    problem = whole.problems[0].id
    assert Beams(4, whole).answering(problem, voted).text == said[1]
    assert Beams(4).answering(problem, voted).text == said[0]
    apart = type(result)(beams[::2], *list(vars(result).values())[1:])
    assert Beams(2, whole).answering(problem, apart).text == said[0]  # the text without a number has no vote


def test_tasks_without_answers_to_compare_are_refused_by_name() -> None:
    graded = Task("essays", task(2).problems, 12, (), "tests", contains)
    message = usage_error(lambda: Beams(2, graded))
    assert message == (
        "beam_answer is majority, and the grader of task essays does not compare answers; give beam_answer best"
    )
    config = RunConfig(workers=1)
    space, models = SearchSpace(beams=2, beam_answer="majority"), tiny_calibration.far_apart()
    calibration = Calibration(graded, *models, Goal(min_acc=0.5), space, config, word_tokenizer())
    assert usage_error(calibration.check) == message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beams": 1}, "beams is 1; it must be a whole number of 2 or more"),
        ({"beams": None, "beam_width": 4}, "beam_width is given without beams; give both, or none"),
        ({"beams": None, "beam_answer": "majority"}, "beam_answer is given without beams; give both, or none"),
        ({"beam_width": (4, 2)}, "beam_width is 2, and beams 3; a layer is at least as wide as there are beams"),
        ({"tree": "chain", "beam_width": 2}, "beam_width is 2, and beams 3"),
        (
            {"predictor": "auto"},
            "beams is 3, and predictor is auto, which is of single texts; leave one of the two out",
        ),
        ({"score": "judge", "judge": "auto"}, "beams is 3, and judge is auto, which is of single texts"),
        ({"threshold_policy": "schedule"}, "beams is 3, and threshold_policy is schedule, which is of single texts"),
        ({"rule": "fsd"}, "beams is 3, and rule is fsd, and the rule of beams is one of fsd-coupled, fsd-sd; leave"),
        (
            {"rule": "fsd-sd"},
            "rule is fsd-sd, which draws beams, and temperature is 0, at which nothing is drawn; give",
        ),
        (
            {"engine": "vllm"},
            "beams is 3, and engine is vllm, and beams are decoded by fsd-calib; leave one of the two",
        ),
        ({"compile": "capture"}, "beams is 3, and compile is capture, and beams are decoded without graphs"),
        ({"guard": "csqa"}, "beams is 3, and guard is csqa, and beams are calibrated for one task"),
        ({"score": "margin"}, "beams is 3, and score is margin, and scores of beams are js, ag, "),
    ],
    ids=str,
)
def test_what_beams_do_not_go_with_is_refused_before_anything_is_loaded(settings: dict[str, Any], message: str) -> None:
    asked = {"beams": 3, **settings}
    found = usage_error(lambda: calibrate("arithmetic", target="nowhere", draft="nowhere", min_acc=0.9, **asked))
    assert message in found


def test_drafts_that_are_no_model_are_refused() -> None:
    from fsd_decoding.drafters.ngram import NGram

    message = usage_error(lambda: calibrate("arithmetic", "nowhere", NGram(), min_acc=0.9, beams=2))
    assert message == "beams is given, and the draft is NGram(); beams are drafted by a model, give one"


@pytest.mark.parametrize(
    ("drafters", "given"),
    [
        (Drafters((), ("some/head",), ()), "--head is some/head"),
        (Drafters((), (), ("model", "ngram")), "--drafter is ngram"),
    ],
)
def test_options_that_draft_by_no_model_are_refused_by_name(drafters: Drafters, given: str) -> None:
    message = usage_error(lambda: drafters.check_models("--beams is 2"))
    assert message == f"--beams is 2, and {given}; beams are drafted by models, leave one of the two out"
    Drafters(("a/b",), (), ("model",)).check_models("--beams is 2")


def test_recurrent_models_are_refused_before_weights_are_read() -> None:
    config, (target, _) = RunConfig(workers=1), pair_paths()
    for models, role in (((target, recurrent_path()), "draft"), ((recurrent_path(), target), "target")):
        calibration = Calibration("arithmetic", *models, Goal(min_acc=0.5), SearchSpace(beams=2), config)
        assert f"beams is given, and the {role} has recurrent layers" in usage_error(calibration.check)


def test_a_profile_of_beams_is_read_back_shown_and_certified_as_such() -> None:
    found = profile({"beams": BEAMS}).sealed()
    assert ThresholdProfile.from_content(found.model_dump_json()) == found
    assert found.chosen.width == 3
    assert setting_of(found).width == 3
    space = decoding_of(found)
    assert (space.beams, space.widths, space.beam_answer) == (2, (3,), "majority")
    assert Setting.of(json.loads(json.dumps(found.chosen.values))) == found.chosen
    assert "2 beams, answers by majority" in str([list(sheet.columns[1].cells) for sheet in sheets(found)])
    assert "width 3" in str(found.chosen)
    assert "greedy, 2 beams, answers by majority" in notes(found)
    assert '"BeamsInfo"' in schema_text()
    drawn = profile({"beams": BEAMS | {"replacement": True}, "rule": "fsd-sd", "sampling.temperature": 0.5}).sealed()
    assert ThresholdProfile.from_content(drawn.model_dump_json()) == drawn
    assert decoding_of(drawn).replacement
    assert not space.replacement
    assert "2 beams drawn with replacement, answers by majority" in notes(drawn)
    with pytest.raises(ValueError, match="width is 3, but number is 4; it must be at least that"):
        profile({"beams": BEAMS | {"number": 4}})


def test_what_decodes_single_texts_refuses_it_by_name(tmp_path: Path) -> None:
    found = profile({"beams": BEAMS}).sealed()
    with pytest.raises(UsageError, match="the profile is of 2 beams, which vLLM decodes without it"):
        check_profile(found)
    assert "is of 2 beams, and this policy sets T for single texts alone" in usage_error(
        lambda: PerDomain({"a": found}, ["a"])
    )
    found.save(tmp_path / "profile.json")
    assert "is of 2 beams, which vLLM decodes without it" in usage_error(partial(export_profile, found, "vllm"))
    for name in ("sglang", "tensorrt-llm", "max"):
        assert next(ENGINES[name].obstacles(found)).startswith("the profile is of 2 beams, and")
    assert "is of 2 beams, answers by majority, and what is exported returns the best-scored text" in usage_error(
        partial(export_profile, found, "transformers")
    )
    best = profile({"beams": BEAMS | {"answer": "best"}}).sealed()
    best.save(tmp_path / "best.json")
    assert "num_beams=2" in export_profile(best, "transformers")


@pytest.mark.parametrize("command", [generate_app, inspect_app], ids=lambda command: command.NAME)
def test_commands_refuse_it_before_they_load_models(
    command: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile({"beams": BEAMS, "target.id": "no/where"}).sealed().save(tmp_path / "profile.json")
    assert console.run(command.app, command.NAME, ["--profile", str(tmp_path / "profile.json"), "hi"]) == 2
    assert f"is of 2 beams, which {command.NAME} does not decode" in error_line(capsys)


def test_the_lines_that_decode_as_certified_vote_where_the_majority_answers() -> None:
    by_majority, by_score = (profile({"beams": BEAMS | {"answer": answer}}) for answer in ("majority", "best"))
    assert "generate_beams" in usage(by_score, Path("p.json"))
    assert "result.majority(agree).text" in usage(by_majority, Path("p.json"))
    assert "majority" not in usage(by_score, Path("p.json"))
