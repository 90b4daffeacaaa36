"""How wide a tree of drafted tokens is, and how many of them the target reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, Self

from fsd_common.argument_checks import check_count, named
from fsd_common.errors import UsageError

Chain = Literal["chain"]
CHAIN: Final[Chain] = "chain"
"""What stands for chains where a shape of trees may be given, and None would keep a shape."""
_MOST = 4096  # nodes: more than any model reads as fast as a few


def _complete(schema: dict[str, Any]) -> None:
    """Adds to the JSON schema of a shape what pydantic does not read from it."""
    schema["description"] = "A shape of trees, whose depth is the draft length."
    for bounded in schema["properties"].values():
        bounded |= {"minimum": 1, "maximum": _MOST}


@dataclass(frozen=True)
class TreeShape:
    """The shape of the trees that a decoder drafts; their depth is the draft length L.

    A tree grows level by level as in EAGLE-2 (arXiv 2406.16858, section 4.1): of each level the `top_k` nodes with the
    highest scores get `top_k` children each, and of all of these the `nodes` with the highest scores are drafted.
    """

    # A shape is a part of profiles: this is for their files and their JSON schema. The engine, which has shapes too,
    # runs where pydantic is not installed.
    __pydantic_config__: ClassVar = {
        "extra": "forbid",
        "use_attribute_docstrings": True,
        "json_schema_extra": _complete,
    }

    top_k: int
    """Children of a node, and nodes of a level that get children."""
    nodes: int
    """The most tokens that are drafted in a round, all of which the target reads in one forward pass."""

    def __post_init__(self) -> None:
        for name in ("top_k", "nodes"):
            value = getattr(self, name)
            check_count(name, value)
            if value > _MOST:
                raise UsageError(f"{name} is {value}; a tree may have at most {_MOST}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Returns the shape of a text such as "2,6": `top_k`, `nodes`.

        Raises:
            UsageError: it is none.
        """
        try:
            top_k, nodes = map(int, text.split(","))
        except ValueError as error:
            raise UsageError(f"{named('tree')} is {text!r:.40}; give TOP_K,NODES, such as 2,6, or {CHAIN}") from error
        return cls(top_k, nodes)

    @property
    def text(self) -> str:
        """What `parse` reads."""
        return f"{self.top_k},{self.nodes}"

    def scratch(self, depth: int) -> int:
        """Slots behind a text that a round needs to draft and verify trees of this depth."""
        return max(self.nodes, self.top_k * (depth - 1))

    def __str__(self) -> str:
        return f"{self.nodes} nodes, top {self.top_k}"


def read_shape(text: str) -> TreeShape | Chain:
    """Returns the shape of a text such as "2,6", or "chain" for chains. UsageError: it is neither."""
    return CHAIN if text == CHAIN else TreeShape.parse(text)


def without_chain(tree: Any) -> Any:
    """Returns a shape, or several, as a decoder has them, where None stands for chains; anything else as it is."""
    if isinstance(tree, (list, tuple)):
        return tuple(map(without_chain, tree))
    return None if isinstance(tree, str) and tree == CHAIN else tree
