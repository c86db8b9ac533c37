"""Regression trees of scikit-learn as arrays of nodes, evaluated in torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._internal.chunks import rows_at_a_time
from .._internal.numerics import check_indices, check_shapes
from .._internal.smoothers import Smoother
from .._internal.validate import check_features

_PAIRS = 1 << 17  # pairs of rows and trees processed at a time


class TreeEnsemble(Smoother):
    r"""A sum of regression trees: boosting, a forest, or extremely randomised trees.

    .. math:: \hat t_k(x) = c_k + \sum_{j} v_{j,k}\big(\mathrm{leaf}_j(x)\big)

    A row goes to the left child of a node if its feature is at most the threshold, otherwise to the right
    child; a leaf is its own child on both sides. Predictions equal those of the original scikit-learn model
    up to rounding.

    Args:
        feature: (m,) feature of each node, int32.
        threshold: (m,) float64 or float32.
        left: (m,) left child, int32, with a larger index than its parent.
        right: (m,) right child, int32.
        value: (m, c) values that a leaf adds to c consecutive outputs, float64 or float32.
        root: (j,) first node of each tree, int32.
        target: (j,) first output that each tree adds to, int32.
        level: (k,) constants added to all rows.
        features: number of features p.
        single: whether features are rounded to float32 first, as forests do.

    Examples:
        >>> from sklearn.ensemble import RandomForestRegressor
        >>> x = np.arange(20.0).reshape(10, 2)
        >>> forest = RandomForestRegressor(5, random_state=0).fit(x, x[:, 0])
        >>> trees = TreeEnsemble.from_sklearn(forest)
        >>> bool(np.allclose(trees(torch.from_numpy(x))[:, 0], forest.predict(x)))
        True
    """

    feature: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    value: Tensor
    root: Tensor
    target: Tensor
    level: Tensor

    def __init__(
        self,
        feature: Tensor,
        threshold: Tensor,
        left: Tensor,
        right: Tensor,
        value: Tensor,
        root: Tensor,
        target: Tensor,
        level: Tensor,
        features: int,
        single: bool = False,
    ) -> None:
        super().__init__()
        check_shapes(threshold=(_widen(threshold), "m"), value=(_widen(value), "m c"), level=(level, "k"))
        nodes = len(threshold)
        for name, numbers, count, size in (
            ("feature", feature, nodes, features),
            ("left", left, nodes, nodes),
            ("right", right, nodes, nodes),
            ("root", root, len(root), nodes),
            ("target", target, len(root), len(level) - value.shape[1] + 1),
        ):
            check_indices(name, numbers, count, size, torch.int32)
        # Indices increase along every path, so every path ends, whatever the file contains.
        own = torch.arange(nodes, dtype=left.dtype, device=left.device)
        leaf = (left == own) & (right == own)
        if not bool((leaf | ((left > own) & (right > own))).all()):
            raise ValueError(
                "The children of a node must come after the node, and a leaf must be its own child."
            )
        self.features, self.single = features, bool(single)
        tensors = {"feature": feature, "threshold": threshold, "left": left, "right": right}
        for name, tensor in {
            **tensors,
            "value": value,
            "root": root,
            "target": target,
            "level": level,
        }.items():
            self.register_buffer(name, tensor)

    @classmethod
    def from_sklearn(cls, *models: Any) -> TreeEnsemble:
        """The trees of a fitted forest or of gradient boosting.

        Args:
            models: one ``RandomForestRegressor`` or ``ExtraTreesRegressor`` for all outputs, or one
                ``HistGradientBoostingRegressor`` with identity link for each output.
        """
        if not models:
            raise ValueError("Pass a fitted forest, or a gradient boosting model for each output.")
        if all(hasattr(model, "_predictors") for model in models):
            return cls._from_boosting(models)
        if len(models) != 1 or not hasattr(models[0], "estimators_"):
            names = [type(model).__name__ for model in models]
            raise TypeError(
                "from_sklearn needs one fitted RandomForestRegressor or ExtraTreesRegressor, or fitted "
                f"HistGradientBoostingRegressors, got {names}."
            )
        return cls._from_forest(models[0])

    @classmethod
    def _from_forest(cls, forest: Any) -> TreeEnsemble:
        trees = [each.tree_ for each in forest.estimators_]
        parts = []
        for tree in trees:
            leaf = tree.children_left < 0
            value = tree.value[:, :, 0] / len(trees) * leaf[:, None]
            parts.append((leaf, tree.feature, tree.threshold, tree.children_left, tree.children_right, value))
        level = np.zeros(trees[0].value.shape[1])
        return cls._join(parts, np.zeros(len(parts)), level, forest.n_features_in_, single=True)

    @classmethod
    def _from_boosting(cls, models: Sequence[Any]) -> TreeEnsemble:
        parts, target = [], []
        for k, model in enumerate(models):
            for iteration in model._predictors:
                nodes = iteration[0].nodes
                if nodes["is_categorical"].any():
                    raise ValueError(
                        "Trees that split on categories are not supported; encode categories as numbers."
                    )
                leaf, left, right = nodes["is_leaf"] > 0, nodes["left"], nodes["right"]
                value = np.where(leaf, nodes["value"], 0.0)[:, None]
                parts.append((leaf, nodes["feature_idx"], nodes["num_threshold"], left, right, value))
                target.append(k)
        level = np.array([float(np.ravel(model._baseline_prediction)[0]) for model in models])
        return cls._join(parts, np.array(target), level, models[0].n_features_in_, single=False)

    @classmethod
    def _join(
        cls, trees: Iterable[Any], target: np.ndarray, level: np.ndarray, features: int, *, single: bool
    ) -> TreeEnsemble:
        columns, roots, start = [], [], 0
        largest = np.finfo(np.float64).max
        for leaf, feature, threshold, left, right, value in trees:
            own = np.arange(len(leaf))
            columns.append(
                (
                    np.where(leaf, 0, feature),
                    np.where(leaf, 0.0, np.clip(threshold, -largest, largest)),
                    start + np.where(leaf, own, left),
                    start + np.where(leaf, own, right),
                    value,
                )
            )
            roots.append(start)
            start += len(leaf)
        kinds = (torch.int32, torch.float64, torch.int32, torch.int32, torch.float64)
        arrays = (np.concatenate(column) for column in zip(*columns, strict=True))
        feature, threshold, left, right, value = (
            torch.from_numpy(array).to(kind) for array, kind in zip(arrays, kinds, strict=True)
        )
        threshold, value = _round_down(threshold) if single else threshold, _narrow(value)
        root, aim = torch.tensor(roots, dtype=torch.int32), torch.from_numpy(target).to(torch.int32)
        offset = torch.from_numpy(level)
        return cls(feature, threshold, left, right, value, root, aim, offset, int(features), single)

    @property
    def answers(self) -> int:
        return len(self.level)

    def of_columns(self, columns: Tensor, features: int) -> TreeEnsemble:
        """The same trees for a larger table, given the indices (p,) of the columns to use."""
        feature = columns[self.feature.long()].to(torch.int32)
        arrays = (self.threshold, self.left, self.right, self.value, self.root, self.target, self.level)
        return TreeEnsemble(feature, *arrays, features, self.single)

    def forward(self, x: Tensor) -> Tensor:
        """Estimated targets, (..., p) -> (..., k)."""
        rows = check_features(x, self.features).detach().reshape(-1, self.features)
        rows = rows.to(torch.float32 if self.single else torch.float64)
        children = torch.stack([self.left, self.right], 1).reshape(-1)
        width = self.value.shape[1]
        # Outputs that each tree adds to: a sum over trees is a product with this matrix.
        adds = self.target[:, None] == torch.arange(self.answers - width + 1, device=rows.device)
        parts = []
        for part in rows.split(rows_at_a_time(max(len(self.root), self.features), _PAIRS)):
            value = _widen(self.value.index_select(0, self._leaves(part, children)))
            total = value.reshape(len(part), len(self.root), width).transpose(1, 2) @ adds.to(value)
            answers = self.level.repeat(len(part), 1)
            for i in range(width):
                answers[:, i : i + adds.shape[1]] += total[:, i]
            parts.append(answers)
        return torch.cat(parts).reshape(*x.shape[:-1], self.answers)

    def _leaves(self, rows: Tensor, children: Tensor) -> Tensor:
        """Leaf of each tree in which each row ends, (n, p) -> (n * j,)."""
        numbers, first = rows.reshape(-1), torch.arange(len(rows), device=rows.device, dtype=torch.int32)
        first = (first[:, None] * self.features).expand(-1, len(self.root)).reshape(-1)
        node = self.root.repeat(len(rows))
        while True:
            seen = numbers.index_select(0, first + self.feature.index_select(0, node))
            right = seen > self.threshold.index_select(0, node)
            following = children.index_select(0, 2 * node + right)
            if bool((following == node).all()):
                return node
            node = following


def _widen(values: Tensor) -> Tensor:
    return values.to(torch.float64) if values.dtype == torch.float32 else values


def _narrow(values: Tensor) -> Tensor:
    """The values in float32, which halves files, unless that changes one by more than 1e-7 of itself."""
    short = values.to(torch.float32)
    return short if torch.allclose(short.to(values), values, rtol=1e-7, atol=0.0) else values


def _round_down(threshold: Tensor) -> Tensor:
    """The largest float32 up to each threshold, so that float32 features take the same path."""
    largest = torch.finfo(torch.float32).max
    short = threshold.clamp(-largest, largest).to(torch.float32)
    below = torch.nextafter(short, torch.full_like(short, -largest))
    return torch.where(short > threshold, below, short)
