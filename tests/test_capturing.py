"""Steps captured and replayed, on a tape instead of a GPU: the same texts, and nothing captured twice."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fsd_collectors.collecting.hidden import HiddenStates
from fsd_decoding import capturing, rooms
from fsd_decoding.adaptive import EntropyScaled
from fsd_decoding.calling import Eager, Graphs, Key
from fsd_decoding.capturing import Captured
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.errors import NumericalError, OutOfMemoryError, UsageError
from fsd_decoding.ngram import NGram
from fsd_decoding.observing import RoundRecord
from fsd_decoding.rules import RULES
from stop_policies import Unsure
from tape import Tape
from tiny_pair import ragged_prompts, related, tiny_decoder

NEW = 40
PROMPTS = ragged_prompts(9)


@pytest.fixture(autouse=True)
def on_tape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rooms.CAPTURES, "cpu", lambda device: Tape())


@pytest.fixture(scope="module")
def plain() -> SpeculativeDecoder:
    return tiny_decoder()


@pytest.fixture
def captured(plain: SpeculativeDecoder) -> SpeculativeDecoder:
    return again(plain)


def again(decoder: SpeculativeDecoder, draft: Any = None) -> SpeculativeDecoder:
    return SpeculativeDecoder(decoder.target, draft or decoder.draft, decoder.tokenizer, compile="capture")


def graphs(decoder: SpeculativeDecoder) -> int:
    """How many steps were captured in the rooms at hand."""
    return sum(len(room.call) for room in free(decoder) if isinstance(room.call, Captured))


def free(decoder: SpeculativeDecoder) -> list[rooms.Room]:
    return [room for some in decoder._rooms._free.values() for room in some]


def same(ours: SpeculativeDecoder, theirs: SpeculativeDecoder, temperature: float = 0.0, **how: Any) -> None:
    """Decodes with both; a batch that shrinks, which graphs do not, rounds its last bits anew."""
    settings: dict[str, Any] = {"threshold": 0.2, "draft_length": 3, "batch_size": 4} | how
    for a, b in zip(*(d.generate(PROMPTS, NEW, temperature, **settings) for d in (ours, theirs)), strict=True):
        assert replace(a, interval=(0.0, 0.0)) == replace(b, interval=(0.0, 0.0))
        assert a.interval == pytest.approx(b.interval, rel=1e-9)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("rule", RULES)
def test_replayed_rounds_give_the_same_results(
    captured: SpeculativeDecoder, plain: SpeculativeDecoder, rule: str, temperature: float
) -> None:
    """With refills, through several reaches, and again in the room they left."""
    for _ in range(2):
        same(captured, plain, temperature, rule=rule)
    assert graphs(captured) > 1


def test_with_processed_logits(captured: SpeculativeDecoder, plain: SpeculativeDecoder) -> None:
    for _ in range(2):
        same(captured, plain, 0.8, top_k=9, top_p=0.9, min_p=0.01, repetition_penalty=1.2)
    assert graphs(captured) > 1


def test_other_texts_thresholds_seeds_and_ids_capture_nothing(
    captured: SpeculativeDecoder, plain: SpeculativeDecoder
) -> None:
    for _ in range(2):
        same(captured, plain, 0.8)
    made = graphs(captured)
    captured.seed = plain.seed = 3
    try:
        same(captured, plain, 0.8, threshold=[0.1, -1.0, 0.3, 9.0, 0.0, 0.2, 0.4, 0.5, 0.1], ids=range(5, 14))
    finally:
        plain.seed = 0
    assert graphs(captured) == made


def test_under_a_stop_policy(captured: SpeculativeDecoder, plain: SpeculativeDecoder) -> None:
    for _ in range(2):
        same(captured, plain, 0.8, policy=Unsure(), draft_length=5)
        same(captured, plain, rule="coupled", policy=Unsure(), draft_length=5)


def test_a_policy_that_watches_the_draft_sees_every_step(
    captured: SpeculativeDecoder, plain: SpeculativeDecoder
) -> None:
    class Watching(Unsure):
        watches = True

    for _ in range(2):
        seen: list[int] = []
        hook = plain.draft.get_output_embeddings().register_forward_pre_hook(lambda *_, to=seen: to.append(1))
        try:
            found = captured.generate(PROMPTS[:1], NEW, policy=Watching())
        finally:
            hook.remove()
        assert len(seen) >= found[0].drafted


def test_hidden_states_are_kept_of_uncaptured_drafts_only(captured: SpeculativeDecoder) -> None:
    """A hook sees nothing of a replay."""
    with (
        HiddenStates(captured.draft, 4, seed=0),
        pytest.raises(UsageError, match="of eager drafts only; decode with compile=False"),
    ):
        captured.generate(PROMPTS[:1], NEW)


def test_what_an_observer_keeps_stays_what_it_was(captured: SpeculativeDecoder, plain: SpeculativeDecoder) -> None:
    seen: list[list[RoundRecord]] = [[], []]
    for decoder, to in zip((plain, captured), seen, strict=True):
        for _ in range(2):
            decoder.generate(PROMPTS[:1], NEW, rule="fsd", draft_length=3, observer=to.append)
    for a, b in zip(*seen, strict=True):
        for name in ("js", "tv"):
            assert torch.equal(a.divergences([name])[name], b.divergences([name])[name])
        assert torch.equal(a.proposal.target_logits, b.proposal.target_logits)
        assert torch.equal(a.proposal.drafted, b.proposal.drafted)
        assert torch.equal(a.accepted, b.accepted)


def test_where_a_policy_moves_t(captured: SpeculativeDecoder, plain: SpeculativeDecoder) -> None:
    for _ in range(2):
        same(captured, plain, threshold=EntropyScaled(0.2, slope=2.0))


def test_without_a_draft_model(plain: SpeculativeDecoder) -> None:
    ours, theirs = again(plain, NGram()), SpeculativeDecoder(plain.target, NGram(), plain.tokenizer)
    for _ in range(2):
        same(ours, theirs)


def test_other_models_get_rooms_of_their_own_and_free_the_old(captured: SpeculativeDecoder) -> None:
    for seed in (5, 6):
        captured.target, captured.draft = related(seed=seed, spread=0.05)
        theirs = SpeculativeDecoder(captured.target, captured.draft, captured.tokenizer)
        for _ in range(2):
            same(captured, theirs)
        assert len(free(captured)) == 1


def test_weights_that_moved_are_read_where_they_are() -> None:
    ours = again(tiny_decoder())
    same(ours, ours)
    (before,) = free(ours)
    for weight in ours.target.parameters():
        weight.data = weight.data * 0.5  # elsewhere in memory
    same(ours, SpeculativeDecoder(ours.target, ours.draft, ours.tokenizer))
    assert before not in free(ours)


def test_longer_texts_get_a_larger_room_and_shorter_ones_keep_it(captured: SpeculativeDecoder) -> None:
    slots = []
    for new in (8, 200, 8):
        captured.generate(PROMPTS[:4], new, draft_length=3)
        (room,) = free(captured)
        slots.append(room.slots)
    assert slots[0] < slots[1] == slots[2]


def test_streams_that_take_turns_do_not_disturb_each_other(
    captured: SpeculativeDecoder, plain: SpeculativeDecoder
) -> None:
    for _ in range(2):
        streams = [captured.stream(prompt, NEW) for prompt in PROMPTS[:3]]
        texts = ["", "", ""]
        for pieces in zip(*(_padded(stream) for stream in streams), strict=False):
            texts = [text + piece for text, piece in zip(texts, pieces, strict=True)]
            if not any(pieces):
                break
        assert texts == [plain.generate([prompt], NEW)[0].text for prompt in PROMPTS[:3]]


def _padded(stream: Iterator[str]) -> Iterator[str]:
    yield from stream
    while True:
        yield ""


def test_a_stream_that_is_given_up_leaves_its_room(captured: SpeculativeDecoder, plain: SpeculativeDecoder) -> None:
    stream = captured.stream(PROMPTS[0], NEW)
    next(stream)
    assert not free(captured)
    stream.close()  # type: ignore[attr-defined]  # a generator
    (room,) = free(captured)
    assert captured.generate(PROMPTS[:1], NEW) == plain.generate(PROMPTS[:1], NEW)
    assert free(captured) == [room]


def test_memory_goes_with_its_decoder(plain: SpeculativeDecoder) -> None:
    """At once: garbage collection knows nothing of what a GPU has left."""
    ours = again(plain)
    gc.disable()
    try:
        for _ in range(2):
            ours.generate(PROMPTS[:4], NEW)
        (room,) = free(ours)
        cache = weakref.ref(room.target.cache)
        del room, ours
        assert cache() is None
    finally:
        gc.enable()


def test_a_room_is_entered_empty(captured: SpeculativeDecoder) -> None:
    settings = captured._settings(None, captured.sampling, ())
    asked = captured.requests(PROMPTS[:4], NEW, None, None, None, None)
    rounds = captured.engine(settings, asked, 4).rounds(asked)
    next(rounds)
    rounds.close()  # type: ignore[attr-defined]  # a generator
    (left,) = free(captured)
    assert left.batch.lengths.amax() > 1
    batch = captured.engine(settings, asked, 4)._batch
    assert batch is left.batch
    assert batch.lengths.tolist() == [1] * 4
    assert batch.draft_lengths.tolist() == [0] * 4


def test_concurrent_streams_keep_a_room_each(captured: SpeculativeDecoder) -> None:
    for _ in range(2):
        streams = [captured.stream(prompt, NEW) for prompt in PROMPTS[:3]]
        for stream in streams:
            next(stream, "")
        for stream in streams:
            stream.close()  # type: ignore[attr-defined]  # a generator
        assert len(free(captured)) == 3


def test_where_memory_runs_out_rooms_that_nobody_uses_are_given_up(captured: SpeculativeDecoder) -> None:
    captured.generate(PROMPTS[:4], NEW)

    def full(module: Any, args: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    hook = captured.target.get_input_embeddings().register_forward_pre_hook(full)
    try:
        with pytest.raises(OutOfMemoryError):
            captured.generate(PROMPTS[:1], NEW)
    finally:
        hook.remove()
    assert not free(captured)


def test_a_room_outlives_inference_mode(captured: SpeculativeDecoder, plain: SpeculativeDecoder) -> None:
    with torch.inference_mode():
        same(captured, plain)
    same(captured, plain)


def test_a_model_is_looked_at_again_before_its_room_is_used() -> None:
    ours = again(tiny_decoder())
    ours.generate(PROMPTS[:1], NEW)
    for model in (ours.target, ours.draft):
        model.train()
        with pytest.raises(UsageError, match="is in training mode"):
            ours.generate(PROMPTS[:1], NEW)
        model.eval()
    ours.draft.train()
    ours.generate(PROMPTS[:1], NEW, rule="target")  # which asks no draft


def test_other_temperatures_need_graphs_but_no_more_room_for_results(
    captured: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capturing, "_MOST", 8)
    results = []
    for n in range(6):
        for _ in range(2):
            captured.generate(PROMPTS[:4], 12, 0.5 + n / 10)
        (room,) = free(captured)
        assert isinstance(room.call, Captured)
        assert 0 < len(room.call) <= 8
        results.append(len(room.call._results))
    assert len(set(results)) == 1


def test_a_round_that_broke_spoils_its_room_whoever_stops_listening(captured: SpeculativeDecoder) -> None:
    settings = captured._settings(None, captured.sampling, ())
    asked = captured.requests(PROMPTS[:4], NEW, None, None, None, None)
    hook = captured.target.get_input_embeddings().register_forward_hook(lambda module, args, out: out * float("nan"))
    try:
        rounds = captured.engine(settings, asked, 4).rounds(asked)
        next(rounds)
    finally:
        hook.remove()
    rounds.close()  # type: ignore[attr-defined]  # a generator
    assert not free(captured)


def test_a_room_where_something_went_wrong_is_given_up(plain: SpeculativeDecoder) -> None:
    """What is no number would stay in its caches."""
    ours = again(plain)
    ours.generate(PROMPTS[:4], NEW)
    (before,) = free(ours)

    def spoil(module: Any, args: Any, out: Tensor) -> Tensor:
        return out * float("nan")

    hook = plain.target.get_input_embeddings().register_forward_hook(spoil)
    try:
        with pytest.raises(NumericalError):
            ours.generate([[7] * 30] * 4, NEW)  # another reach: no step of the old room's is replayed
    finally:
        hook.remove()
    assert not free(ours)
    same(ours, plain)
    assert free(ours) != [before]


def test_a_model_that_looks_at_values_is_called_as_it_is_and_that_is_said(plain: SpeculativeDecoder) -> None:
    ours = again(plain)

    def look(module: Any, args: Any, out: Tensor) -> None:
        out.amax().item()

    hook = plain.target.get_input_embeddings().register_forward_hook(look)
    try:
        with pytest.warns(UserWarning, match="verify cannot be captured, so that rounds are slower: aten.*waits for"):
            same(ours, plain)
    finally:
        hook.remove()
    assert graphs(ours) > 0  # the draft's steps, and what judges


def fill(x: Tensor) -> None:
    x.clone()[x > 0] = torch.arange(2.0)


LOOKS: dict[str, Callable[[Tensor], Any]] = {
    "tolist": lambda x: x.tolist(), "numpy": lambda x: x.numpy(), "item": lambda x: x[0].item(),
    "nonzero": lambda x: x.nonzero(), "mask": lambda x: x[x > 0], "fill": fill,
    "handed over": lambda x: torch.tensor([1.0, 2.0]),
}  # fmt: skip


@pytest.mark.parametrize("look", LOOKS)
def test_a_tape_is_as_strict_as_a_graph(look: str) -> None:
    with pytest.raises(RuntimeError, match="which is not permitted while a graph is captured"):
        Tape()(lambda: LOOKS[look](torch.ones(2)))


@pytest.mark.parametrize("look", LOOKS)
def test_a_step_that_looks_is_done_as_it_is(look: str) -> None:
    """Seen at its first call, or refused at its capture: the host's own lists and arrays leave no trace on a CPU."""
    call = Captured(Eager(), Tape())

    def step(given: Tensor) -> Tensor:
        LOOKS[look](given)
        return given + 1

    with pytest.warns(UserWarning, match="step cannot be captured, so that rounds are slower: "):
        made = [call(Key("k", 0), step, torch.full((2,), float(n))).tolist() for n in (1, 2, 3)]
    assert made == [[2, 2], [3, 3], [4, 4]]
    assert len(call) == 0


