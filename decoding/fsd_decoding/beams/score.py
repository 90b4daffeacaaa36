"""How far the draft's samples of a layer may be trusted: the divergence of its joint law, which T bounds."""

from __future__ import annotations

from torch import Tensor

from fsd_decoding.beams.candidates import joint, restricted
from fsd_decoding.beams.layer import Beams, Drafted
from fsd_decoding.divergence import unchecked_divergences


def layer_divergence(name: str, beams: Beams, log_p: Tensor, drafted: Drafted, log_q: Tensor) -> float:
    """Returns D of the target's and the draft's joint laws over the pairs of the target's beams.

    Each model weighs beams by its own scores: for those of a round's first layer both have the target's.

    Args:
        name: a divergence of `divergence.DIVERGENCES`, or one with "@k".
        beams: the target's.
        log_p, log_q: (n, V) log-probabilities of the tokens after the target's beams, and after the draft's.
    """
    q = restricted(joint(drafted.before, log_q), drafted.before, beams, log_p.shape[1])
    return float(unchecked_divergences([name], joint(beams, log_p)[None], q[None])[name])
