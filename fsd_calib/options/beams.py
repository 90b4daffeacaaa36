"""What beams do not go with, told before anything is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fsd_calib.options.common import AUTO, DIVERGENCES
from fsd_common.argument_checks import named
from fsd_common.errors import UsageError
from fsd_common.settings import listed
from fsd_decoding.profile.parts import OWN_ENGINE

if TYPE_CHECKING:
    from fsd_calib.options.run_config import RunConfig
    from fsd_calib.options.search_space import SearchSpace

BEAM_RULES = {"fsd-coupled": False, "fsd-sd": True}
"""The rules of beams, and whether each draws pairs with replacement."""


def check_beams(space: SearchSpace) -> None:
    """Checks what is searched beside beams.

    Raises:
        UsageError: they do not go together, or an option of beams is given without them.
    """
    if space.beams is None:
        for name in ("beam_width", "beam_answer"):
            if getattr(space, name) != type(space).model_fields[name].default:
                raise UsageError(f"{named(name)} is given without {named('beams')}; give both, or none")
        return
    of_texts = {
        "tree": [tree.text for tree in space.trees if tree is not None], "predictor": space.predictor,
        "judge": space.judge, "stop_policy": space.stop_policy, "threshold_policy": space.moving,
    }  # fmt: skip
    for name, value in of_texts.items():
        _refuse(space, name, value, "which is of single texts")
    scores = [score for score in listed(space.score) if score != AUTO and score.partition("@")[0] not in DIVERGENCES]
    _refuse(space, "score", scores, f"and scores of beams are {', '.join(DIVERGENCES)}")
    rules = listed(space.rule)
    known = len(rules) == 1 and rules[0] in BEAM_RULES
    _refuse(space, "rule", () if known else rules, f"and the rule of beams is one of {', '.join(BEAM_RULES)}")
    if space.replacement and space.temperature == 0:
        raise UsageError(
            f"{named('rule')} is {rules[0]}, which draws beams, and {named('temperature')} is 0, at which nothing is "
            f"drawn; give {named('temperature')} above 0, or {named('rule')} fsd-coupled"
        )
    if (narrow := min(space.widths)) < space.beams:
        raise UsageError(
            f"{named('beam_width')} is {narrow}, and {named('beams')} {space.beams}; a layer is at least as wide as "
            "there are beams"
        )


def check_run_of_beams(space: SearchSpace, config: RunConfig) -> None:
    """Checks how a calibration of beams is run. UsageError: they are not decoded so."""
    if space.beams is None:
        return
    engine = None if config.engine == OWN_ENGINE else config.engine
    _refuse(space, "engine", engine, f"and beams are decoded by {OWN_ENGINE}")
    graphs = None if config.compile in ("auto", "off") else config.compile
    _refuse(space, "compile", graphs, "and beams are decoded without graphs")
    _refuse(space, "guard", config.guard, "and beams are calibrated for one task")


def _refuse(space: SearchSpace, name: str, value: Any, rule: str) -> None:
    """Raises UsageError where an option that does not go with beams has a value."""
    if value:
        given = ", ".join(map(str, listed(value)))
        raise UsageError(
            f"{named('beams')} is {space.beams}, and {named(name)} is {given}, {rule}; leave one of the two out"
        )
