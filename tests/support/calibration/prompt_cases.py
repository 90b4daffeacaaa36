"""Ways of asking, each with a model that has its chat template, a profile of its prompts, and lm-eval's form of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import yaml

from fsd_calib import ThresholdProfile, load_task
from fsd_calib.tasks import Task
from fsd_calib.tasks.asking import STEP_BY_STEP
from fsd_data import pair_paths
from fsd_data.problems import generate
from fsd_decoding.loading import load_model, load_tokenizer
from fsd_decoding.models.fingerprint import tokenizer_fingerprint
from fsd_decoding.profile.parts import ModelInfo
from support.calibration.harness_tasks import write_task
from support.calibration.profiles import profile
from support.calibration.task_files import GEMMA, LLAMA, QWEN, THINKING

TARGET, DRAFT = pair_paths()
_ROWS = [{"asked": p.question, "solution": p.answer} for p in islice(generate(5), 3)]
_SHOTS = [{"asked": f"{n} + {n}?", "solution": f"{2 * n}"} for n in (3, 4)]
_DESCRIBED: dict[str, Any] = {
    "data": "asked.jsonl", "columns": {"question": "asked", "answer": "solution"}, "grader": "numeric",
    "stop": ["\n\n"], "max_new_tokens": 40,
}  # fmt: skip


@dataclass(frozen=True)
class PromptCase:
    """A way of asking.

    Attributes:
        template: The model's chat template; None: it has none.
        options: Of `load_task`.
        described: What a task in YAML says besides; None: the task is `arithmetic`.
        harness: Fields of a task of lm-eval that asks so, too.
    """

    name: str
    template: str | None
    options: Mapping[str, Any] = field(default_factory=dict)
    described: Mapping[str, Any] | None = None
    harness: Mapping[str, Any] = field(default_factory=dict)

    def target(self, folder: Path) -> Path:
        """Returns the bundled target with the template."""
        copied = folder / "target"
        if not copied.exists():
            shutil.copytree(TARGET, copied)
            (copied / "chat_template.jinja").unlink()
            if self.template is not None:
                (copied / "chat_template.jinja").write_text(self.template, encoding="utf-8")
        return copied

    def tokenizer(self, folder: Path) -> Any:
        return load_tokenizer(str(self.target(folder)))

    def task_name(self, folder: Path) -> str:
        """Returns the task's name; writes its file in YAML."""
        if self.described is None:
            return "arithmetic"
        (folder / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in _ROWS))
        path = folder / "asked.yaml"
        path.write_text(yaml.safe_dump({**_DESCRIBED, **self.described}))
        return str(path)

    def task(self, folder: Path) -> Task:
        """Returns the task with its prompts, as a calibration loads it."""
        return load_task(self.task_name(folder), limit=3, tokenizer=self.tokenizer(folder), **self.options)

    def profile(self, folder: Path) -> ThresholdProfile:
        """Returns a profile of these prompts. Its numbers are invented."""
        info = {
            role: ModelInfo.of(load_model(str(path), "cpu", torch.float32)).model_dump() | {"id": str(where)}
            for role, path, where in (("target", TARGET, self.target(folder)), ("draft", DRAFT, DRAFT))
        }
        task = self.task(folder)
        assert task.prompt is not None
        facts = {"task": task.name, "prompt": task.prompt.model_dump(mode="json"), "acceptance": None}
        return profile({**facts, "tokenizer": tokenizer_fingerprint(self.tokenizer(folder)), **info})

    def harness_task(self, folder: Path) -> Path:
        """Returns the file of lm-eval's task, whose only document is the task's first problem."""
        task = self.task(folder)
        first = task.problems[0]
        data = folder / "documents.jsonl"
        data.write_text(json.dumps({"question": first.question, "answer": first.reference}) + "\n")
        ends = {"until": list(task.stop), "do_sample": False, "max_gen_toks": task.max_new_tokens}
        files = {"data_files": {"test": str(data)}}
        return write_task(folder, changes={"dataset_kwargs": files, "generation_kwargs": ends, **self.harness})


def _shots(shots: list[dict[str, str]]) -> dict[str, Any]:
    samples = [{"question": shot["asked"], "answer": shot["solution"]} for shot in shots]
    return {"num_fewshot": len(shots), "fewshot_config": {"sampler": "first_n", "samples": samples}}


_WORKED = [{"asked": p.question, "solution": p.answer} for p in islice(generate(0, part="train"), 4)]
CASES = [
    PromptCase("not thinking", THINKING, harness={"description": STEP_BY_STEP}),
    PromptCase(
        "thinking", THINKING, {"chat_template_kwargs": {"enable_thinking": True}, "max_new_tokens": 300},
        harness={"description": STEP_BY_STEP},
    ),
    PromptCase("a day", LLAMA, harness={"description": STEP_BY_STEP}),
    PromptCase("no system role", GEMMA, harness={"description": STEP_BY_STEP}),
    PromptCase(
        "a task in YAML", QWEN, described={"instruction": "Think in {{braces}}."},
        harness={"description": "{% raw %}Think in {{braces}}.{% endraw %}"},
    ),
    PromptCase(
        "worked examples", None,
        harness={"doc_to_text": "Question: {{question}}\nAnswer:", "target_delimiter": " ", **_shots(_WORKED)},
    ),
    PromptCase(
        "worked examples in a chat", THINKING, described={"prompt": "Add: {{ asked }}", "examples": _SHOTS},
        harness={"doc_to_text": "Add: {{question}}", **_shots(_SHOTS)},
    ),
]  # fmt: skip
