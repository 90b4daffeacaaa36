"""Our own engine passes what calibrations rely on; settings of vLLM's engine, and what is refused before loading."""

from __future__ import annotations

from typing import Any, cast

import pytest

from conformance.engines import EngineConformance
from fsd_calib import calibrate
from fsd_calib.engines.base import DecodingRequest, KeyedPrompt
from fsd_calib.engines.own import OwnEngine
from fsd_calib.engines.vllm.loading import EngineArguments
from fsd_calib.tasks.base import Task
from fsd_common.errors import UsageError
from fsd_data import pair_paths
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.drafters.ngram import NGram
from fsd_decoding.profile.setting import Setting
from support.models import tiny_calibration
from support.models.tiny_models import word_tokenizer
from support.models.tiny_pair import related, tiny_decoder
from support.models.tiny_task import tiny_task


@pytest.fixture(scope="module")
def task() -> Task:
    return cast(Task, tiny_task(20))


@pytest.fixture(scope="module")
def engine(task: Task) -> OwnEngine:
    return OwnEngine(tiny_decoder(), task)


class TestOwnEngine(EngineConformance):
    """On the tiny pair in float64."""


def test_the_draft_alone_writes_what_it_would_write_as_a_target(engine: OwnEngine, task: Task) -> None:
    own = engine.decoder
    as_target = OwnEngine(SpeculativeDecoder(own.draft, NGram(), own.tokenizer, own.decoding), task)
    prompts = [KeyedPrompt(problem.id, problem.prompt) for problem in task.problems]
    alone, target = Setting.draft_alone("js", None), Setting.alone("js")

    def texts(engine: OwnEngine, setting: Setting) -> list[str]:
        return [result.text for result in engine.decode(DecodingRequest(setting, 0, prompts, 7))]

    assert engine.runs_draft_alone
    assert texts(engine, alone) == texts(as_target, target) != texts(engine, target)
    assert engine.key(alone, 0) != engine.key(target, 0)


def test_a_draft_that_is_no_model_writes_nothing_alone(engine: OwnEngine, task: Task) -> None:
    own = engine.decoder
    assert not OwnEngine(SpeculativeDecoder(own.target, NGram(), own.tokenizer, own.decoding), task).runs_draft_alone


PAIR = tuple(map(str, pair_paths()))


@pytest.mark.parametrize(
    ("given", "way_out"),
    [
        ({"model": "x"}, "give it as target"),
        ({"speculative_config": {}}, "another drafter as speculative_config"),
        ({"data_parallel_size": 2}, "workers starts replicas"),
        ({"revision": "x"}, "download that revision"),
        ({"load_format": "dummy"}, "the checkpoint's own weights"),
        ({"pipeline_parallel_size": 2}, "use tensor_parallel_size"),
        ({"enable_prefix_caching": True}, "prompts that the draft has not read"),
    ],
)
def test_arguments_that_the_calibration_sets_are_refused(given: dict[str, Any], way_out: str) -> None:
    with pytest.raises(UsageError, match=rf"engine_args sets '{next(iter(given))}', .*{way_out}"):
        EngineArguments.of(given)


def test_arguments_are_json() -> None:
    with pytest.raises(UsageError, match=r"engine_args is .*; it must be a JSON object"):
        EngineArguments.of({"compilation_config": print})


def test_texts_depend_on_all_arguments_but_those_of_room() -> None:
    given = {"tensor_parallel_size": 2, "gpu_memory_utilization": 0.8, "quantization": "fp8"}
    arguments = EngineArguments.of(given)
    assert arguments.values == given
    assert arguments.decisive == {"tensor_parallel_size": 2, "quantization": "fp8"}
    assert arguments == EngineArguments.of(dict(reversed(given.items())))


def test_room_for_what_is_decoded_is_required() -> None:
    EngineArguments.of({"max_model_len": 400, "max_num_seqs": 32}).check_room(rows=32, context=400)
    with pytest.raises(UsageError, match="sets 'max_model_len' to 400, and the longest prompt and its text take 401"):
        EngineArguments.of({"max_model_len": 400}).check_room(rows=32, context=401)
    with pytest.raises(UsageError, match=r"sets 'max_num_seqs' to 16, .*at once: 32; use a smaller"):
        EngineArguments.of({"max_num_seqs": 16}).check_room(rows=32, context=400)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"draft": [*PAIR[1:], PAIR[0]]}, "loaded with one draft, and 2 are given"),
        ({"predictor": "auto"}, "cannot end drafts by a predictor"),
        ({"threshold_policy": "per-prompt"}, "cannot follow policy 'per-prompt'"),
        ({"rule": "fsd"}, "can follow fsd-sd and fsd-coupled, and the rule is 'fsd'"),
        ({"score": ["js", "cactus"]}, "decodes greedily here, and score 'cactus' reads the random number"),
        (
            {"score": "margin", "temperature": 0.8},
            "rule 'fsd-coupled' with score 'margin' samples from another law",
        ),
        ({"timing": "careful"}, "leave timing careful out"),
        ({"compile": "capture"}, "leave compile out"),
        ({"device": "cpu"}, "leave device out"),
        ({"temperature": 0.001}, "samples at temperature 0.01 or above"),
        ({"model_kwargs": {"quantization": "torchao-int8wo"}}, "leave the options of loading out"),
    ],
)
def test_what_vllm_cannot_do_is_refused_first(given: dict[str, Any], reason: str) -> None:
    target, draft = PAIR
    with pytest.raises(UsageError, match=rf"engine is 'vllm', .*{reason}"):
        calibrate("arithmetic", target, given.pop("draft", draft), min_acc=0.9, engine="vllm", **given)


def test_arguments_of_the_calibration_are_refused_first() -> None:
    with pytest.raises(UsageError, match="engine_args sets 'model', which cannot be set: give it as target"):
        calibrate("arithmetic", *PAIR, min_acc=0.9, engine="vllm", engine_args={"model": "x"})


def test_loaded_models_are_refused() -> None:
    target, draft = related(seed=1, spread=0.05)
    with pytest.raises(UsageError, match="the target is a loaded LlamaForCausalLM: give its path or id"):
        calibrate(tiny_calibration.task(40), target, draft, tokenizer=word_tokenizer(), min_acc=0.9, engine="vllm")


def test_other_engines_and_arguments_without_vllm_are_refused() -> None:
    with pytest.raises(UsageError, match="engine is 'sglang'; it must be one of fsd-calib, vllm"):
        calibrate("arithmetic", *PAIR, min_acc=0.9, engine="sglang")
    with pytest.raises(UsageError, match="engine_args are for engine 'vllm', and engine is 'fsd-calib'"):
        calibrate("arithmetic", *PAIR, min_acc=0.9, engine_args={"tensor_parallel_size": 2})
