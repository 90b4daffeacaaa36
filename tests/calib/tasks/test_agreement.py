"""Agreement with the target's own text: its prompts, its grades, and what a calibration measures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fsd_calib.engines.own import OwnEngine
from fsd_calib.measuring.evaluator import CachedDecoder
from fsd_calib.measuring.result_cache import ResultCache
from fsd_calib.tasks import Problem, Task, load_task, task_kind
from fsd_calib.tasks.grading.graders import similarity
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.profile.setting import Setting
from fsd_decoding.sampling import Sampling
from support.calibration.task_files import GEMMA, QWEN, load_refusal, tokenizer_of
from support.models.tiny_models import word_tokenizer
from support.models.tiny_pair import related
from support.models.tiny_task import tiny_task

FUZZY = Setting("fsd-coupled", "js", 4, 0.1)
CHAT = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Why?"},
]


def prompts_file(folder: Path, *rows: object) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_prompts_come_from_lines_and_from_rows(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Tell a joke.\n\nSort a list in C.\n")
    lines = load_task("agreement", data=tmp_path / "a.txt")
    rows = load_task(
        "agreement", data=prompts_file(tmp_path, {"prompt": "Tell a joke."}, {"prompt": "Sort a list in C."})
    )
    assert lines.problems == rows.problems
    assert [problem.prompt for problem in lines.problems] == ["Tell a joke.", "Sort a list in C."]
    assert (lines.by_agreement, lines.stop, lines.problems[0].reference) == (True, (), "")


def test_chats_have_all_their_turns(tmp_path: Path) -> None:
    data = prompts_file(tmp_path, {"messages": CHAT}, {"prompt": "Hi"})
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    task = load_task("agreement", data=data, tokenizer=tokenizer_of(template))
    assert [p.prompt for p in task.problems] == ["<user>Hi<assistant>Hello<user>Why?<assistant>", "<user>Hi<assistant>"]
    assert "has no prompt for a model without a chat template" in load_refusal("agreement", data=data)
    parts = [{"type": "text", "text": "Hi"}, {"type": "text", "text": " there"}]
    data = prompts_file(tmp_path, {"messages": [{"role": "user", "content": parts}], "prompt": None})
    assert (
        load_task("agreement", data=data, tokenizer=tokenizer_of(template)).problems[0].prompt
        == "<user>Hi there<assistant>"
    )
    data = prompts_file(tmp_path, {"messages": None, "prompt": "Hi"})
    assert load_task("agreement", data=data).problems[0].prompt == "Hi"


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([{"role": "user"}], "it must be a list of objects with a role and a content that is a text"),
        ([{"role": "user", "content": None}], "it must be a list of objects"),
        ([{"role": "user", "content": [{"type": "image"}]}], "it must be a list of objects"),
        ([{"role": "assistant", "content": "x", "tool_calls": [{}]}, *CHAT], "it must be a list of objects"),
        ([], "it must be a list of objects"),
        ("Hi", "it must be a list of objects"),
        (CHAT[:2], "the last message is the assistant's own; leave it out"),
    ],
)
def test_a_chat_that_cannot_be_asked_is_named(messages: object, expected: str, tmp_path: Path) -> None:
    data = prompts_file(tmp_path, {"prompt": "Hi"}, {"messages": messages})
    message = load_refusal("agreement", data=data, tokenizer=tokenizer_of(QWEN))
    assert "line 2: " in message
    assert expected in message


def test_an_empty_text_of_the_target_is_one_to_agree_with(tmp_path: Path) -> None:
    task = load_task("agreement", data=prompts_file(tmp_path, {"prompt": "Hi"}))
    (problem,) = task.problems
    assert [task.grade(problem, text, "") for text in ("", "Hello")] == [True, False]
    assert task.grade(problem, "whatever the target says")


@pytest.mark.parametrize("similarity", ["0", "1.1", "high", "-1", "nan"])
def test_a_similarity_is_a_share(similarity: str) -> None:
    assert "the similarity must be a number above 0 and up to 1" in load_refusal(f"agreement:{similarity}")


def test_prompts_must_be_given(tmp_path: Path) -> None:
    assert task_kind("agreement:0.90").name == "agreement:0.9"
    assert "it has no prompts of its own; give data, such as" in load_refusal("agreement")
    (tmp_path / "a.txt").write_text(" \n")
    assert "it is empty; it must hold one problem per row" in load_refusal("agreement", data=tmp_path / "a.txt")


def tiny(grader_of: str, tmp_path: Path) -> Task:
    words = tiny_task(24)
    problems = tuple(Problem(p.id, p.question, p.question, "", None) for p in words.problems)
    made = load_task(grader_of, data=prompts_file(tmp_path, {"prompt": "Hi"}))
    return replace(made, problems=problems, max_new_tokens=12)


@pytest.mark.thinned(every=4)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("least", [None, 0.6])
def test_right_is_what_agrees_with_the_target_under_the_same_seed(
    least: float | None, temperature: float, tmp_path: Path
) -> None:
    task = tiny("agreement" if least is None else f"agreement:{least}", tmp_path)
    models = related(seed=1, spread=0.05)
    decoder = SpeculativeDecoder(*models, word_tokenizer(), sampling=Sampling(temperature))
    with ResultCache(None) as store:
        decode = CachedDecoder(OwnEngine(decoder, task), task, store, 8, seeds=2)
        fuzzy = decode(FUZZY, task.problems[:16])  # before the target was asked for
        fuzzy += decode(FUZZY, task.problems[16:])
        alone = decode(Setting("target", "js", 1), task.problems)
        lossless = decode(Setting("coupled", "js", 4), task.problems)
        assert decode.seeds == (1 if temperature == 0 else 2)
        for decodings in (alone, lossless):
            assert all(one.correct for seeds in decodings for one in seeds)
        agreed = [
            one.text.strip() == own.text.strip() if least is None else similarity(own.text, one.text) >= least
            for seeds, owns in zip(fuzzy, alone, strict=True)
            for one, own in zip(seeds, owns, strict=True)
        ]
        assert [one.correct for seeds in fuzzy for one in seeds] == agreed
        assert 0 < sum(agreed) < len(agreed)
        assert decode.decoded == 3 * 24 * decode.seeds  # the target's texts once


def test_similarity_counts_edits_of_tokens() -> None:
    assert similarity("a b c d", "a b c d") == 1
    assert similarity("a b c d", "a x c d") == similarity("a b c d", "a c d") == 0.75
    assert similarity("", "a") == 0
    assert similarity("f(x)", "f( x )") == 1


def test_a_chat_s_own_system_message_precedes_the_user_s_where_the_template_rejects_it(tmp_path: Path) -> None:
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    (problem,) = load_task("agreement", data=tmp_path / "chats.jsonl", tokenizer=tokenizer_of(GEMMA)).problems
    assert problem.prompt == "<start_of_turn>user\nBe brief.\n\nWhy?<end_of_turn>\n<start_of_turn>model\n"
