"""Check of a model in LightGBM's text format before LightGBM reads it, which trusts every count and index in it.

Only what `boosted.Boosted` writes is accepted: numerical splits, constant leaves, one output. The format has a header,
a block per tree, and a tail that predictions do not read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from fsd_common.errors import UsageError

_HEADER = {"version", "num_class", "num_tree_per_iteration", "label_index", "max_feature_idx", "objective",
           "feature_names", "monotone_constraints", "feature_infos", "tree_sizes"}  # fmt: skip
_CONSTANT = {"num_class": "1", "num_tree_per_iteration": "1", "label_index": "0", "objective": "binary sigmoid:1"}
_OF_NODES = ("split_feature", "split_gain", "threshold", "decision_type", "left_child", "right_child",
             "internal_value", "internal_weight", "internal_count")  # fmt: skip
_OF_LEAVES = ("leaf_value", "leaf_weight", "leaf_count")
_TREE = {"num_leaves", "num_cat", *_OF_NODES, *_OF_LEAVES, "is_linear", "shrinkage"}
_WHOLE = {"split_feature", "decision_type", "left_child", "right_child", "internal_count", "leaf_count"}
_NUMERICAL = {0, 2, 4, 6, 8, 10}  # decision types: the lowest bit is a categorical split, the others missing values
_DEEPEST = 4096  # LightGBM walks a tree recursively
_INTEGER = re.compile(r"-?\d{1,10}")
_FLOAT = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")
_RANGE = re.compile(r"none|\[([^:\]]+):([^:\]]+)\]")
_TAIL = re.compile(
    r"end of trees\n\nfeature_importances:\n([\w.]+=\d+\n)*\nparameters:\n(\[\w+: [^\n\0]*\]\n)*\n"
    r"end of parameters\n\npandas_categorical:null\n*"
)


def check_text(text: str, features: int) -> None:
    """Checks that LightGBM can read the text of a model of so many features, and walk its trees.

    Raises:
        UsageError: it is not what training writes.
    """
    if not isinstance(text, str) or not text.isascii():
        raise _invalid("it is not plain text")
    header, blank, rest = text.partition("\n\n")
    sizes = _check_header(_fields(header.removeprefix("tree\n"), _HEADER, "header"), features)
    if not blank or not header.startswith("tree\n"):
        raise _invalid("its header does not begin with 'tree', or does not end")
    largest = 0.0
    for number, size in enumerate(sizes):
        largest += _check_tree(rest[:size], number, features)
        rest = rest[size:]
    if not math.isfinite(largest):
        raise _invalid("the leaves of its trees may add up to more than a float holds")
    if not _TAIL.fullmatch(rest):
        raise _invalid("it does not end as it should after its trees")


def _check_header(fields: dict[str, str], features: int) -> list[int]:
    """Returns the lengths of the trees' blocks."""
    for name, value in {**_CONSTANT, "max_feature_idx": str(features - 1)}.items():
        if fields[name] != value:
            raise _invalid(f"{name} is {fields[name]!r}, not {value!r}")
    if not re.fullmatch(r"v\d", fields["version"]):
        raise _invalid(f"version is {fields['version']!r}")
    for name in ("feature_names", "monotone_constraints", "feature_infos"):
        if len(fields[name].split(" ")) != features:
            raise _invalid(f"{name} does not have {features} entries")
    if fields["feature_names"].split(" ") != [f"Column_{column}" for column in range(features)]:
        raise _invalid("feature_names are not Column_0, Column_1 and so on")
    if not set(fields["monotone_constraints"].split(" ")) <= {"-1", "0", "1"}:
        raise _invalid("monotone_constraints holds something else than -1, 0 and 1")
    for info in fields["feature_infos"].split(" "):
        if not (found := _RANGE.fullmatch(info)):
            raise _invalid(f"feature_infos holds {info!r}, which is no range")
        if info != "none" and _floats(found.groups(), "feature_infos") != sorted(map(float, found.groups())):
            raise _invalid(f"feature_infos holds {info!r}, which is no range")
    return _integers(fields["tree_sizes"].split(" "), "tree_sizes")