def test_a_replay_reads_where_it_read() -> None:
    weight = torch.nn.Parameter(torch.tensor([2.0]))
    given, out = torch.tensor([3.0]), torch.zeros(1)

    def launch() -> None:
        out.copy_(given * weight)

    with torch.inference_mode():
        replay = Tape()(launch)
        weight.data = torch.tensor([5.0])
        given.fill_(4.0)
        replay()
    assert out.item() == 8


def test_what_is_compiled_is_not_compiled_for_every_draft_step() -> None:
    whole = Captured(Graphs("eager"), Tape())
    assert whole.uncompiled is not whole
    assert whole.uncompiled.uncompiled is whole.uncompiled


@pytest.mark.parametrize("index", [torch.tensor([1, 0]), torch.tensor([[0], [1]])])
def test_gathering_looks_at_nothing(index: Tensor) -> None:
    call = Captured(Eager(), Tape())
    for n in range(3):
        values = torch.tensor([n, n + 1])
        assert torch.equal(call(Key("k", 0), lambda given: given[index] * 1, values), values[index])


class Adding:
    """A step whose results show what it read."""

    def __init__(self) -> None:
        self.calls = 0
        self.state = torch.zeros(2)

    def step(self, given: list[Tensor], by: float) -> list[Tensor]:
        self.calls += 1
        self.state.add_(by)
        return [one + self.state for one in given]


