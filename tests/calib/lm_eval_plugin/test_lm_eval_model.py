"""lm-evaluation-harness evaluates our decoder: the same texts, graded the same; of other prompts one line is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lm_eval
import pytest
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager

from fsd_calib.certification.attempt_ledger import AttemptLedger
from fsd_calib.certification.marking import LEDGER
from fsd_calib.lm_eval_plugin.__main__ import main
from fsd_calib.lm_eval_plugin.model import FsdLM, departure
from fsd_calib.tasks import load_task
from fsd_calib.tasks.base import Example, problem_of
from fsd_common.user_folders import default_state
from fsd_data import head_path, pair_paths
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.drafters.eagle import Eagle
from fsd_decoding.models.fingerprint import family_id, tokenizer_fingerprint
from fsd_decoding.profile.drafts import info_of, kind_of
from fsd_decoding.profile.parts import ModelInfo
from support.calibration.harness_tasks import write_task
from support.calibration.profiles import profile
from support.calibration.prompt_cases import CASES
from support.messages import usage_error

PAIR: dict[str, Any] = dict(zip(("target", "draft"), map(str, pair_paths()), strict=True))
LOSSY: dict[str, Any] = {"threshold": 0.3, "draft_length": 8, "score": "js"}
COUNT = 12


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    return SpeculativeDecoder.from_pretrained(**PAIR, device="cpu", **LOSSY)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_task(tmp_path, count=COUNT)


def evaluated(path: Path, model: str | FsdLM, **options: Any) -> tuple[float, list[str]]:
    """What lm-eval reports of the local task, and the texts that it graded, in order."""
    usual = {"bootstrap_iters": 0, "batch_size": 6, "device": "cpu", "apply_chat_template": True}
    own = TaskManager(include_defaults=False)  # an index of lm-eval's own tasks takes ten seconds
    found = lm_eval.simple_evaluate(model=model, tasks=[str(path)], task_manager=own, **{**usual, **options})
    samples = [each for each in found["samples"]["local_arithmetic"] if each["filter"] == "strict-match"]
    samples.sort(key=lambda each: int(each["doc_id"]))
    accuracy = float(found["results"]["local_arithmetic"]["exact_match,strict-match"])
    return accuracy, [each["resps"][0][0] for each in samples]


def graded(path: Path, decoder: SpeculativeDecoder) -> tuple[float, list[str]]:
    """What our own task says of the decoder's texts, and these."""
    task = load_task(f"lm-eval:{path}", tokenizer=decoder.tokenizer)
    results = decoder.generate([p.prompt for p in task.problems], task.max_new_tokens, stop=task.stop, batch_size=6)
    texts = [result.text for result in results]
    right = [task.grade(problem, text) for problem, text in zip(task.problems, texts, strict=True)]
    return sum(right) / len(right), texts


