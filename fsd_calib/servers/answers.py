"""What a server answers: the text with its counts, and when its parts came."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self


class Acceptance(NamedTuple):
    """What a server tells of one text's drafts.

    Attributes:
        rounds: Verifications by the target.
        drafted, accepted: Drafted tokens, without those that the target adds.
    """

    rounds: int
    drafted: int
    accepted: int

    @property
    def record(self) -> dict[str, float]:
        """It by the names of AIPerf's record of acceptance (its documentation, per-request acceptance)."""
        return {
            "num_spec_steps": self.rounds, "num_draft_tokens": self.drafted,
            "num_accepted_draft_tokens": self.accepted,
            "mean_acceptance_length": 1 + self.accepted / self.rounds if self.rounds else 1.0,
            # 0 where it is not known: some servers do not count drafts, or count others than those accepted.
            "draft_acceptance_rate": self.accepted / self.drafted if self.drafted >= self.accepted > 0 else 0.0,
        }  # fmt: skip

    @classmethod
    def sum(cls, of: Iterable[Self]) -> Self | None:
        """Returns that of all; None: there are none."""
        each = list(of)
        return cls(*map(sum, zip(*each, strict=True))) if each else None

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Self | None:
        """Reads what vLLM (`--per-request-spec-decode-metrics`), llama.cpp (`timings`) and SGLang (`meta_info`) say.

        None: there is nothing. SGLang's names are read in its sources (0.5.23); it has not been run.
        """
        counted = _within(answer, "metrics", "speculative_decoding")
        if counted is not None:
            names = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
            return cls(*(int(counted[name]) for name in names))
        timings = _within(answer, "timings")
        if timings is not None and "draft_n" in timings:
            accepted = int(timings["draft_n_accepted"])
            return cls(int(timings["predicted_n"]) - 1 - accepted, int(timings["draft_n"]), accepted)  # 1: the prompt's
        holders = *(answer.get("choices") or ()), answer
        told = next(filter(None, (_within(each, "meta_info") for each in holders)), {})
        rounds, length = told.get("spec_verify_ct"), told.get("spec_accept_length")
        if not rounds or length is None:
            return None
        accepted = told.get("spec_accept_token_num", round(rounds * (length - 1)))
        return cls(int(rounds), int(told.get("spec_draft_token_num", 0)), int(accepted))


@dataclass(frozen=True)
class Answer:
    """A whole answer to one request.

    Attributes:
        number: What the server calls the answer.
        tokens: New ones, by the server's own count.
        cut: Whether the limit on new tokens ended it.
    """

    number: str
    text: str
    tokens: int
    cut: bool
    acceptance: Acceptance | None = None

    @classmethod
    def of(cls, content: Any) -> Self:
        """Reads the JSON of an answer. ValueError: it is none."""
        if not isinstance(content, Mapping):
            raise ValueError(f"{str(content).strip()[:60]!r} is no answer in JSON")
        try:
            (choice,) = content["choices"]
            text = choice["message"]["content"] if "message" in choice else choice["text"]
            reason, tokens = choice["finish_reason"], content["usage"]["completion_tokens"]
            found = cls(str(content["id"]), text or "", int(tokens), reason == "length", Acceptance.of(content))
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"an answer lacks {error}, or has it in another form") from None
        if reason is None:
            raise ValueError("an answer was not finished")
        return found


@dataclass(frozen=True)
class Timed:
    """When the parts of a streamed answer came, in seconds from its request.

    Attributes:
        first: The first part of the text.
        whole: Its end.
        tokens: New ones.
    """

    first: float
    whole: float
    tokens: int
    acceptance: Acceptance | None = None

    @property
    def between(self) -> float | None:
        """Mean seconds from one token to the next; None: there is one token."""
        return None if self.tokens < 2 else (self.whole - self.first) / (self.tokens - 1)


def likeliest_at(content: Any, at: int) -> dict[str, float]:
    """Returns the likeliest tokens at a character of an answer's text, with their log probabilities.

    ValueError: the answer does not tell.
    """
    try:
        told = content["choices"][0]["logprobs"]
        if "content" in told:  # of a chat
            tokens = [each["token"] for each in told["content"]]
            tops = [{top["token"]: top["logprob"] for top in each["top_logprobs"]} for each in told["content"]]
        else:
            tokens, tops = told["tokens"], told["top_logprobs"]
    except (KeyError, TypeError, IndexError):
        raise ValueError("the answer has no log probabilities") from None
    end = 0
    for token, top in zip(tokens, (top or {} for top in tops), strict=True):
        end += len(token)
        if end > at:  # texts part within this token
            begun = token[: len(token) - (end - at)]
            return {each[len(begun) :]: float(logprob) for each, logprob in top.items() if each.startswith(begun)}
    return {}


def _within(content: Mapping[str, Any], *names: str) -> Mapping[str, Any] | None:
    for name in names:
        found = content.get(name)
        if not isinstance(found, Mapping):
            return None
        content = found
    return content
