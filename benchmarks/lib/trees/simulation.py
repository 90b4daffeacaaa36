"""For which pairs trees pay: speeds forecast from measured tokens per round, over costs of draft and target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lib.trees.drafts import Draft

STEPS = (0.01, 0.03, 0.1, 0.25)
"""Seconds of a draft step, of which the target reads one token in 1."""
SLOPES = (0.0, 0.01, 0.05)
"""What every further token that the target reads adds to that 1: 0 where reading is bound by memory."""


@dataclass(frozen=True)
class Cell:
    """The best chain and the best tree where a draft step and a token read cost this."""

    step: float
    slope: float
    chain: str
    tree: str
    ratio: float  # of the tree's speed to the chain's


def simulate(per_round: Mapping[Draft, float]) -> list[Cell]:
    """Returns a cell for every pair of costs; none where there is no chain or no tree.

    A round over a draft of length L that the target reads n tokens of costs L·step + 1 + n·slope.
    """
    if len({draft.shape is None for draft in per_round}) < 2:
        return []
    return [_cell(per_round, step, slope) for step in STEPS for slope in SLOPES]


def _cell(per_round: Mapping[Draft, float], step: float, slope: float) -> Cell:
    def speed(draft: Draft) -> float:
        return per_round[draft] / (draft.length * step + 1.0 + draft.read * slope)

    chain = max((draft for draft in per_round if draft.shape is None), key=speed)
    tree = max((draft for draft in per_round if draft.shape is not None), key=speed)
    return Cell(step, slope, str(chain), str(tree), speed(tree) / speed(chain))


def simulated_table(cells: Sequence[Cell]) -> str:
    lines = ["  draft step  token read  tree / chain"]
    for cell in cells:
        lines.append(f"{cell.step:12} {cell.slope:11} {cell.ratio:13.2f}  {cell.tree}; {cell.chain}")
    return "\n".join(lines)
