"""Replays traces for a forecast of the pool's arms: `python benchmarks/pool_replay.py`; takes a minute.

The traces are along the target, of 128 problems that are not in the pool, as many as a calibration traces. Thresholds
and rounds are written for the grid of shares that `fsd_calib.search.forecast` uses.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from fsd_calib import SpeculativeDecoder, collect_traces, load_task
from fsd_collectors.replay import quantiles, sweep
from fsd_data import pair_paths
from lib.common.results import write_json
from pool import ARMS, RULE, SEED

_TRACED = 128
_LOGIT_SHARES = np.linspace(np.log(0.1 / 0.9), np.log(0.9995 / 0.0005), 64)


def replay_arms() -> dict[str, Any]:
    torch.set_num_threads(1)
    divergences, lengths = sorted({arm.divergence for arm in ARMS}), sorted({arm.draft_length for arm in ARMS})
    pair = SpeculativeDecoder.from_pretrained(*pair_paths(), device="cpu", dtype=torch.float32)
    task = load_task("arithmetic", seed=SEED + 1, limit=_TRACED, tokenizer=pair.tokenizer)
    with TemporaryDirectory() as folder:
        traces = collect_traces(
            task, target=pair.target, draft=pair.draft, tokenizer=pair.tokenizer, out=Path(folder, "traces"),
            divergences=divergences,
        )  # fmt: skip
        shares = 1 / (1 + np.exp(-_LOGIT_SHARES))
        scales = {name: quantiles(traces, name, shares) for name in divergences}
        frame = sweep(traces, [RULE], divergences, scales, lengths)
    arms = [
        {"divergence": divergence, "draft_length": length, **rows[["threshold", "rounds", "drafted"]].to_dict("list")}
        for (divergence, length), rows in frame.groupby(["divergence", "draft_length"])
    ]
    return {
        "problems": _TRACED,
        "tokens": int(frame["tokens"].iloc[0]),
        "logit_shares": _LOGIT_SHARES.tolist(),
        "thresholds": {name: scale.tolist() for name, scale in scales.items()},
        "arms": arms,
    }


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    write_json(replay_arms(), Path(__file__).parent / "results" / "pool" / "replay.json", indent=None)


if __name__ == "__main__":
    main()
