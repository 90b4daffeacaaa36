"""A real server that audits what it serves: it decodes texts losslessly once more while no other request is there."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fsd_calib.vllm_plugin.audit import OUTCOMES
from support.paths import DOCS
from support.vllm_async import async_engine
from support.vllm_engine import arithmetic, sampling, saved
from support.vllm_server import Server, following, wait_until

COUNT = 12
DASHBOARD: dict[str, Any] = json.loads((DOCS / "grafana.json").read_text())
GRADER = "def even(prompt, answer):\n    return 'Question' in prompt and answer.count('=') % 2 == 0\n"


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    folder = tmp_path_factory.mktemp("audited")
    (folder / "grading.py").write_text(GRADER)
    file = folder / "audits.jsonl"
    settings = {"audit": 1.0, "audit_file": str(file), "grader": "grading:even"}
    followed = saved(folder, {"threshold": 0.4})  # at which many texts change
    with following(folder, {"fsd": {"profile": followed, **settings}}, path=folder) as server:
        yield server, file


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_texts_are_decoded_losslessly_once_more_and_compared(audited: tuple[Server, Path]) -> None:
    server, file = audited
    prompts = [problem.prompt for problem in arithmetic(COUNT).problems]

    def ask(*options: Any) -> list[str]:
        with ThreadPoolExecutor(4) as pool:
            return [answer.choices[0].text for answer in pool.map(lambda p: server.complete(p, *options), prompts)]

    lossless, served = ask({"fsd": "off"}), ask()
    wait_until(lambda: len(lines(file)) >= COUNT)
    found = lines(file)
    assert len(found) == len({each["request"] for each in found}) == COUNT  # exact requests are not audited
    changed = sum(text != exact for text, exact in zip(served, lossless, strict=True))
    assert COUNT / 3 < changed <= sum(each["first_difference"] is not None for each in found)
    of_texts = [
        (text.count("=") % 2 == 0, exact.count("=") % 2 == 0) for text, exact in zip(served, lossless, strict=True)
    ]
    kinds = dict(zip([(True, True), (False, True), (True, False), (False, False)], OUTCOMES, strict=True))
    assert Counter(each["outcome"] for each in found) == Counter(kinds[each] for each in of_texts)
    assert server.total("fsd:audited_texts_total") == server.total("fsd:audited_outcomes_total") == COUNT
    for both, outcome in kinds.items():
        metric = f'fsd:audited_outcomes_total{{engine="0",order="0",outcome="{outcome}"}}'
        assert server.metric(metric) == of_texts.count(both)


def test_nobody_waits_for_audits_or_gets_other_texts(audited: tuple[Server, Path]) -> None:
    server, file = audited
    prompts, before = [problem.prompt for problem in arithmetic(COUNT, seed=12).problems], len(lines(file))
    first, second = ([server.complete(prompt).choices[0].text for prompt in prompts] for _ in range(2))
    assert second == first
    wait_until(lambda: len(lines(file)) == before + 2 * COUNT)
    facts = [tuple(each[name] for name in ("tokens", "lossless_tokens", "first_difference")) for each in lines(file)]
    assert all(count % 2 == 0 for count in Counter(facts[before:]).values())  # each text twice, as it was


def test_a_text_that_its_limit_ends_is_compared_up_to_there(audited: tuple[Server, Path]) -> None:
    server, file = audited
    before = len(lines(file))
    server.complete(arithmetic(1).problems[0].prompt, max_tokens=5)
    wait_until(lambda: len(lines(file)) > before)
    assert [(each["tokens"], each["lossless_tokens"]) for each in lines(file)[before:]] == [(5, 5)]


def test_every_panel_asks_for_metrics_that_a_server_has(audited: tuple[Server, Path]) -> None:
    """After the tests above, so that everything has been counted."""
    server, _ = audited
    shown = {line.partition("{")[0] for line in server.get("/metrics").splitlines() if not line.startswith("#")}
    expressions = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    asked = {name for expression in expressions for name in re.findall(r"(?:fsd|vllm):\w+", expression)}
    assert len(asked) > 8
    assert asked <= shown


def test_a_scheduler_that_runs_ahead_audits_the_same(tmp_path: Path) -> None:
    """Asynchronous scheduling, in this process: steps are taken until there is no work."""
    file, prompts = tmp_path / "audits.jsonl", [problem.prompt for problem in arithmetic(COUNT).problems]
    llm = async_engine(saved(tmp_path, {"threshold": 0.4}), {"audit": 1.0, "audit_file": str(file)})
    core: Any = llm.llm_engine.engine_core
    assert type(core.engine_core.scheduler).__name__ == "AuditingAsyncScheduler"
    served, lossless = (
        [output.outputs[0] for output in llm.generate(prompts, sampling(options), use_tqdm=False)]
        for options in (None, {"fsd": "off"})
    )
    while core.engine_core.scheduler.has_requests() or core.engine_core.batch_queue:
        core.engine_core.step_fn()
    wait_until(lambda: len(lines(file)) == COUNT)
    found = Counter((each["tokens"], each["lossless_tokens"]) for each in lines(file))
    expected = zip(*([len(each.token_ids) for each in texts] for texts in (served, lossless)), strict=True)
    assert found == Counter(expected)
    assert sum(each["first_difference"] is not None for each in lines(file)) > COUNT / 3
