"""The name of a run: a hash of all that determines a calibration's course, so that the same command resumes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fsd_calib.calibration.run_facts import RunFacts, known_facts
from fsd_calib.calibration.session import TextSession
from fsd_calib.certification.extension import TESTS_VERSION
from fsd_calib.options.goal import Goal
from fsd_calib.options.run_config import Compiling, RunConfig
from fsd_calib.search.space import Space
from fsd_common.digests import facts_digest


@dataclass(frozen=True)
class RunName:
    """Names what a calibration is asked for.

    Args:
        given: What determines the course of some calibrations only.
        extends: Whether it goes on from an attempt.
    """

    session: TextSession
    goal: Goal
    space: Space
    config: RunConfig
    given: Mapping[str, Any]
    extends: bool = False

    @property
    def asked(self) -> str:
        """A hash of what is asked for, whatever the problems, the looks, and what the run goes on from."""
        return self._hash(wish=self.goal.model_dump(exclude={"looks"}))

    @property
    def text(self) -> str:
        """The name: auto's, if it chose how rounds are called as it is asked for and no run of its own has begun."""
        auto, own = self._name("auto"), self._name(self.config.compile)
        found = None if self._known(own) is not None else self._known(auto)
        return auto if found is not None and found.timings.compile == self.config.compile else own

    @property
    def facts(self) -> RunFacts | None:
        """The facts of the run; None: it has not begun."""
        return self._known(self.text)

    def _known(self, name: str) -> RunFacts | None:
        return known_facts(self.config.path("out"), name, self.session.holdout, self.session.progress)

    def _name(self, compile: Compiling) -> str:
        problems = [[p.id, p.prompt, p.reference, p.part, p.group] for p in self.session.task.problems]
        more: dict[str, Any] = {"compile": compile} if compile != "auto" else {}
        if self.extends:
            more["extends"] = True
        return self._hash(wish=self.goal.model_dump(), problems=problems, **more)

    def _hash(self, **more: Any) -> str:
        facts = {"identity": self.session.identity, "space": self.space.values, "tests": TESTS_VERSION, **self.given}
        return facts_digest(facts | more)[:16]
