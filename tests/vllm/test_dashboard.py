"""docs/grafana.json, and that vLLM's own counts, which it shows, agree with the plugin's."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from fsd_calib.vllm_plugin.telemetry.metrics import NAMES
from support.paths import DOCS
from support.vllm_engine import LENGTH, Recorded, arithmetic, engine, metric, sampling, saved, worker

DASHBOARD: dict[str, Any] = json.loads((DOCS / "grafana.json").read_text())


def test_panels_do_not_overlap_and_have_titles_of_their_own() -> None:
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    cells = [
        (x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert len({panel["title"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_counts_of_requests_of_the_server_and_of_the_plugin_agree(tmp_path: Path) -> None:
    """All count what a step accepts, before anybody looks for a text's end."""
    llm = engine(saved(tmp_path), disable_log_stats=False, per_request_spec_decode_metrics="summary")
    recorded, (counters,) = Recorded(llm), worker(llm).serving._telemetry.log._listeners[:1]
    outputs = llm.generate([problem.prompt for problem in arithmetic(24).problems], sampling(), use_tqdm=False)
    of_vllm = {output.request_id: output.outputs[0].spec_decode_metrics for output in outputs}
    rounds = {name: [each.accepted for each in recorded.of(name) if each.facts.size] for name in of_vllm}
    for name, found in of_vllm.items():
        by_count = Counter(rounds[name])
        assert found.histogram == [by_count[count] for count in range(LENGTH + 1)]
        assert found.num_draft_tokens == LENGTH * len(rounds[name])
    accepted = sum(map(sum, rounds.values()))
    assert accepted == metric(llm, "vllm:spec_decode_num_accepted_tokens")
    counted = dict(zip(NAMES, counters._values.tolist(), strict=True))
    assert counted["exact"] + counted["fuzzy"] == accepted
    assert counted["rejected"] == sum(each < LENGTH for of_text in rounds.values() for each in of_text)