def model(decoder: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> FsdLM:
    """The model of lm-eval over a decoder that is loaded already."""
    monkeypatch.setattr(SpeculativeDecoder, "from_pretrained", lambda *_, **__: decoder)
    return FsdLM(**PAIR, **{"batch_size": 6, **arguments})


def request(prompt: str, **settings: Any) -> Instance:
    return Instance("generate_until", {}, (prompt, {"until": [], "do_sample": False, **settings}), 0)


def test_what_it_decodes_under_a_threshold_certifies_nothing(
    decoder: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    doc = {"question": "How many?", "answer": "4"}
    seen = Instance(
        "generate_until", doc, ("Q: How many?\nA:", {"until": [], "do_sample": False, "max_gen_toks": 2}), 0
    )
    wordings = (("How many?", None), ("The number, please.", doc), ("Something else.", None))
    problems = [problem_of(Example(text, "4", source=row), text) for text, row in wordings]
    family = family_id(decoder.target)
    for used, free in ((decoder.with_config(rule="coupled"), True), (decoder, False)):
        model(used, monkeypatch).generate_until([seen])
        with AttemptLedger(default_state() / LEDGER) as ledger:
            assert ledger.usable(family, problems, "run").tolist() == [free, free, True]


@pytest.mark.slow
def test_lm_eval_reports_what_our_task_grades_of_the_decoders_texts(path: Path, decoder: SpeculativeDecoder) -> None:
    accuracy, texts = evaluated(path, "fsd", model_args={**PAIR, **LOSSY})
    assert (accuracy, texts) == graded(path, decoder)
    assert accuracy > 0
    lossless, other = evaluated(path, "fsd", model_args={**PAIR, **LOSSY, "threshold": -1.0})
    assert other != texts
    assert lossless >= accuracy


def test_a_profile_sets_the_decoder(
    path: Path, tmp_path: Path, decoder: SpeculativeDecoder, caplog: pytest.LogCaptureFixture
) -> None:
    info = {role: ModelInfo.of(getattr(decoder, role)).model_dump() for role in ("target", "draft")}
    own = {"threshold": 0.075, "draft_length": 4, "tokenizer": tokenizer_fingerprint(decoder.tokenizer), **info}
    profile({**own, "acceptance": None}).save(tmp_path / "profile.json")
    followed = FsdLM(**PAIR, profile=str(tmp_path / "profile.json"), device="cpu")
    assert (followed.decoder.threshold, followed.decoder.draft_length) == (0.075, 4)
    assert followed.get_model_info()["fsd"]["threshold"] == "0.075"
    said = (
        f"model fsd: following profile {str(tmp_path / 'profile.json')!r} of task 'arithmetic': LOSSY, drafted tokens"
    )
    assert [message for message in caplog.messages if message.startswith(said)]


def test_requests_of_equal_settings_share_batches_and_keep_their_order(
    decoder: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, int]] = []
    generate: Callable[..., Any] = decoder.generate

    def counted(prompts: list[str], limit: int, **keywords: Any) -> Any:
        calls.append((len(prompts), limit))
        return generate(prompts, limit, **keywords)

    monkeypatch.setattr(decoder, "generate", counted)
    prompts = [f"Question: Ana has {n} pens and buys 2. How many pens are there?\nAnswer:" for n in range(3, 9)]
    limits = [5, 9, 5, 9, 5, 5]
    requests = [request(prompt, max_gen_toks=limit) for prompt, limit in zip(prompts, limits, strict=True)]
    texts = model(decoder, monkeypatch).generate_until(requests)
    assert sorted(calls) == [(2, 9), (4, 5)]
    alone = [generate([prompt], limit)[0].text for prompt, limit in zip(prompts, limits, strict=True)]
    assert texts == alone


def test_a_task_says_how_tokens_are_drawn(decoder: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def noted(*_: object, **keywords: Any) -> list[object]:
        asked.append(keywords)
        return []

    monkeypatch.setattr(decoder, "generate", noted)
    ours = model(decoder, monkeypatch)
    settings: list[dict[str, Any]] = [
        {"do_sample": False},
        {"do_sample": True},
        {"temperature": 0.7, "top_p": 0.9, "num_beams": 1},
        {},
    ]
    for each in settings:
        ours._decode([Instance("generate_until", {}, ("How many?", {"until": ["", "\n"], **each}), 0)], [0])
    names = ("temperature", "top_p")
    drawn = [{name: keywords[name] for name in names if name in keywords} for keywords in asked]
    assert drawn == [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9}, {}]
    assert {tuple(keywords["stop"]) for keywords in asked} == {("\n",)}


def test_what_it_cannot_do_is_refused(decoder: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "target=TARGET,draft=DRAFT" in usage_error(lambda: FsdLM(target="x"))
    assert "batch_size is 0" in usage_error(lambda: FsdLM(**PAIR, batch_size=0))
    ours = model(decoder, monkeypatch, batch_size="auto:4")
    assert ours.batch_size == 32
    asked = Instance("loglikelihood", {}, ("2 + 2 =", " 4"), 0, ("sums", 0, 1))
    for refused in (ours.loglikelihood, ours.loglikelihood_rolling):
        assert "task sums asks for the likelihood of given texts" in usage_error(partial(refused, [asked]))


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        ({"pretrained": "x"}, {}, "there is no argument 'pretrained'; model_args takes target, draft, head, profile, "),
        ({"treshold": 0.3}, {"batch_size": 1}, "there is no argument 'treshold'; model_args takes target, "),
        (
            {"batch_size": 4}, {"batch_size": 1, "device": None},
            "batch_size is 4 in model_args, and 1 by lm-eval's option (given, or its default); leave it out of "
            "model_args and give --batch_size 4",
        ),
        ({"device": "cpu"}, {"device": "cuda:0"}, "device is 'cpu' in model_args, and 'cuda:0' by lm-eval's option"),
    ],
)  # fmt: skip
def test_arguments_that_lm_eval_passes_are_refused_in_one_line(
    arguments: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    text = ",".join(f"{name}={value}" for name, value in {**PAIR, **arguments}.items())
    for create in (
        partial(FsdLM.create_from_arg_obj, {**PAIR, **arguments}, options),
        partial(FsdLM.create_from_arg_string, text, options),
    ):
        assert usage_error(create).startswith(f"model fsd: {said}")


def test_an_empty_prompt_is_answered_after_the_token_that_begins_a_text(
    decoder: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = decoder.tokenizer.bos_token_id or decoder.tokenizer.eos_token_id
    prompts = ["", "Question: Ana has 3 pens and buys 2. How many pens are there?\nAnswer:"]
    texts = model(decoder, monkeypatch).generate_until([request(prompt, max_gen_toks=9) for prompt in prompts])
    expected = decoder.generate([[first], prompts[1]], 9)
    assert texts == [each.text for each in expected]
    assert "is empty; it is answered after" in caplog.text


@pytest.mark.slow
def test_the_command_line_of_lm_eval_knows_the_model(path: Path, tmp_path: Path, decoder: SpeculativeDecoder) -> None:
    given = ",".join(f"{name}={value}" for name, value in {**PAIR, **LOSSY}.items())
    command = [sys.executable, "-m", "fsd_calib.lm_eval_plugin", "--model", "fsd", "--model_args", given, "--tasks",
               str(path), "--batch_size", "6", "--apply_chat_template", "--output_path", str(tmp_path)]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (written,) = tmp_path.rglob("results_*.json")
    results = json.loads(written.read_text(encoding="utf-8"))
    accuracy, _ = graded(path, decoder)
    assert results["results"]["local_arithmetic"]["exact_match,strict-match"] == accuracy
    assert results["config"]["fsd"]["threshold"] == "0.3"


def test_the_command_line_says_what_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", lambda: FsdLM(target="x"))
    with pytest.raises(SystemExit, match=r"^lm_eval: model fsd: it needs a target and a draft.*$"):
        main()


def test_a_head_drafts_in_place_of_a_model() -> None:
    ours = FsdLM(target=PAIR["target"], head=str(head_path()), **LOSSY)
    assert kind_of(ours.decoder.draft) == "eagle"
    message = usage_error(lambda: FsdLM(**PAIR, head=str(head_path())))
    assert message == "model fsd: draft and head are both given; one of them drafts, leave the other out"


def test_a_profile_of_beams_is_refused_before_models_are_loaded(tmp_path: Path) -> None:
    beams = {"number": 2, "width": 3, "answer": "best"}
    profile({"beams": beams, "target.id": "no/where"}).sealed().save(tmp_path / "profile.json")
    message = usage_error(lambda: FsdLM(profile=str(tmp_path / "profile.json")))
    assert "is of 2 beams, which model fsd does not decode" in message


def test_a_profile_names_its_models(tmp_path: Path) -> None:
    pair = SpeculativeDecoder.from_pretrained(PAIR["target"], Eagle(head_path()))
    found = {"target": ModelInfo.of(pair.target), "draft": info_of(pair.draft, pair.target)}
    followed = profile().model_copy(update=found | {"tokenizer": tokenizer_fingerprint(pair.tokenizer)}).sealed()
    followed.save(tmp_path / "profile.json")
    assert kind_of(FsdLM(profile=str(tmp_path / "profile.json")).decoder.draft) == "eagle"


NO_FORM: dict[str, Any] = {"digest": "0" * 64, "form": None, "template": None, "max_new_tokens": 9}
THINKING, PLAIN = CASES[0], next(case for case in CASES if case.template is None)


def first(document: Any, prompt: str = "?") -> Instance:
    return Instance("generate_until", document, (prompt, {}), 0, ("one", 0, 1))


@pytest.mark.parametrize(
    ("task", "why"), [("arithmetic", "it is none of lm-eval's"), ("gone.yaml", "task file gone.yaml: cannot be read")]
)
def test_a_task_that_is_not_lm_evals_cannot_be_compared(task: str, why: str) -> None:
    line = departure(profile({"task": task, "prompt": NO_FORM}), None, [first({"question": "?"})])
    assert line is not None
    assert line.startswith(f"prompts cannot be compared with those of the profile of {task!r} ({why}")


def test_a_document_of_another_task_is_asked_otherwise(tmp_path: Path) -> None:
    task = load_task(f"lm-eval:{write_task(tmp_path)}")
    assert task.prompt is not None
    followed = profile({"task": task.name, "prompt": task.prompt.model_dump(mode="json")})
    line = departure(followed, None, [first({"asked": "?"})])
    assert line is not None
    assert line.startswith("prompts are not made as in the calibration")


def test_what_chat_templates_cannot_have_is_refused(tmp_path: Path) -> None:
    thinking, plain = (tmp_path / name for name in ("thinking", "plain"))
    for case, folder in ((THINKING, thinking), (PLAIN, plain)):
        folder.mkdir()
        case.profile(folder).save(folder / "profile.json")
    reserved: dict[str, Any] = {"chat_template_kwargs": {"tokenize": True}}
    message = usage_error(lambda: FsdLM(profile=str(thinking), device="cpu", **reserved))
    assert message.startswith("chat_template_kwargs has 'tokenize'")
    without = FsdLM(profile=str(plain), device="cpu")
    assert usage_error(lambda: without.apply_chat_template).endswith(
        "has no chat template; leave --apply_chat_template out"
    )


@pytest.mark.slow
def test_of_lossless_decoding_nothing_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = THINKING.harness_task(tmp_path)
    task = load_task(f"lm-eval:{path}", tokenizer=THINKING.tokenizer(tmp_path))
    THINKING.profile(tmp_path).model_copy(update={"task": task.name, "prompt": task.prompt}).sealed().save(
        tmp_path / "profile.json"
    )
    model = FsdLM(profile=str(tmp_path / "profile.json"), device="cpu", threshold=-1.0)
    caplog.clear()
    lm_eval.simple_evaluate(
        model=model, tasks=[str(path)], task_manager=TaskManager(include_defaults=False), bootstrap_iters=0, limit=1
    )
    assert not [record for record in caplog.records if record.name.startswith("fsd_calib")]
