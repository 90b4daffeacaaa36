"""What a calibration chooses among."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, model_validator

from fsd_calib.options.beams import BEAM_RULES, check_beams
from fsd_calib.options.common import (
    AUTO,
    CALIBRATED,
    CONSTANT,
    DECODING,
    PHASES,
    POLICIES,
    RULES_WITH_T,
    Drawing,
    PathLike,
    PhaseBegin,
    PhaseEnd,
    Seed,
    absolute,
    check_phase,
    known_name,
)
from fsd_common.argument_checks import named
from fsd_common.errors import UsageError
from fsd_common.option import Option, several, several_each, whole_numbers
from fsd_common.settings import Count, Rule, Several, listed
from fsd_decoding.meanings import LEARNED, family_of
from fsd_decoding.profile.parts import BeamAnswer
from fsd_decoding.tree_shape import CHAIN, Chain, TreeShape, read_shape, without_chain

if TYPE_CHECKING:
    from fsd_decoding.sampling import Sampling


def _one_of(name: str, known: tuple[str, ...]) -> str:
    if name not in known:
        raise ValueError(f"it must be one of {', '.join(known)}")
    return name


def _policy(value: Any) -> Any:
    """A family by its name; what a policy of one's own must be, `policy_families` knows."""
    return _one_of(value, POLICIES) if isinstance(value, str) else value


def _trees(value: Any) -> tuple[TreeShape | None, ...]:
    """Shapes of trees, and None for chains. Only of a list or a tuple: a dict or an iterator is no list of shapes."""
    trees = without_chain(value if isinstance(value, list | tuple) else [value])
    if not trees or not all(isinstance(tree, TreeShape | None) for tree in trees):
        raise ValueError(f"write a shape as TreeShape(top_k=2, nodes=6), chains as {CHAIN!r}, and several as a list")
    return tuple(trees)


def _written_shapes(value: Any) -> Any:
    """Refuses what is no text, such as `[2, 6]`, which YAML reads as two numbers."""
    if not all(isinstance(each, str) for each in listed(value)):
        raise ValueError(f"write a shape as '2,6', in quotes (top_k,nodes), or {CHAIN}, or a list of such")
    return value


def _saved_shapes(trees: tuple[TreeShape | None, ...]) -> list[str] | None:
    """Shapes as texts; of chains alone, which are the default, none."""
    return [CHAIN if tree is None else tree.text for tree in trees] if any(trees) else None


def moves(policy: Any) -> bool:
    """Returns whether T varies over a text by a policy, or by the family of this name."""
    if isinstance(policy, str):
        return policy != CONSTANT
    from fsd_decoding.adaptive import Constant  # has loaded torch already, as the policy has

    return not isinstance(policy, Constant)


