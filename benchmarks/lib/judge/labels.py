"""Labelled mismatches of a pair, and those of them that a budget pays for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from fsd_calib.tasks.base import Task
from fsd_collectors.judging.collect import collect_labels

SEED = 91_001  # of the problems, whose last digit is another than that of the problems that judges are compared on


def label(folder: Path, task: Task, pair: tuple[str, str], budget: int) -> None:
    """Labels so many mismatches, as far as the folder lacks them, in a random order of problems."""
    collect_labels(task, target=pair[0], draft=pair[1], out=folder, budget=budget, device="cpu", batch_size=64)


def within(labels: pd.DataFrame, budget: int, seed: int) -> pd.DataFrame:
    """Returns what a budget pays for: all mismatches of problems in an order of this seed, as long as it lasts."""
    shuffled = np.random.default_rng(seed).permutation(labels["problem"].unique())
    place = labels["problem"].map(dict(zip(shuffled.tolist(), range(len(shuffled)), strict=True)))
    chosen = labels.assign(_place=place).sort_values(["_place", "position"], kind="stable").head(budget)
    return chosen.drop(columns="_place")
