"""Boosted trees with a monotone constraint on T, by LightGBM (Ke et al. 2017).

LightGBM trusts every count and index of a model's text, so `check_text` checks it first: only what `Boosted` writes is
accepted, which is numerical splits, constant leaves and one output. The format has a header, a block per tree, and a
tail that predictions do not read. Single rows are predicted by LightGBM's C API, in a few microseconds where
`Booster.predict` takes 15 or more; its Python package does not offer this call, so the two are compared before use.
"""

from __future__ import annotations

import ctypes
import math
import re
import struct
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import ClassVar, Self

import lightgbm
import numpy as np
from lightgbm import basic

from fsd_common.errors import UsageError
from fsd_predictors.models.base import AcceptanceModel, Array, Parts

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


Score = Callable[[Sequence[float]], float]

_ROWS = 64  # random rows on which the two are compared


def one_row(booster: lightgbm.Booster) -> Score:
    """Returns a function that gives the raw score of one row.

    It makes the fast call where that agrees with `Booster.predict`, and falls back to the latter with a warning.
    """
    try:
        fast = FastRow(booster)
        rows = _rows(booster)
        same = [fast(row) for row in rows.tolist()] == booster.predict(rows, raw_score=True).tolist()  # type: ignore[union-attr]
    except (AttributeError, ctypes.ArgumentError, basic.LightGBMError) as error:
        return _slow(booster, f"has no such call ({error})")
    return fast if same else _slow(booster, "gives other scores by its C API")


class FastRow:
    """LGBM_BoosterPredictForMatSingleRowFast with preallocated buffers, which a lock keeps to one thread at a time."""

    def __init__(self, booster: lightgbm.Booster) -> None:
        library = basic._LIB  # type: ignore[attr-defined]  # private: `one_row` handles its absence
        self._lock = threading.Lock()
        self._booster = booster  # the configuration points into it: it must not be freed
        self._pack = struct.Struct(f"{booster.num_feature()}d").pack_into
        self._values = (ctypes.c_double * booster.num_feature())()
        self._score, self._length = ctypes.c_double(), ctypes.c_int64()
        self._call = library.LGBM_BoosterPredictForMatSingleRowFast
        self._free = library.LGBM_FastConfigFree
        self._configuration = ctypes.c_void_p()
        basic._safe_call(
            library.LGBM_BoosterPredictForMatSingleRowFastInit(
                booster._handle, basic._C_API_PREDICT_RAW_SCORE, 0, -1, basic._C_API_DTYPE_FLOAT64,
                booster.num_feature(), b"num_threads=1", ctypes.byref(self._configuration),
            )
        )  # fmt: skip
        self._pointers = (ctypes.byref(self._values), ctypes.byref(self._length), ctypes.byref(self._score))

    def __call__(self, values: Sequence[float]) -> float:
        with self._lock:  # ctypes releases the GIL during the call
            self._pack(self._values, 0, *values)
            if self._call(self._configuration, *self._pointers):
                basic._safe_call(-1)  # raises, with LightGBM's message
            return self._score.value

    def __del__(self) -> None:
        if getattr(self, "_configuration", None):
            self._free(self._configuration)


def _slow(booster: lightgbm.Booster, why: str) -> Score:
    warnings.warn(f"LightGBM {lightgbm.__version__} {why}: one row takes longer, by Booster.predict", stacklevel=4)
    return lambda values: float(booster.predict(np.array([values]), raw_score=True)[0])  # type: ignore[index, arg-type]


def _rows(booster: lightgbm.Booster) -> Array:
    """Returns random rows over the range that the model recorded for every feature."""
    model = booster.dump_model()
    ranges = [model["feature_infos"].get(name, {}) for name in model["feature_names"]]
    low, high = ([float(each.get(key, 0)) for each in ranges] for key in ("min_value", "max_value"))
    return np.random.default_rng(0).uniform(low, high, (_ROWS, len(ranges)))


# Rows from which several threads are used: with fewer, as while decoding, waking threads takes longer than the work.
_MANY = 2000


class Boosted(AcceptanceModel):
    """Gradient-boosted trees.

    The defaults are few trees with many leaves: the time of one prediction while decoding grows with the number of
    trees and hardly with that of leaves.
    """

    kind: ClassVar[str] = "boosted"

    def __init__(
        self,
        share: int = 0,
        trees: int = 40,
        leaves: int = 63,
        learning_rate: float = 0.2,
        rows_a_leaf: int = 100,
        l2: float = 10.0,
        seed: int = 0,
    ) -> None:
        self.share = share
        self.trees = trees
        self.leaves = leaves
        self.learning_rate = learning_rate
        self.rows_a_leaf = rows_a_leaf
        self.l2 = l2
        self.seed = seed

    def _fit(self, rows: Array, accepted: Array) -> None:
        trained = lightgbm.train(self._settings(rows.shape[1]), lightgbm.Dataset(rows, accepted), self.trees)
        self._load(trained.model_to_string())

    def _settings(self, columns: int) -> dict[str, object]:
        return {
            "objective": "binary",
            "num_leaves": self.leaves,
            "learning_rate": self.learning_rate,
            "min_data_in_leaf": self.rows_a_leaf,
            "lambda_l2": self.l2,
            "monotone_constraints": [int(column == self.share) for column in range(columns)],
            "monotone_constraints_method": "basic",
            "seed": self.seed,
            "deterministic": True,
            "force_row_wise": True,
            "verbose": -1,
        }

    def _load(self, text: str) -> None:
        """Loads the model from LightGBM's text, after training too: this drops the training rows."""
        check_text(text, self.n_features_in_)
        try:
            self.booster_ = lightgbm.Booster(model_str=text)
        except (lightgbm.basic.LightGBMError, ValueError) as error:
            raise UsageError(f"LightGBM cannot read the model's text ({error}); train again") from error
        self.logit_of_ = one_row(self.booster_)

    def logits(self, rows: Array) -> Array:
        threads = 1 if len(rows) < _MANY else 0  # 0: all there are
        return np.asarray(self.booster_.predict(rows, raw_score=True, num_threads=threads))

    def logit(self, values: Sequence[float]) -> float:
        return self.logit_of_(values)

    def parts(self) -> Parts:
        numbers = {"kind": self.kind, "parameters": self.get_params(), "features": self.n_features_in_}
        return Parts(numbers, text=self.booster_.model_to_string())

    @classmethod
    def from_parts(cls, parts: Parts) -> Self:
        model = cls(**parts.numbers["parameters"])
        model.n_features_in_ = parts.numbers["features"]
        model._load(parts.text)
        return model
