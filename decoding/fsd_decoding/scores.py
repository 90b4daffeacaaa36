"""Scores: how loose a rule must be to keep a drafted token. A fuzzy rule keeps x where its score is at most T.

p is the target's distribution, q the draft's, p1 = max p, H(p) the entropy in nats, u the uniform number of the exact
test u <= p(x)/q(x). Every score is at least 0, so that no T below 0 keeps a token, and infinite where no T may. To add
one, write a subclass of `Score`, in a module of your own (docs/extending.md), or listed in `FAMILIES`; divergences are
listed in `divergence.DIVERGENCES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from fsd_common.addons import OWN, Addon, Registry, imported
from fsd_common.errors import UsageError
from fsd_decoding.divergence import DIVERGENCES, check_name, entropy, unchecked_divergences
from fsd_decoding.meanings import LEARNED
from fsd_decoding.tensors import lazy, wide

if TYPE_CHECKING:
    from fsd_decoding.kernels import Scan

SCORES_VERSION = 1  # raised when a formula changes, because earlier thresholds no longer apply

Logits = Literal["raw", "processed"]


@dataclass
class Seen:
    """What a score may read of drafted tokens x, at positions of any shape (…)."""

    target_logits: Tensor  # (…, V) of p: raw, or processed by temperature, top-k and the like
    draft_logits: Tensor  # (…, V) of q
    drafted: Tensor  # (…) x
    uniform: Callable[[], Tensor] | None = None  # returns u (…), in fp64; None: nobody knows it
    greedy: bool = False  # whether tokens are the likeliest ones, and none is drawn
    scans: tuple[Scan | None, Scan | None] = (None, None)  # of the fused kernel's first pass over raw logits
    before: Callable[[], Tensor] | None = None  # returns the token before x, (…); None: nobody knows it
    places: Callable[[], Tensor] | None = None  # returns the place of x in its text, from 0, (…); None: as above
    past: Callable[[], Tensor] | None = None  # returns (…, 3), see `judging.past.Past.before`; None: as above

    def at(self, chosen: tuple[Tensor, ...]) -> Seen:
        """What they may read of the n tokens at these indices alone; random numbers are not among it."""

        def of(every: Callable[[], Tensor] | None) -> Callable[[], Tensor] | None:
            return None if every is None else lambda: every()[chosen]

        logits = self.target_logits[chosen], self.draft_logits[chosen]
        return Seen(
            *logits,
            self.drafted[chosen],
            greedy=self.greedy,
            before=of(self.before),
            places=of(self.places),
            past=of(self.past),
        )

    @lazy
    def target(self) -> Distribution:
        return Distribution(self.target_logits, self.drafted, self.scans[0])

    @lazy
    def draft(self) -> Distribution:
        return Distribution(self.draft_logits, self.drafted, self.scans[1])


class Distribution:
    """The softmax of logits (…, V), and x in it; in fp32, or in fp64 where the logits are.

    Args:
        scan: of these logits by the fused kernel, where there is one.
    """

    def __init__(self, logits: Tensor, drafted: Tensor, scan: Scan | None = None) -> None:
        self._logits, self._drafted, self._scan = logits, drafted, scan

    @lazy
    def _of_drafted(self) -> Tensor:
        return wide(self._logits.gather(-1, self._drafted.unsqueeze(-1)).squeeze(-1))

    @lazy
    def _largest_logit(self) -> Tensor:
        return wide(self._logits.amax(-1) if self._scan is None else self._scan.top1)

    @lazy
    def _normaliser(self) -> Tensor:
        return wide(self._logits).logsumexp(-1) if self._scan is None else self._scan.normaliser

    @lazy
    def drafted(self) -> Tensor:
        """The probability of x: (…)."""
        return (self._of_drafted - self._normaliser).exp()

    @lazy
    def all(self) -> Tensor:
        """The probability of every token: (…, V)."""
        return (wide(self._logits) - self._normaliser.unsqueeze(-1)).exp()

    @lazy
    def largest(self) -> Tensor:
        """p1: (…)."""
        return (self._largest_logit - self._normaliser).exp()

    @lazy
    def relative(self) -> Tensor:
        """The probability of x as a share of p1: (…)."""
        return (self._of_drafted - self._largest_logit).exp()

    @lazy
    def entropy(self) -> Tensor:
        """H, in nats: (…)."""
        return entropy(self._logits) if self._scan is None else self._scan.entropy

    def entropy_of_top(self, k: int) -> Tensor:
        """The sum of -p log p over the k likeliest tokens, which are not normalised: (…)."""
        top = wide(self._logits.topk(min(k, self._logits.shape[-1]), -1).values)
        terms: Tensor = torch.special.entr((top - self._normaliser.unsqueeze(-1)).exp())
        return terms.sum(-1)

    def in_top(self, k: int) -> Tensor:
        """Whether fewer than k tokens are likelier than x: (…) bool."""
        likelier: Tensor = (self._logits > self._logits.gather(-1, self._drafted.unsqueeze(-1))).sum(-1)
        return likelier < k


@dataclass(frozen=True)
class Parameter:
    """A number of a score besides T, written after "@".

    Args:
        name: as formulas have it.
        meaning: in a line.
        usual: what holds if it is not written.
        least, most: its range.
        whole: whether it is a whole number.
    """

    name: str
    meaning: str
    usual: float
    least: float = -math.inf
    most: float = math.inf
    whole: bool = True

    def read(self, written: str, score: str) -> float:
        """Returns a number as users write it. UsageError: it is none, or out of range."""
        try:
            value: float = int(written) if self.whole else float(written)
        except ValueError:
            value = math.nan
        if not self.least <= value <= self.most:
            kind = "a whole number" if self.whole else "a number"
            raise UsageError(
                f"score {score!r:.60} has {self.name} = {written!r:.20}; it must be {kind} from {self.least:g} to "
                f"{self.most:g}: {self.meaning}"
            )
        return value


class Score:
    """Base class of scores.

    Args:
        written: the name with its parameters, such as "margin@10", as profiles and traces have it.
        values: the parameters' values, in order.

    Attributes:
        parameters: what may follow the name.
        on: which logits it is defined on; None: raw or processed ones, as `Criterion.on` says.
        reads_token: whether it depends on x, and not on p and q alone.
        reads_draft: whether it depends on q.
        reads_noise: whether it depends on u.
        reads_past: whether it depends on earlier rounds of the text, or on its phase.
        reads_top: how many of the likeliest tokens of p and of q it depends on, besides x; None: on all tokens.
        judges_trees: whether it means something where several tokens are drafted at a place.
        largest: the largest finite value; thresholds above keep all that any keeps.
        unit: of its values, "" where they have none.
    """

    parameters: ClassVar[tuple[Parameter, ...]] = ()
    on: ClassVar[Logits | None] = None
    reads_token: ClassVar[bool] = True
    reads_draft: ClassVar[bool] = False
    reads_noise: bool = False
    reads_past: bool = False
    judges_trees: ClassVar[bool] = True
    reads_top: int | None = None
    largest: float = 1.0
    unit: ClassVar[str] = ""

    def __init__(self, written: str, values: Sequence[float]) -> None:
        self.written, self.values = written, tuple(values)

    def __reduce__(self) -> tuple[Callable[..., Score], tuple[object, ...]]:
        """Pickles the name: another process imports it by its own path, and says in one line where it cannot."""
        return score_named, (self.written,)

    @property
    def window(self) -> int:
        """How many drafted tokens after x the exact rule must keep in the same round, or no T keeps x."""
        return 0

    def of(self, seen: Seen) -> Tensor:
        """Returns the score of every drafted token: (…), in fp32 or fp64."""
        raise NotImplementedError


class Divergence(Score):
    """D(p, q): x itself does not matter. `fsd`, `fsd-sd` and `fsd-coupled` of arXiv 2502.20704."""

    reads_token = False
    reads_draft = True
    largest = math.inf

    def __init__(self, written: str, values: Sequence[float]) -> None:
        super().__init__(written, values)
        _, top, k = written.partition("@")
        self.reads_top = int(k) if top else None

    def of(self, seen: Seen) -> Tensor:
        return unchecked_divergences([self.written], seen.target_logits, seen.draft_logits, seen.scans)[self.written]


class Gated(Score):
    """D where the target is unsure, p1 <= g; elsewhere the exact rule decides (arXiv 2601.04766)."""

    parameters = (Parameter("g", "the largest p1 at which D may keep a token", 0.9, 0.0, 1.0, whole=False),)
    reads_token = False
    reads_draft = True
    largest = math.inf

    def __init__(self, written: str, values: Sequence[float], divergence: Divergence) -> None:
        super().__init__(written, values)
        self.divergence, self.reads_top = divergence, divergence.reads_top

    def of(self, seen: Seen) -> Tensor:
        return self.gated(self.divergence.of(seen), seen)

    def gated(self, divergence: Tensor, seen: Seen) -> Tensor:
        """Returns the score, given D (…)."""
        return divergence.masked_fill(seen.target.largest > self.values[0], math.inf)


class _AmongTop(Score):
    """Infinite outside the k likeliest tokens of p."""

    parameters = (Parameter("k", "x must be one of the target's k likeliest tokens", math.inf, 1.0),)

    def __init__(self, written: str, values: Sequence[float]) -> None:
        super().__init__(written, values)
        self.reads_top = 1 if math.isinf(values[0]) else int(values[0])

    def _among(self, seen: Seen, score: Tensor) -> Tensor:
        k = self.values[0]
        return score if math.isinf(k) else score.masked_fill(~seen.target.in_top(int(k)), math.inf)


class Margin(_AmongTop):
    """How far x is behind the likeliest token, as a ratio (SpecCascade's token-specific rule 3, arXiv 2405.19261)."""

    def of(self, seen: Seen) -> Tensor:
        return self._among(seen, 1.0 - seen.target.relative)


class Relaxed(_AmongTop):
    """How far x is behind the likeliest token, as a difference of probabilities (TensorRT-LLM's `relaxed_delta` and
    `relaxed_topk`, read in its kernels).
    """

    def of(self, seen: Seen) -> Tensor:
        return self._among(seen, (seen.target.largest - seen.target.drafted).clamp_min(0.0))


class Fly(Score):
    """FLy (arXiv 2511.22972; vLLM 0.33's `rejection_sample_method: "fly"`): a mismatch is kept where the target is
    unsure and the exact rule keeps what was drafted after it.

    The score falls as the entropy of the k likeliest tokens, h, rises. vLLM's `fly_entropy_threshold` is `most` - T.
    """

    parameters = (
        Parameter("W", "drafted tokens after x that the exact rule must keep", 2, 0.0, 64.0),
        Parameter("k", "tokens that the entropy is of", 3, 1.0, 1e6),
    )
    on = "processed"
    judges_trees = False
    unit = "nats"

    def __init__(self, written: str, values: Sequence[float]) -> None:
        super().__init__(written, values)
        self.largest, self.reads_top = self.most, int(values[1])

    @property
    def window(self) -> int:
        return int(self.values[0])

    @property
    def most(self) -> float:
        """The largest entropy of k probabilities whose sum is at most 1: each is 1/k, or 1/e where that is less."""
        k = int(self.values[1])
        return k / math.e if k < math.e else math.log(k)

    def of(self, seen: Seen) -> Tensor:
        score = (self.most - seen.target.entropy_of_top(int(self.values[1]))).clamp_min(0.0)
        return score.masked_fill(seen.target.drafted == 0.0, math.inf)


class Cactus(Score):
    """Cactus (arXiv 2604.04987): the exact test with a target that is nearer to x, by at most T in chi-square.

    x is kept where u q(x) <= min(p(x) + sqrt(2 T p(x) (1 - p(x))), 1).
    """

    on = "processed"
    reads_draft = reads_noise = True
    reads_top = 0
    judges_trees = False
    largest = math.inf

    def of(self, seen: Seen) -> Tensor:
        assert seen.uniform is not None
        p, q = seen.target.drafted.double(), seen.draft.drafted.double()
        beyond = (seen.uniform() * q - p).clamp_min(0.0)
        return torch.where(beyond > 0, beyond.square() / (2.0 * p * (1.0 - p)), 0.0)  # infinite where p = 0


class AcceptThreshold(Score):
    """SGLang's `--speculative-accept-threshold-single`, here 1 - T: x is kept where p(x) is at least that.

    With `-acc` a below 1 a token with u < p(x)/a is kept at every T from 0 on.
    """

    parameters = (Parameter("a", "SGLang's --speculative-accept-threshold-acc", 1.0, 0.0, 1.0, whole=False),)
    on = "processed"
    reads_top = 0
    judges_trees = False

    def __init__(self, written: str, values: Sequence[float]) -> None:
        super().__init__(written, values)
        self.reads_noise = self.values[0] < 1.0

    def of(self, seen: Seen) -> Tensor:
        p, a = seen.target.drafted, self.values[0]
        score = 1.0 - p
        if a < 1.0:
            assert seen.uniform is not None
            score = torch.where(seen.uniform() * a < p.double(), 0.0, score)
        return score.masked_fill(p == 0.0, math.inf)


class Typical(Score):
    """Medusa's typical acceptance (arXiv 2401.10774), p(x) > min(e, sqrt(e) exp(-H)), with e = 1 - T."""

    on = "processed"

    def of(self, seen: Seen) -> Tensor:
        p, spread = seen.target.drafted, seen.target.entropy.exp()
        score = 1.0 - torch.maximum(p, (p * spread).square()).double()
        return _strictly(score).masked_fill(p == 0.0, math.inf)


class Posterior(Score):
    """vllm-ascend's `enable_entropy_verify`: the exact test with u min(t, exp(-alpha H)) in place of u, where
    `posterior_threshold` t is 1 - T. H is of p here, of the target's raw logits there.
    """

    parameters = (Parameter("alpha", "vllm-ascend's posterior_alpha", 0.4, 0.0, 1e3, whole=False),)
    on = "processed"
    reads_draft = reads_noise = True
    judges_trees = False

    def of(self, seen: Seen) -> Tensor:
        assert seen.uniform is not None
        p, bar = seen.target.drafted.double(), seen.uniform() * seen.draft.drafted
        kept = torch.where(bar * (-self.values[0] * seen.target.entropy).exp() <= p, 0.0, 1.0 - p / bar)
        return kept.masked_fill(p == 0.0, math.inf)


class Ensemble(Score):
    """Static ensemble verification (arXiv 2604.07622): the least share T of q in a mixture that keeps x, of which
    transformers' `assistant_ensemble_weight` is 1 - T. In greedy decoding x is to be the mixture's likeliest token.
    """

    on = "processed"
    reads_draft = reads_noise = True
    judges_trees = False

    def of(self, seen: Seen) -> Tensor:
        if seen.greedy:
            gain = (seen.target.all - seen.target.drafted.unsqueeze(-1)).clamp_min(0.0).double()  # of z, by p
            loss = (seen.draft.drafted.unsqueeze(-1) - seen.draft.all).double()
            share = torch.where(loss < 0, math.inf, gain / (gain + loss))
            return torch.where(gain > 0, share, 0.0).amax(-1)
        assert seen.uniform is not None
        p, q = seen.target.drafted.double(), seen.draft.drafted.double()
        beyond = seen.uniform() * q - p
        return torch.where(beyond > 0, beyond / (q - p), 0.0)


def _strictly(score: Tensor) -> Tensor:
    """The least number that is above a score (…): at most T exactly where the score is below T."""
    return torch.nextafter(score, torch.full_like(score, math.inf)).clamp_min(0.0)


FAMILIES: Mapping[str, type[Score]] = {
    **dict.fromkeys(DIVERGENCES, Divergence),
    "margin": Margin,
    "relaxed": Relaxed,
    "fly": Fly,
    "cactus": Cactus,
    "accept-threshold": AcceptThreshold,
    "typical": Typical,
    "posterior": Posterior,
    "ensemble": Ensemble,
}
"""Scores by name; "gated-" before a divergence's name makes another one of it."""

_GATED = "gated-"


def _subclass(found: Any, name: str) -> type[Score] | None:
    return found if isinstance(found, type) and issubclass(found, Score) and not issubclass(found, Divergence) else None


_SCORES = Registry[type[Score]](
    "score", FAMILIES, _subclass, "a subclass of fsd_decoding.scores.Score, and none of Divergence"
)


@cache
def score_named(name: str) -> Score:
    """Returns the score that users call so.

    Raises:
        UsageError: there is none, or a parameter is out of range.
    """
    if not isinstance(name, str):
        raise UsageError(f"score is {name!r:.60}; it must be a name, such as 'js' or 'margin@10'")
    if name.startswith(_GATED):
        return _gated(name)
    family, *written = name.split("@")
    if family in DIVERGENCES:
        check_name(name)
        return Divergence(name, ())
    if family == LEARNED:
        learned: Score = imported("fsd_decoding.judging.score", "judge_named")(name)  # which imports this file
        return learned
    kind = _SCORES.find(family)
    if kind is None:
        known = ", ".join([*_SCORES.names, LEARNED])
        raise UsageError(f"unknown score {name!r:.60}; known: {known}, divergences also as {_GATED}js, and {OWN}")
    return kind(name, _values(kind, written, name))


def addon_of(name: str) -> Addon | None:
    """Returns what is known of the code of a score; None: it is of this package. UsageError: it is missing."""
    family = name.partition("@")[0]
    return None if family == LEARNED else _SCORES.addon(family)


def _gated(name: str) -> Score:
    """Of "gated-js@50@0.9": a whole number is the divergence's own, see `divergences`."""
    family, *written = name.removeprefix(_GATED).split("@")
    own = written[:1] if written and written[0].isdecimal() else []
    divergence = "@".join((family, *own))
    check_name(divergence)
    return Gated(name, _values(Gated, written[len(own) :], name), Divergence(divergence, ()))


def _values(kind: type[Score], written: Sequence[str], name: str) -> list[float]:
    known = kind.parameters
    if len(written) > len(known):
        takes = ", then ".join(f"@{parameter.name} ({parameter.meaning})" for parameter in known) or "no number"
        many = f"{len(written)} number{'s' * (len(written) != 1)}"
        raise UsageError(f"score {name!r:.60} has {many}; after its name may come {takes}")
    values = [parameter.read(text, name) for parameter, text in zip(known, written, strict=False)]
    return values + [parameter.usual for parameter in known[len(values) :]]


def scores_of(names: Sequence[str], on: Logits, seen: Callable[[Logits], Seen]) -> dict[str, Tensor]:
    """Returns several scores of drafted tokens by name, divergences over shared log-softmaxes.

    Args:
        names: of scores.
        on: the logits of those that are defined on either.
        seen: returns what there is to see on raw or on processed logits.
    """
    seen, wanted = cache(seen), divergences_in(names)
    found = {}
    if wanted:
        at = seen(on)
        found = unchecked_divergences(wanted, at.target_logits, at.draft_logits, at.scans)
    return scores_over(found, names, on, seen)


def divergences_in(names: Sequence[str]) -> list[str]:
    """Returns the divergences that scores are or gate, each once."""
    scores = (score_named(name) for name in names)
    found = (s if isinstance(s, Divergence) else s.divergence for s in scores if isinstance(s, (Divergence, Gated)))
    return list(dict.fromkeys(divergence.written for divergence in found))


def scores_over(
    divergences: Mapping[str, Tensor], names: Sequence[str], on: Logits, seen: Callable[[Logits], Seen]
) -> dict[str, Tensor]:
    """Returns `scores_of`, given the `divergences_in` them, on these logits."""
    seen = cache(seen)

    def of(score: Score) -> Tensor:
        if isinstance(score, Divergence):
            return divergences[score.written]
        at = seen(score.on or on)
        return score.gated(divergences[score.divergence.written], at) if isinstance(score, Gated) else score.of(at)

    return {name: of(score_named(name)) for name in names}


def window_kept(exact: Tensor, window: int) -> Tensor:
    """Whether the exact rule keeps as many tokens after each one, none of which is beyond the last: (…, L) bool.

    Args:
        exact: (…, L) bool: the tokens that it keeps.
    """
    kept: Tensor = pad(exact, (0, window)).unfold(-1, window, 1)[..., 1:, :].all(-1)
    return kept


def is_divergence(name: str) -> bool:
    """Whether a score is a divergence, which depends on p and q alone."""
    return isinstance(score_named(name), Divergence)
