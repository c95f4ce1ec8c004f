"""Trees: what comes back from every function, and that arguments stay as they are."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer import tree
from latecomer.tree import Tree

TREE: Tree = {
    "a": torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
    "b": {"c": torch.tensor([5.0, 6.0]), "d": {"e": torch.tensor([7, 8])}},
}

names = st.text(st.characters(blacklist_characters="/", blacklist_categories=("Cs",)), min_size=1, max_size=4)
shapes = st.lists(st.integers(0, 3), max_size=3)
kinds = st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool])
leaves = st.builds(
    lambda shape, dtype: (torch.arange(1, 1 + int(torch.tensor(shape).prod())) % 7).reshape(shape).to(dtype),
    shapes,
    kinds,
)
trees = st.recursive(
    st.dictionaries(names, leaves, max_size=3),
    lambda inner: st.dictionaries(names, leaves | inner.filter(bool), max_size=3),
    max_leaves=6,
)


def equal(a: Tree, b: Tree) -> bool:
    if a.keys() != b.keys():
        return False
    return all(
        equal(value, b[key]) if isinstance(value, dict) else value.dtype == b[key].dtype and torch.equal(value, b[key])
        for key, value in a.items()
    )


@given(trees)
@settings(max_examples=60, deadline=None)
def test_flatten_and_back(values: Tree) -> None:
    flat = tree.flatten(values)
    assert all(isinstance(leaf, torch.Tensor) for leaf in flat.values())
    assert equal(tree.unflatten(flat), values)


def test_paths_are_joined_by_slashes() -> None:
    assert list(tree.flatten(TREE)) == ["a", "b/c", "b/d/e"]
    assert [leaf.numel() for leaf in tree.leaves(TREE)] == [4, 2, 2]


def test_map_leaves_its_arguments_alone() -> None:
    before = tree.map(torch.clone, TREE)
    doubled = tree.map(lambda x, y: x + y, TREE, TREE)
    assert doubled["b"]["d"]["e"].tolist() == [14, 16]
    assert equal(TREE, before)


def test_rows_stack_and_concatenate() -> None:
    rows = [tree.row(TREE, k) for k in range(2)]
    assert rows[1]["a"].tolist() == [3.0, 4.0]
    assert rows[1]["b"]["d"]["e"].item() == 8
    assert equal(tree.stack(rows), TREE)
    assert equal(tree.concatenate([tree.row(TREE, slice(0, 1)), tree.row(TREE, slice(1, 2))]), TREE)
    assert tree.concatenate([TREE]) is TREE
    assert tree.concatenate([{}, {}]) == tree.stack([{}, {}]) == {}


def test_arithmetic() -> None:
    a, b = {"x": torch.tensor([1.0, 2.0])}, {"x": torch.tensor([10.0, 20.0])}
    assert tree.add(a, b)["x"].tolist() == [11.0, 22.0]
    assert tree.sub(b, a)["x"].tolist() == [9.0, 18.0]
    assert tree.scale(a, 3)["x"].tolist() == [3.0, 6.0]
    assert tree.scale(a, torch.tensor(0.5))["x"].tolist() == [0.5, 1.0]
    assert tree.scale({}, 3) == {}


def test_where_chooses_rows() -> None:
    other = tree.map(torch.zeros_like, TREE)
    chosen = tree.where(torch.tensor([True, False]), TREE, other)
    assert chosen["a"].tolist() == [[1.0, 2.0], [0.0, 0.0]]
    assert chosen["b"]["d"]["e"].tolist() == [7, 0]
    assert equal(tree.where(torch.tensor(False), TREE, other), other)


def test_bytes_are_those_of_the_numbers() -> None:
    assert tree.nbytes(TREE) == 4 * 4 + 2 * 4 + 2 * 8
    assert tree.nbytes({"flag": torch.ones(3, dtype=torch.bool), "none": torch.empty(0)}) == 3
    assert tree.nbytes({}) == 0


def test_finite_of_the_whole_and_row_by_row() -> None:
    values = {
        "a": torch.tensor([[1.0, torch.nan], [1.0, 1.0], [1.0, 1.0]]),
        "b": torch.tensor([0.0, 0.0, torch.inf]),
        "c": torch.arange(3),
    }
    assert not tree.finite(values)
    assert tree.finite(values, rows=True).tolist() == [False, True, False]
    assert tree.finite(tree.row(values, 1))


@pytest.mark.parametrize("values", [{}, {"n": torch.arange(2)}, {"x": torch.zeros(2, 0)}])
def test_what_holds_no_number_is_finite(values: Tree) -> None:
    assert tree.finite(values)
    assert tree.finite(values, rows=True).all()


def test_ravel_and_back() -> None:
    floats = {"a": TREE["a"], "b": {"c": TREE["b"]["c"], "scalar": torch.tensor(9.0)}}
    vector = tree.ravel(floats)
    assert vector.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 9.0]
    assert equal(tree.unravel(vector, floats), floats)
    with pytest.raises(RuntimeError):
        tree.unravel(vector[:-1], floats)


def test_detach_cuts_the_gradient() -> None:
    weight = torch.ones(2, requires_grad=True)
    assert not tree.detach({"w": weight * 2})["w"].requires_grad


def test_pick_and_without_share_a_tree_between_them() -> None:
    whole = {"a": torch.ones(1), "b": {"c": torch.zeros(2)}}
    assert tree.pick(whole, ["b", "d"]) == {"b": whole["b"]}
    assert tree.without(whole, ["b", "d"]) == {"a": whole["a"]}