class SearchSpace(Drawing):
    """What a calibration chooses among, and how tokens are drawn. T itself is always searched."""

    rule: Annotated[
        Several[Annotated[str, AfterValidator(lambda name: known_name("rule", name, RULES_WITH_T))]],
        Option(
            f"Acceptance rule: {', '.join(RULES_WITH_T)}, or several, separated by commas. mine:Name is a rule of your "
            "own (docs/extending.md).",
            DECODING,
            words=RULES_WITH_T,
            read=several,
        ),
    ] = ("fsd-coupled",)
    score: Annotated[
        Several[Annotated[str, AfterValidator(lambda name: known_name("score", name, (AUTO, *CALIBRATED)))]],
        Option(
            f"Score that the threshold bounds: {', '.join(CALIBRATED)}, one with numbers, such as gated-js@0.7, "
            "mine:Name, of your own (docs/extending.md), or several, separated by commas. auto: those that traces of "
            "the models speak for; with a predictor, and for drafts that are no models, js and doubt. js@50 uses only "
            "the target's 50 likeliest tokens and one bucket for the rest; numbers of other scores: docs/rules.md.",
            DECODING,
            words=(AUTO, *CALIBRATED),
            read=several,
            also="divergence",
        ),
    ] = (AUTO,)
    threshold_policy: Annotated[
        Several[Annotated[Any, AfterValidator(_policy)]],
        Option(
            "How T changes over a text: constant (the default), schedule (stricter at the beginning, or towards the "
            "end), entropy (looser where the target is unsure), per-prompt (predicted from the prompt and the draft's "
            "first token; learned on the tuning part, even with --plan), phase (one T while the model thinks and "
            "another one else; phase-inside and phase-outside are exact in the other phase), or several, separated by "
            "commas or by repeating the option. Each policy has a handful of shapes; how loose a shape may be is "
            "searched and certified like a constant T.",
            DECODING,
            words=POLICIES,
            read=several_each,
            repeated=True,
            written=Several[Annotated[str, AfterValidator(_policy)]],
        ),
    ] = (CONSTANT,)
    phase_begin: PhaseBegin = None
    phase_end: PhaseEnd = None
    draft_length: Annotated[
        Several[Count] | None,
        Option(
            "Tokens drafted per round: a number such as 5, or several to search over, such as 2-8 or 4,6,8. By default "
            "1-12, or at most 16 with --predictor; trees and beams are 2 to 6 or 8 deep.",
            DECODING,
            read=whole_numbers,
        ),
    ] = None
    tree: Annotated[
        TreeShape | Chain | Sequence[TreeShape | Chain | None] | None,
        PlainValidator(_trees),
        Option(
            "Draft trees of this shape: TOP_K,NODES, such as 2,6 for six nodes a round, each with up to two children; "
            "the draft length is their depth. Repeat it to choose among shapes, and give chain to choose among chains "
            "too. By default chain.",
            DECODING,
            read=lambda option, texts: tuple(map(read_shape, texts)),
            repeated=True,
            written=Annotated[
                Several[str],
                BeforeValidator(_written_shapes),
                AfterValidator(lambda them: tuple(map(read_shape, them))),
            ],
            saved=_saved_shapes,
        ),
    ] = (None,)
    predictor: Annotated[
        PathLike | None,
        Option(
            "Folder of a predictor from fsd-train-predictor, which ends drafts early; auto trains one on the tuning "
            "part.",
            DECODING,
            written=str,
            saved=lambda given: given if str(given) == AUTO else absolute(given),
        ),
    ] = None
    judge: Annotated[
        PathLike | None,
        Option(
            "File of the judge that score judge is, as a calibration trained it; auto labels mismatches of half the "
            "tuning part, and trains one on them (docs/judge.md).",
            DECODING,
            written=str,
            saved=lambda given: given if str(given) == AUTO else absolute(given),
        ),
    ] = None
    judge_budget: Annotated[
        Count, Option("With --judge auto: mismatches to label, for each of which the target writes on once.", DECODING)
    ] = 2000
    judge_context: Annotated[
        bool,
        Option(
            "With --judge auto: it may read the text before a drafted token, too: the token before it, its place, what "
            "the target replaced lately, and the phase (thinking). vLLM cannot follow such a judge.",
            DECODING,
        ),
    ] = False
    judge_others: Annotated[
        Several[PathLike] | None,
        Option(
            "With --judge auto: folders of labels of other tasks (fsd-collect --judge outcome); the judge's card says "
            "how well it ranks those, too.",
            DECODING,
            saved=lambda given: [absolute(each) for each in listed(given)],
        ),
    ] = None
    beams: Annotated[
        Annotated[int, Field(ge=2), Rule("it must be a whole number of 2 or more")] | None,
        Option(
            "Decode each problem to so many beams: by beam search at temperature 0, else by stochastic beam search, "
            "or with rule fsd-sd by draws with replacement. T, the width and the depth (--draft-length) of what is "
            "drafted are searched (docs/beams.md).",
            DECODING,
        ),
    ] = None
    beam_width: Annotated[
        Several[Count] | None,
        Option(
            "With --beams: pairs of a beam and a token that are drafted for each layer, such as 4,6,8. By default as "
            "many as there are beams, half as many again, and twice as many.",
            DECODING,
            read=whole_numbers,
        ),
    ] = None
    beam_answer: Annotated[
        BeamAnswer,
        Option(
            "With --beams: what is graded. best: the best-scored text. majority: the best-scored of those with the "
            "answer that most texts have.",
            DECODING,
        ),
    ] = "best"
    stop_policy: Annotated[
        Annotated[str, AfterValidator(lambda name: known_name("stop policy", name, ()))] | None,
        Option("A stop policy of your own that ends drafts early: mine:Name (docs/extending.md).", DECODING),
    ] = None
    seed: Seed = 0

    @model_validator(mode="after")
    def _check_together(self) -> SearchSpace:
        check_phase(self.phase_begin, self.phase_end, self.phases)
        self._check_judge()
        check_beams(self)
        if any(self.trees):
            self.check_walked(f"{named('tree')} is given", "trees")
        if self.stop_policy is not None and (self.predictor is not None or any(self.trees)):
            what = "a predictor ends drafts too" if self.predictor is not None else "trees are drafted as a whole"
            raise UsageError(f"{named('stop_policy')} is given, and {what}; leave one of the two out")
        if self.predictor is not None and self.moving:
            raise UsageError(
                f"a predictor ends drafts by the T they are given, and policy {self.moving} judges them by another; "
                "leave one of the two out"
            )
        return self

    def _check_judge(self) -> None:
        judges = [name for name in listed(self.score) if family_of(name) == LEARNED]
        if len(judges) > 1:
            raise UsageError(f"{named('score')} has {' and '.join(judges)}; give one judge")
        given, asked = self.judge is not None, LEARNED in judges
        if given != asked:
            has, lacks = (named("judge"), f"{named('score')} {LEARNED}") if given else (
                f"{named('score')} {LEARNED}", f"{named('judge')} FILE, or {named('judge')} {AUTO} to train one"
            )  # fmt: skip
            raise UsageError(f"{has} is given without {lacks}; give both, or none")
        for name in ("judge_others", "judge_context"):
            if getattr(self, name) and str(self.judge) != AUTO:
                raise UsageError(
                    f"{named(name)} is given, and is for a judge that is trained: give {named('judge')} {AUTO}, too, "
                    "or leave it out"
                )
        if judges and any(self.trees):
            raise UsageError(
                f"{named('score')} {judges[0]} and {named('tree')} are given, and a judge judges chains alone; leave "
                "one out"
            )
        if judges and self.predictor is not None:
            raise UsageError(
                f"{named('score')} {judges[0]} and {named('predictor')} are given, and a predictor is trained for "
                "scores that are known before; leave one of the two out"
            )

    @property
    def replacement(self) -> bool:
        """Whether beams are drawn with replacement, as their rule says."""
        return self.beams is not None and BEAM_RULES[listed(self.rule)[0]]

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths of layers of beams; empty: there are no beams."""
        if self.beams is None:
            return ()
        usual = (self.beams, self.beams + self.beams // 2, 2 * self.beams)
        return tuple(listed(usual if self.beam_width is None else self.beam_width))

    def check_walked(self, given: str, what: str) -> None:
        """Raises UsageError where something is given that needs traces, which only chains of models have.

        Args:
            given: what is given that drafts otherwise, and `what` drafts so, in words.
        """
        if self.predictor is not None:
            raise UsageError(f"{given}, and a predictor ends chains of draft models early; leave one of the two out")
        if self.moving:
            raise UsageError(
                f"{given}, and how fast {what} are with policy {self.moving} is not forecast; leave one of the two out"
            )

    @property
    def moving(self) -> str:
        """The policies by name, if T moves by one of them; empty: it is constant."""
        policies = listed(self.threshold_policy)
        names = (each if isinstance(each, str) else type(each).__name__ for each in policies)
        return ", ".join(names) if any(map(moves, policies)) else ""

    @property
    def phases(self) -> bool:
        """Whether T moves by the task's phase."""
        return any(isinstance(each, str) and each in PHASES for each in listed(self.threshold_policy))

    @property
    def trees(self) -> tuple[TreeShape | None, ...]:
        """The shapes of trees; None: chains."""
        return self.tree  # type: ignore[return-value]  # which its validator has made of it

    @property
    def sampling(self) -> Sampling:
        """How tokens are drawn, as decoders take it. This imports torch."""
        from fsd_decoding.sampling import Sampling

        return Sampling(self.temperature, self.top_k, self.top_p, self.min_p)