def test_a_step_is_done_once_a_call() -> None:
    adding, call = Adding(), Captured(Eager(), Tape())
    for n in range(1, 6):
        (found,) = call(Key("k", 0), adding.step, [torch.full((2,), 10.0 * n)], 1.0)
        assert found.tolist() == [11.0 * n] * 2
    assert adding.calls == 2  # once as it is, once captured


def test_results_of_a_kind_lie_where_they_lay_whatever_the_reach() -> None:
    adding, call = Adding(), Captured(Eager(), Tape())
    first, second, other = (
        call(Key(kind, reach), adding.step, [torch.zeros(2)], 1.0)[0]
        for kind, reach in (("k", 64), ("k", 128), ("l", 64))
    )
    assert first.data_ptr() == second.data_ptr() != other.data_ptr()


def test_memory_that_ran_out_is_not_hidden() -> None:
    def full(launch: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    adding, call = Adding(), Captured(Eager(), full)
    call(Key("k", 0), adding.step, [torch.zeros(2)], 1.0)
    with pytest.raises(torch.OutOfMemoryError):
        call(Key("k", 0), adding.step, [torch.zeros(2)], 1.0)


@pytest.mark.parametrize("needed", [1, 63, 64, 65, 1000, 1024, 1025, 4100, 131_072])
def test_at_most_an_eighth_is_read_in_vain(needed: int) -> None:
    size = Captured(Eager(), Tape()).size(needed)
    assert needed <= size <= max(needed + 63, 1.125 * needed)
