"""The columns of the tables of traces: names, types, units and meanings.

p is the target's distribution, q the draft's, x the drafted token, and y the token that the target alone would choose
there with the same noise. Logarithms are natural.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

SCHEMA_VERSION = 1  # raised when a column changes its meaning or is removed

ROUNDS_BACK = 3  # number of earlier rounds whose accepted counts are in a token's row


@dataclass(frozen=True)
class Column:
    """A column of a table.

    `unit` is "" where the values have none. A `nullable` column is null where the way of collecting has no such value.
    """

    name: str
    type: pa.DataType
    unit: str
    meaning: str
    nullable: bool = False

    @property
    def field(self) -> pa.Field:
        return pa.field(self.name, self.type, self.nullable, {"unit": self.unit, "meaning": self.meaning})


_WHOSE = (
    Column("run", pa.string(), "", "the run's id, as in manifest.json"),
    Column("problem", pa.int64(), "", "the problem's id, of its question alone; in serving the text's number, from 0"),
    Column("split", pa.string(), "", "tuning or certification, by problem; serving where texts were served"),
)

_PLACE = (
    Column("position", pa.int32(), "tokens", "place in the completion, from 0"),
    Column("round", pa.int32(), "rounds", "round of the completion, from 0; null along the target", True),
    Column("draft_position", pa.int16(), "tokens", "place in the round's draft, from 0; null along the target", True),
)

_DECISION = (
    Column("drafted", pa.int32(), "token id", "x"),
    Column("target_choice", pa.int32(), "token id", "y; along the target the completion's own token"),
    Column("same_argmax", pa.bool_(), "", "p and q (raw logits) have one argmax"),
    Column("same_token", pa.bool_(), "", "x = y: argmaxes if greedy, else samples under one noise"),
    Column("sd_accepts", pa.bool_(), "", "u <= p(x)/q(x), keyed u, processed p and q; greedy: x = y"),
    Column("sd_probability", pa.float32(), "probability", "1 - tv of processed p and q; greedy: 1 where x = y, else 0"),
    Column("accepted", pa.bool_(), "", "the run's rule accepts x; null along the target", True),
    Column("decided", pa.bool_(), "", "accepted, or the first rejected of its round; along the target always"),
    Column("in_text", pa.bool_(), "", "lies before the completion's end, an EOS included; along the target always"),
)

_SHAPE = tuple(
    Column(f"{model}_{name}", kind, unit, f"{meaning} {letter}")
    for model, letter in (("target", "p"), ("draft", "q"))
    for name, kind, unit, meaning in (
        ("entropy", pa.float32(), "nats", "entropy of"),
        ("varentropy", pa.float32(), "nats^2", "variance of -log under"),
        ("top1", pa.float32(), "probability", "largest of"),
        ("top2", pa.float32(), "probability", "second largest of"),
        ("margin", pa.float32(), "probability", "top1 - top2 of"),
        ("rank", pa.int32(), "tokens", "how many tokens are likelier than x under"),
        ("probability", pa.float32(), "probability", "of x under"),
    )
)

_HISTORY = tuple(
    Column(
        f"accepted_{back}_back", pa.int16(), "tokens",
        f"accepted {back} rounds ago; null along the target and before there was such a round", True,
    )
    for back in range(1, ROUNDS_BACK + 1)
)  # fmt: skip

_OUTCOME = (Column("correct", pa.bool_(), "", "the whole completion's answer is right"),)

FUZZY = Column("fuzzy", pa.bool_(), "", "D <= T, with the profile's own policy; in serving only")

# Of served texts nobody knows the reference, and of sampled tokens not what vLLM's noise would have made of them.
_UNKNOWN = frozenset({"correct", "target_choice", "same_token", "sd_accepts", "sd_probability"})

COMPLETIONS: tuple[Column, ...] = (
    *_WHOSE,
    Column("prompt_tokens", pa.int32(), "tokens", "length of the prompt"),
    Column("tokens", pa.list_(pa.int32()), "token id", "the completion, without EOS"),
    Column("text", pa.string(), "", "the completion, cut before a stop string"),
    Column("finish_reason", pa.string(), "", "eos, stop or length; in serving also abort: the client left"),
    Column("emitted", pa.int32(), "tokens", "tokens it took, an EOS included"),
    Column("rounds", pa.int32(), "rounds", "verifications it took"),
    Column("proposed", pa.int32(), "tokens", "tokens drafted"),
    Column("accepted", pa.int32(), "tokens", "of them, those that stayed"),
    *_OUTCOME,
)

ROUNDS: tuple[Column, ...] = (
    *_WHOSE,
    Column("round", pa.int32(), "rounds", "round of the completion, from 0"),
    Column("position", pa.int32(), "tokens", "place in the completion where the round began"),
    Column("proposed", pa.int16(), "tokens", "tokens drafted"),
    Column("accepted", pa.int16(), "tokens", "of them, up to the first rejection"),
    Column("batch", pa.int16(), "rows", "completions decoded in this round at once; times are of all of them"),
    Column("draft_seconds", pa.float64(), "s", "draft phase, with new prompts that the draft reads in it"),
    Column("verify_seconds", pa.float64(), "s", "verification, likewise"),
)


_MISMATCH = (
    Column("position", pa.int32(), "tokens", "place in the completion, from 0"),
    Column("drafted", pa.int32(), "token id", "x, which was put in"),
    Column("target_choice", pa.int32(), "token id", "y, which stood there"),
    Column("before", pa.int32(), "token id", "the token before x"),
    Column("context", pa.list_(pa.int32()), "token id", "the completion before x, with the swaps that stayed"),
    Column("probability", pa.float64(), "probability", "with which the position was sampled; the weight is 1 over it"),
    Column("stayed", pa.bool_(), "", "x stayed, and later mismatches are of the text that follows it"),
    Column("spent", pa.int32(), "tokens", "written behind x, or with mode self read there"),
)

_LABELS = {
    "outcome": Column("harmful", pa.bool_(), "", "the text with x in the place of y is wrong; that with y is right"),
    "self": Column("change", pa.float32(), "nats", "of the mean log-likelihood of the target's own text behind x"),
}

QUOTA = Column("quota", pa.int32(), "positions", "labelled of this problem at most")


def label_tables(mode: str, features: Sequence[str]) -> dict[str, tuple[Column, ...]]:
    """Returns the columns of each table of a run that labels mismatches.

    Args:
        mode: what labels are, "outcome" or "self".
        features: of a mismatch, one column each.
    """
    measured = (Column(name, pa.float32(), "", f"feature {name}") for name in features)
    return {
        "labels": (*_WHOSE, *_MISMATCH, _LABELS[mode], *measured),
        "completions": (*COMPLETIONS, QUOTA),
    }


_IN_NATS = {"js", "ag", "kl_qp", "kl_pq", "doubt", "fly"}


def token_columns(scores: Sequence[str], hidden: int = 0, log_probs: int = 0) -> tuple[Column, ...]:
    """Returns the columns of the table of tokens, which has one row for each drafted token.

    Args:
        scores: names of scores, one column each.
        hidden: width of the draft's hidden state; 0 where it is not kept.
        log_probs: number of the likeliest tokens that are kept of p and of q.
    """
    measured = (
        Column(
            name,
            pa.float32(),
            "nats" if name.removeprefix("gated-").partition("@")[0] in _IN_NATS else "",
            f"score {name} of x",
        )
        for name in scores
    )
    state = (
        Column("draft_hidden", pa.list_(pa.float16(), hidden), "", "the draft's last hidden state, q's own input"),
    )
    likeliest = tuple(
        Column(f"{model}_top{name}", pa.list_(kind, log_probs), unit, f"{meaning} {log_probs} likeliest of {letter}")
        for model, letter in (("target", "p"), ("draft", "q"))
        for name, kind, unit, meaning in (
            ("", pa.int32(), "token id", "the"),
            ("_log_p", pa.float32(), "nats", "log p of the"),
            ("_log_q", pa.float32(), "nats", "log q of the"),
        )
    )
    more = (*(state if hidden else ()), *(likeliest if log_probs else ()))
    return (*_WHOSE, *_PLACE, *_DECISION, *measured, *_SHAPE, *_HISTORY, *_OUTCOME, *more)


def tables_of(way: str, scores: Sequence[str], hidden: int, log_probs: int) -> dict[str, tuple[Column, ...]]:
    """Returns the columns of each table of a run, in the order in which the tables are listed.

    Args:
        way: along-target, on-policy or serving.
        scores, hidden, log_probs: see `token_columns`.
    """
    columns = {"tokens": token_columns(scores, hidden, log_probs), "completions": COMPLETIONS}
    if way == "on-policy":
        return columns | {"rounds": ROUNDS}
    if way == "serving":
        return {"tokens": (*_served(columns["tokens"]), FUZZY), "completions": _served(COMPLETIONS)}
    return columns


def _served(columns: Sequence[Column]) -> tuple[Column, ...]:
    return tuple(replace(column, nullable=column.nullable or column.name in _UNKNOWN) for column in columns)


def schema_of(table: str, columns: Sequence[Column]) -> pa.Schema:
    """Returns the Arrow schema of a table; units and meanings are stored in the files as metadata."""
    return pa.schema(
        [column.field for column in columns], {"fsd_table": table, "fsd_schema_version": str(SCHEMA_VERSION)}
    )
