"""A pair with recurrent layers the whole way: a Qwen3-Next target and a Mamba-2 draft, from their files to texts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lm_eval.api.instance import Instance
from transformers import AutoModelForCausalLM

from fsd_calib import SpeculativeDecoder, ThresholdProfile, calibrate, collect_traces, fsd_generate
from fsd_calib.inspection.inspected import inspect_text
from fsd_calib.lm_eval_plugin.model import FsdLM
from fsd_calib.tasks import Task
from fsd_decoding.observers.token_sources import TokenSource
from support.models import tiny_calibration
from support.models.recurrent_models import RECURRENT
from support.models.tiny_models import word_tokenizer

NEW = 12
PROMPT = "w20 w30 w4 w5"


def task(count: int) -> Task:
    """Without prompts of one token, which a draft with recurrent layers does not take."""
    made = tiny_calibration.task(count)
    return replace(made, problems=tuple(problem for problem in made.problems if " " in problem.prompt))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Folders of a random target and draft."""
    folder = tmp_path_factory.mktemp("pair")
    for name, seed in (("qwen3-next", 1), ("mamba2", 2)):
        torch.manual_seed(seed)
        AutoModelForCausalLM.from_config(RECURRENT[name], dtype=torch.float32).save_pretrained(folder / name)
        word_tokenizer().save_pretrained(folder / name)
    return str(folder / "qwen3-next"), str(folder / "mamba2")


@pytest.fixture(scope="module")
def made(pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> ThresholdProfile:
    out = tmp_path_factory.mktemp("made")
    target, draft = pair
    calibrate(
        task(150), target=target, draft=draft, out=out / "out", cache=out / "cache", state=out / "state", min_acc=0.5,
        draft_length=4, score="js", trials=4, timing="none", min_gain=1.0, looks=1,
    )  # fmt: skip
    return ThresholdProfile.load(out / "out")


def decoder_of(made: ThresholdProfile) -> SpeculativeDecoder:
    return SpeculativeDecoder.from_pretrained(made.target.id, made.draft.id, profile=made, device="cpu")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the draft has")  # of a family that is larger where models are tiny
class TestWholeWay:
    def test_a_threshold_is_certified(self, made: ThresholdProfile, pair: tuple[str, str]) -> None:
        assert made.certificate.certified
        assert made.lossy
        assert (made.target.id, made.draft.id) == pair

    def test_it_is_followed_and_inspected(self, made: ThresholdProfile) -> None:
        decoder = decoder_of(made)
        (result,) = decoder.generate([PROMPT], NEW)
        told = inspect_text(decoder, PROMPT, NEW)
        assert told.text == result.text
        assert TokenSource.FUZZY in told.shares

    def test_generate_of_transformers_follows_it(self, made: ThresholdProfile, pair: tuple[str, str]) -> None:
        target, draft = (AutoModelForCausalLM.from_pretrained(folder).eval() for folder in pair)
        asked = word_tokenizer()(PROMPT, return_tensors="pt").input_ids
        texts = target.generate(
            asked, max_new_tokens=NEW, do_sample=False, custom_generate=fsd_generate, draft_model=draft,
            fsd_profile=made,
        )  # fmt: skip
        (result,) = decoder_of(made).generate([PROMPT], NEW)
        assert texts[0, asked.shape[1] :].tolist()[: len(result.tokens)] == result.tokens

    def test_traces_are_collected_on_policy(
        self, made: ThresholdProfile, pair: tuple[str, str], tmp_path: Path
    ) -> None:
        target, draft = pair
        traces = collect_traces(
            task(10), target=target, draft=draft, out=tmp_path / "traces", rule=made.rule, threshold=made.threshold,
            score=made.score, draft_length=made.draft_length,
        )  # fmt: skip
        decoder = decoder_of(made)
        own = decoder.generate([problem.prompt for problem in task(10).problems], task(10).max_new_tokens)
        assert traces.tokens.count_rows() == sum(result.drafted for result in own)

    def test_lm_eval_runs_it(self, made: ThresholdProfile, tmp_path: Path) -> None:
        made.save(tmp_path / "profile.json")
        model = FsdLM(profile=str(tmp_path / "profile.json"), device="cpu")
        settings = {"until": [], "do_sample": False, "max_gen_toks": NEW}
        texts = model.generate_until([Instance("generate_until", {}, (PROMPT, settings), 0)])
        (result,) = decoder_of(made).generate([PROMPT], NEW)
        assert texts == [result.text]
