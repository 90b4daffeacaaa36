"""The phases of running requests, step by step, compared with those of their whole texts."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fsd_calib.vllm_plugin.phases import RunningPhases
from fsd_decoding.adaptive import Phase
from support.models.tiny_models import word_tokenizer
from support.phases import inside_before

BEGIN, END, WORDS = 3, 4, 6
TEXTS = [b""] * WORDS
CPU = torch.device("cpu")
a_text = st.lists(st.integers(0, WORDS - 1), min_size=1, max_size=4)


@given(st.data())
def test_drafted_tokens_are_in_the_phase_of_what_stands_before_them(data: st.DataObject) -> None:
    """Requests join, finish, draw no tokens or fewer than others, read prompts in parts, and are left out of steps."""
    policy = Phase(0.5, -1, BEGIN, END)
    policy.check([], word_tokenizer(WORDS), "", "")
    running, texts = RunningPhases(policy, CPU), dict[str, list[int]]()
    for step in range(data.draw(st.integers(1, 6))):
        new = {f"{step}.{i}": data.draw(a_text) for i in range(data.draw(st.integers(0, 2)))}
        running.begin(new)
        texts |= {name: list(prompt) for name, prompt in new.items()}
        ids = data.draw(st.permutations(list(texts)))[: data.draw(st.integers(0, 4))]
        drafts = [data.draw(st.lists(st.integers(0, WORDS - 1), max_size=3)) for _ in ids]
        if any(drafts):
            counts, flat = [len(each) for each in drafts], [token for each in drafts for token in each]
            states = running.before(ids, counts, torch.tensor(flat, dtype=torch.int32))
            expected = [
                inside_before([*texts[name], *each], TEXTS, (BEGIN, END))[len(texts[name]) : -1]
                for name, each in zip(ids, drafts, strict=True)
            ]
            assert (states >= policy.reading.inside).tolist() == [inside for each in expected for inside in each]
        emitted = [data.draw(a_text) for _ in ids]
        emits = np.array([data.draw(st.booleans()) for _ in ids], bool)
        sampled = torch.full((len(ids), 4), -1)
        for row, tokens in enumerate(emitted):
            sampled[row, : len(tokens)] = torch.tensor(tokens)
        running.advance(ids, sampled, emits)
        for name, tokens, counted in zip(ids, emitted, emits, strict=True):
            texts[name] += tokens if counted else []
        resumed = [name for name in texts if name not in ids and data.draw(st.booleans())]
        for name in resumed:  # vLLM may have dropped its last tokens
            texts[name] = texts[name][: data.draw(st.integers(1, len(texts[name])))]
        running.begin({name: texts[name] for name in resumed})
        gone = [name for name in texts if data.draw(st.integers(0, 5)) == 0]
        running.forget(gone)
        texts = {name: text for name, text in texts.items() if name not in gone}
