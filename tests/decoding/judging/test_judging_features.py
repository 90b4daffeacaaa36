"""Features of mismatches: what they say, and that they are the same in any company."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fsd_data import pair_paths
from fsd_decoding.divergence import DIVERGENCES, divergence, divergences, entropy
from fsd_decoding.judging.features import FEATURES, Features
from fsd_decoding.judging.token_classes import CLASSES, token_classes
from fsd_decoding.loading import load_tokenizer
from fsd_decoding.scores import Seen

P, Q = torch.tensor([0.5, 0.3, 0.15, 0.05]), torch.tensor([0.2, 0.1, 0.6, 0.1])
KINDS = torch.tensor([1, 2, 3, 4], dtype=torch.uint8)  # digits, letters, signs, space


def named(seen: Seen) -> dict[str, float]:
    return dict(zip(FEATURES, Features(KINDS)(seen)[0].tolist(), strict=True))


def test_features_of_a_mismatch_by_hand() -> None:
    one, six, past = torch.tensor([1]), torch.tensor([6]), torch.tensor([[0.7, 1.5, 1.0]])
    logits = P.log()[None] + 3.0, Q.log()[None] - 1.0
    found = named(Seen(*logits, torch.tensor([2]), before=lambda: one, places=lambda: six, past=lambda: past))
    logs = {"log_p_x": 0.15, "log_p_y": 0.5, "log_q_x": 0.6, "log_q_y": 0.2}
    wanted = {name: math.log(value) for name, value in logs.items()} | {
        "relaxed": 0.35, "margin": 0.7, "rank_x": math.log(3), "rank_y": math.log(2),
        "entropy_p": -(P * P.log()).sum().item(), "entropy_q": -(Q * Q.log()).sum().item(),
    }  # fmt: skip
    wanted |= {name: divergence(name, P.log(), Q.log()).item() for name in DIVERGENCES}
    marked = {"x_signs", "y_digits", "before_letters"}
    tokens = [f"{token}_{kind}" for token in ("x", "y", "before") for kind in CLASSES if kind != "other"]
    wanted |= {name: float(name in marked) for name in tokens}
    wanted |= {"place": math.log(7), "since": 0.7, "lately": 1.5, "phase": 1.0}
    assert found == pytest.approx(wanted, abs=1e-6)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), masked=st.sampled_from(["neither", "target", "draft", "both"]))
def test_features_are_finite_and_the_same_in_any_company(seed: int, masked: str) -> None:
    """Where tokens are impossible, too: as divergences may be infinite then."""
    generator = torch.Generator().manual_seed(seed)
    p, q = (4 * torch.randn((2, 3, 4), generator=generator) for _ in range(2))
    for logits, name in ((p, "target"), (q, "draft")):
        if masked in (name, "both"):
            logits[..., 1] = -math.inf
    x, before, places = (torch.randint(4, (2, 3), generator=generator) for _ in range(3))
    past = torch.rand((2, 3, 3), generator=generator)
    whole = Features(KINDS)(Seen(p, q, x, before=lambda: before, places=lambda: places, past=lambda: past))
    assert whole.isfinite().all()
    own = Seen(p, q, x, before=lambda: before, places=lambda: places, past=lambda: past).at(
        (torch.tensor([1]), torch.tensor([2]))
    )
    alone = Features(KINDS)(own)
    torch.testing.assert_close(alone, whole[1, 2:], rtol=1e-5, atol=1e-5)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), spread=st.sampled_from([0.3, 2.0, 6.0]), vocabulary=st.sampled_from([4, 979]))
def test_sums_that_are_shared_give_each_divergence_and_entropy(seed: int, spread: float, vocabulary: int) -> None:
    """Which the judge's features compute together, and others one by one."""
    generator = torch.Generator().manual_seed(seed)
    p, q = (spread * torch.randn((5, vocabulary), generator=generator) for _ in range(2))
    p[:, 1] = -math.inf
    wanted = divergences([*DIVERGENCES], p, q) | {"entropy_p": entropy(p), "entropy_q": entropy(q)}
    found = Features(KINDS, [*wanted])(Seen(p, q, torch.zeros(5, dtype=torch.int64)))
    for column, (name, values) in zip(found.T, wanted.items(), strict=True):
        torch.testing.assert_close(column, values.clamp_max(30.0), rtol=2e-6, atol=2e-6, msg=name)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0)])
def test_of_one_mismatch_and_of_none(shape: tuple[int, ...]) -> None:
    logits, tokens = torch.zeros(*shape, 4), torch.zeros(shape, dtype=torch.int64)
    past = torch.zeros(*shape, 3)
    seen = Seen(logits, logits, tokens, before=lambda: tokens, places=lambda: tokens, past=lambda: past)
    assert Features(KINDS)(seen).shape == (*shape, len(FEATURES))


def test_only_what_is_wanted_is_computed() -> None:
    seen = Seen(P.log()[None], Q.log()[None], torch.tensor([2]))  # nobody knows the token before
    found = Features(KINDS, ["margin", "x_signs", "js"])(seen)
    assert found.tolist() == [pytest.approx([0.7, 1.0, divergence("js", P.log(), Q.log()).item()])]


def test_classes_of_the_bundled_tokenizer() -> None:
    tokenizer = load_tokenizer(pair_paths()[0])
    classes = token_classes(tokenizer, len(tokenizer) + 3)
    assert len(classes) == len(tokenizer) + 3
    for text, kind in ((" 7", "digits"), (" pears", "letters"), ("*", "signs"), ("=", "signs"), ("\n", "space")):
        last = tokenizer(text)["input_ids"][-1]
        assert CLASSES[classes[last]] == kind, text
    assert CLASSES[classes[tokenizer.eos_token_id]] == CLASSES[classes[-1]] == "other"


@pytest.mark.parametrize(("text", "kind"), [("a1", "other"), ("\ufffd", "other"), ("", "other"), ("é", "letters")])
def test_classes_of_odd_tokens(text: str, kind: str) -> None:
    class Tokenizer(SimpleNamespace):
        def __len__(self) -> int:
            return 1

    tokenizer = Tokenizer(all_special_ids=[], batch_decode=lambda ids, **_: [text])
    assert [CLASSES[number] for number in token_classes(tokenizer, 1)] == [kind]