def _check_tree(block: str, number: int, features: int) -> float:
    """Returns the largest magnitude of the tree's leaves."""
    where = f"tree {number}: "
    head, _, body = block.partition("\n")
    if head != f"Tree={number}" or not body.endswith("\n\n\n"):
        raise _invalid(f"{where}it is not where tree_sizes says")
    fields = _fields(body[:-3], _TREE, where)
    if fields["num_cat"] != "0" or fields["is_linear"] != "0":
        raise _invalid(f"{where}it has categorical splits or linear leaves")
    _floats([fields["shrinkage"]], where + "shrinkage")
    (leaves,) = _integers([fields["num_leaves"]], where + "num_leaves")
    numbers = {name: _numbers(fields[name], name, where) for name in (*_OF_NODES, *_OF_LEAVES)}
    for names, count in ((_OF_NODES, leaves - 1), (_OF_LEAVES, leaves)):
        for name in names:
            if len(numbers[name]) != count and not (name == "leaf_weight" and leaves == 1 and not numbers[name]):
                raise _invalid(f"{where}{name} has {len(numbers[name])} entries, not {count}")
    if not all(0 <= feature < features for feature in numbers["split_feature"]):
        raise _invalid(f"{where}split_feature names a feature beyond the {features}")
    if not _NUMERICAL.issuperset(numbers["decision_type"]):
        raise _invalid(f"{where}decision_type has a split that is not numerical")
    left, right = ([int(each) for each in numbers[name]] for name in ("left_child", "right_child"))
    _check_children(left, right, where)
    return max(map(abs, numbers["leaf_value"]))


def _check_children(left: Sequence[int], right: Sequence[int], where: str) -> None:
    """Walks down from the root: each node and each leaf (~index, negative) is reached exactly once."""
    reached: set[int] = set()
    level, depth = [0 if left else -1], 0
    while level:
        for child in level:
            if child in reached or not -len(left) - 1 <= child < max(len(left), 1):
                raise _invalid(f"{where}child {child} is reached twice, or is no node or leaf")
            reached.add(child)
        level = [side[node] for node in level if node >= 0 for side in (left, right)]
        depth += 1
        if depth > _DEEPEST:
            raise _invalid(f"{where}it is more than {_DEEPEST} levels deep")
    if len(reached) != 2 * len(left) + 1:
        raise _invalid(f"{where}{2 * len(left) + 1 - len(reached)} nodes and leaves are not reached from its root")


def _fields(lines: str, names: set[str], where: str) -> dict[str, str]:
    """The values of lines `name=value`, each name once."""
    pairs = [line.partition("=")[::2] for line in lines.split("\n")]
    if len(pairs) != len(names) or {name for name, _ in pairs} != names:
        raise _invalid(f"{where} has a field too many, or one missing")
    return dict(pairs)


def _numbers(value: str, name: str, where: str) -> Sequence[float]:
    entries = value.split(" ") if value else []
    return _integers(entries, where + name) if name in _WHOLE else _floats(entries, where + name)


def _integers(entries: Sequence[str], where: str) -> list[int]:
    if not all(_INTEGER.fullmatch(entry) for entry in entries):
        raise _invalid(f"{where} holds something else than whole numbers")
    return [int(entry) for entry in entries]


def _floats(entries: Sequence[str], where: str) -> list[float]:
    if not all(_FLOAT.fullmatch(entry) and math.isfinite(float(entry)) for entry in entries):
        raise _invalid(f"{where} holds something else than finite numbers")
    return [float(entry) for entry in entries]


def _invalid(reason: str) -> UsageError:
    return UsageError(
        f"the model's text is not as training writes it: {reason}; restore it from a copy, or train again"
    )
