"""Tapes: what was recorded is played to the last bit, and what cannot be played is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, hessian, vmap

import toys
from latecomer import methods, tree
from latecomer.engines.capture import trace
from latecomer.engines.capture.capture import EAGER_CALLS, KEPT
from latecomer.engines.capture.tapes import TRIES, Tapes
from latecomer.engines.vector import Vector
from latecomer.train import Plan, Training

CALLS = EAGER_CALLS + 2  # as it is, recorded, and compared with what was recorded


def some(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def played(function: Callable[..., Any], *inputs: Callable[[int], Any]) -> int:
    """Compare five calls with the function itself; how often it was called by the tapes."""
    calls = 0

    def counted(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        return function(*args)

    play = Tapes()
    for seed in range(5):
        found = play(counted, "it")(*(make(seed) for make in inputs))
        expected = function(*(make(seed) for make in inputs))
        for a, b in zip(torch.utils._pytree.tree_leaves(found), torch.utils._pytree.tree_leaves(expected), strict=True):
            assert torch.equal(a, b) if isinstance(a, Tensor) else a == b
    return calls


def test_mapped_gradients_are_played_to_the_last_bit() -> None:
    scale = torch.tensor(3.0)  # of nobody's, and always the same

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        hidden = F.relu(F.max_pool2d(F.conv2d(x, weights["filters"], padding=2), 2)).flatten(1)
        first, second = (hidden @ weights["out"]).split([2, 1], 1)
        return (first.log_softmax(-1) * scale).sum() + second.square().mean()

    def weights(seed: int) -> dict[str, Tensor]:
        return {"filters": some(seed, 4, 3, 1, 5, 5), "out": some(seed, 4, 3 * 16, 3)}

    step = vmap(grad(loss))
    assert played(step, weights, lambda seed: some(seed + 9, 4, 2, 1, 8, 8)) == CALLS


def test_what_is_no_tensor_is_returned_as_it_was() -> None:
    assert played(lambda x: {"sum": x.sum(0), "rows": len(x)}, lambda seed: some(seed, 3, 2)) == CALLS


def test_a_tensor_may_be_passed_twice_and_then_not() -> None:
    play, a, b = Tapes(), some(1, 3), some(2, 3)
    for first, second in ((a, a), (a, a), (a, a), (a, b), (b, a)):
        assert torch.equal(play(torch.sub, "difference")(first, second), first - second)


def test_other_strides_are_other_tapes() -> None:
    play, function = Tapes(), lambda x: x.view(x.shape).flatten() * 2
    for x in (some(1, 4, 4), some(2, 4, 4), some(3, 4, 4).t(), some(4, 4, 4).t(), some(5, 4, 4), some(6, 4, 4).t()):
        assert torch.equal(play(function, "double")(x), function(x))
    assert len(play._kept) == 2


def test_own_memory_may_be_written() -> None:
    def function(x: Tensor) -> Tensor:
        out = torch.zeros(4, 2)
        out[1:3].add_(x)
        out.view(-1)[0] = 5.0
        return out

    assert played(function, lambda seed: some(seed, 2, 2)) == CALLS


def test_own_tensors_may_change_their_shape() -> None:
    def function(x: Tensor) -> Tensor:
        doubled = x * 2
        doubled.squeeze_(1)
        return doubled @ torch.ones(3)

    assert played(function, lambda seed: some(seed, 2, 1, 3)) == CALLS


def test_memory_of_others_is_written_by_calls_alone() -> None:
    def function(x: Tensor) -> Tensor:
        start = torch.tensor([1.0, 2.0])  # a constant, as far as operations tell
        return start.add_(x)

    assert played(function, lambda seed: some(seed, 2)) > CALLS


def test_what_is_returned_may_be_written() -> None:
    play, function = Tapes(), lambda x: {"fixed": torch.tensor([1.0]), "x": x + 1}
    for seed in range(6):
        found = play(function, "it")(some(seed, 2))
        assert found["fixed"] == 1.0
        found["fixed"].mul_(2)


def test_parts_of_one_array_share_a_tape() -> None:
    play, whole = Tapes(), some(0, 12, 3)
    function = vmap(grad(lambda x: (x.view(3) * x).square().sum()))
    for first in range(0, 12, 2):
        assert torch.equal(play(function, "it")(whole[first : first + 2]), function(whole[first : first + 2]))
    assert len(play._kept) == 1


def turned(x: Tensor) -> Tensor:
    """Changes the shape of one of two names for the same numbers."""
    doubled = x * 2
    other = doubled.detach()
    other.t_()
    return doubled @ torch.ones(3, 1) + other.sum()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * float(x[0, 0]),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x * x.tolist()[0][0],
        lambda x: x * torch.tensor([float(number) for number in x.numpy()[0]]),
        lambda x: x.as_strided((2,), (1,), 1),
        turned,
    ],
)
def test_what_depends_on_numbers_is_called(function: Callable[[Tensor], Tensor]) -> None:
    assert played(function, lambda seed: some(seed, 2, 3)) > CALLS


def test_what_is_decided_by_a_number_is_played_while_it_is_decided_so() -> None:
    calls: list[int] = []

    def function(x: Tensor) -> Tensor:
        calls.append(0)
        return x * 2 if x.sum() > 0 else (x - 1).square()

    play = Tapes()
    for value in (1, 1, 1, 1, -1, 1, 1, -1, 1):
        assert torch.equal(play(function, "it")(torch.full((3,), value)), function(torch.full((3,), value)))
    assert len(calls) == 9 + CALLS + 2, "two calls for the two decisions that were made otherwise"
    calls.clear()
    for value in (-1, -1, -1, -1, -1, -1, 1):
        assert torch.equal(play(function, "it")(torch.full((3,), value)), function(torch.full((3,), value)))
    assert len(calls) == 7 + 4, "called, recorded anew, compared; and called for the last, which is otherwise again"


def test_what_is_decided_otherwise_again_and_again_is_recorded_no_more() -> None:
    play = Tapes()

    def function(x: Tensor) -> Tensor:
        return x * int(x[0])

    for value in range(20):
        assert torch.equal(play(function, "it")(torch.full((3,), value // 2)), torch.full((3,), value // 2) ** 2)
    (tape,) = play._kept.values()
    assert tape.records == TRIES  # type: ignore[attr-defined]
    assert tape.program is None  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "read",
    [
        Tensor.tolist,
        Tensor.numpy,
        np.asarray,
        lambda x: np.from_dlpack(x),
        lambda x: [int(x[0])],
        lambda x: x.nonzero(),
    ],
    ids=["tolist", "numpy", "asarray", "dlpack", "int", "nonzero"],
)
def test_numbers_that_the_host_looks_at_are_never_taken_for_granted(read: Any) -> None:
    """A decision that changes long after a tape was recorded and compared."""
    play = Tapes()

    def function(x: Tensor) -> Tensor:
        return x + 1 if len(read(x)) and float(read(x)[0]) < 6 else x - 1

    for value in range(1, 12):
        x = torch.full((2,), value)
        assert torch.equal(play(function, "it")(x), function(x)), value


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_forward_derivatives_are_called() -> None:
    """PyTorch makes tensors without numbers for them."""
    assert played(vmap(hessian(lambda row: row.pow(3).sum())), lambda seed: some(seed, 2, 3)) > CALLS


def test_conjugates_are_not_taken_for_the_numbers_themselves() -> None:
    def function(x: Tensor) -> Tensor:
        return (torch.fft.fft(x).conj() * torch.fft.fft(x + 1)).imag

    assert played(function, lambda seed: some(seed, 6)) == CALLS


def test_long_functions_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Tensor) -> Tensor:
        for _ in range(20):
            x = x + 1
        return x

    assert played(function, lambda seed: some(seed, 2)) == CALLS
    monkeypatch.setattr(trace, "LONGEST", 19)
    assert played(function, lambda seed: some(seed, 2)) > CALLS


def test_what_nobody_needs_is_left_out_and_the_rest_freed() -> None:
    inputs = [some(0, 3)]
    with trace.Trace(inputs) as recording:
        unused = inputs[0] * 7
        out = (inputs[0].view(3).detach() + 1) * 2
    play = recording.program([out])
    assert recording.calls is not None
    assert len(recording.calls) == 3
    assert torch.equal(play(unused)[0], (unused + 1) * 2)
    operations = [name for name in play.__code__.co_names if name.startswith("f")]
    assert len(operations) == 2, "views of the whole are names, and one product is not needed"


def operations(function: Callable[[Tensor], Any]) -> list[str]:
    """Which a tape of a function has, after what it does not need was left out."""
    inputs = [some(0, 2, 3)]
    with trace.Trace(inputs) as recording:
        out = function(inputs[0])
    play = recording.program(torch.utils._pytree.tree_leaves(out))
    return [str(play.__globals__[name]) for name in play.__code__.co_names if name[0] == "f"]


def test_what_is_done_twice_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Tensor) -> Tensor:
        return (x.exp() * torch.tensor(2.0)).sum(0) + (x.exp() * torch.tensor(2.0)).sum(1, keepdim=True) + x.exp() * 3

    assert len(operations(function)) == 1 + 1 + 2 + 1 + 2, "one power, one product by two, two sums, the other product"
    assert played(function, lambda seed: some(seed, 3, 3)) == CALLS
    monkeypatch.setattr(trace, "LARGE", 2 * 3 * 4 - 1)
    assert len(operations(function)) == 3 + 2 + 2 + 1 + 2, "what is large is not kept for a second use"
    assert played(function, lambda seed: some(seed, 3, 3)) == CALLS


def written(x: Tensor) -> list[Tensor]:
    first = x * 2
    first[0].add_(1)
    return [first, x * 2]


def written_later(x: Tensor) -> list[Tensor]:
    first, second = x * 2, x * 2
    second.view(-1)[2:4] = 7.0
    return [first, second]


def written_by_another_name(x: Tensor) -> list[Tensor]:
    first, second = (x.t() * 2).reshape(6), (x.t() * 2).reshape(6)
    first.unflatten(0, (3, 2))[1:].mul_(x[0, 0])
    return [first, second, first.sum(), second.sum()]


def between(x: Tensor) -> list[Tensor]:
    memory = torch.zeros(2, 3)
    before = memory.sum()
    memory.add_(x)
    return [before, memory.sum()]


@pytest.mark.parametrize("function", [written, written_later, written_by_another_name, between])
def test_what_is_written_is_not_taken_for_something_else(function: Callable[[Tensor], list[Tensor]]) -> None:
    assert played(function, lambda seed: some(seed, 2, 3)) == CALLS


def test_what_is_returned_twice_may_be_written() -> None:
    play = Tapes()
    for seed in range(5):
        x = some(seed, 3)
        first, second = play(lambda x: [x * 2, x * 2], "it")(x)
        first.zero_()
        assert torch.equal(second, x * 2)


def test_what_comes_of_one_computation_may_be_written_by_either_name() -> None:
    play = Tapes()
    for seed in range(5):
        x = some(seed, 2, 3)
        first, second = play(lambda x: [x * 2, (x * 2).view(-1)], "it")(x)
        first.zero_()
        assert torch.equal(second, (x * 2).view(-1))
    assert next(iter(play._kept.values())).program is not None  # type: ignore[attr-defined]


def test_views_of_what_stays_the_same_may_be_written() -> None:
    play = Tapes()
    for seed in range(6):
        fixed, _ = play(lambda x: [torch.tensor([[1.0, 2.0]])[0], x + 1], "it")(some(seed, 2))
        assert torch.equal(fixed, torch.tensor([1.0, 2.0]))
        if seed > EAGER_CALLS:
            fixed.mul_(2)
    assert next(iter(play._kept.values())).program is not None  # type: ignore[attr-defined]


def test_constants_with_other_strides_are_other_constants() -> None:
    ones, turned = torch.ones(2, 3), torch.ones(3, 2).t()
    assert played(lambda x: x + turned.sum() + ones.view(6)[0], lambda seed: some(seed, 2)) == CALLS


def test_constants_that_are_gone_are_not_taken_for_what_is_in_their_place() -> None:
    def function(x: Tensor) -> Tensor:
        for _ in range(50):
            x = x * torch.tensor([2.0])
            x = torch.zeros(4).add_(x)
        return x

    assert played(function, lambda seed: some(seed, 4)) == CALLS


def test_zeros_that_the_host_was_told_have_signs() -> None:
    play, function = Tapes(), lambda x: torch.ones(2) / float(x)
    for value in (0.0, 0.0, 0.0, 0.0, -0.0):
        assert torch.equal(play(function, "it")(torch.tensor(value)), function(torch.tensor(value)))


@pytest.mark.parametrize("function", [torch.linalg.cholesky, torch.linalg.inv])
def test_what_a_function_checks_is_checked_when_it_is_played(function: Callable[[Tensor], Tensor]) -> None:
    assert played(function, lambda seed: torch.eye(2) * (seed + 1)) == CALLS
    play = Tapes()
    for scale in (1, 2, 3, 4):
        play(function, "it")(torch.eye(2) * scale)
    with pytest.raises(torch.linalg.LinAlgError):
        play(function, "it")(torch.zeros(2, 2))


def test_sparse_matrices_are_called() -> None:
    sparse = torch.eye(3).to_sparse()
    assert played(lambda x: torch.sparse.mm(sparse, x), lambda seed: some(seed, 3, 2)) > CALLS
    assert played(lambda x: torch.sparse.mm(x.to_sparse(), x), lambda seed: some(seed, 3, 3)) > CALLS


def test_with_other_threads_it_is_another_tape() -> None:
    play, before = Tapes(), torch.get_num_threads()
    try:
        for threads in (1, 1, 1, 2, 2):
            torch.set_num_threads(threads)
            play(torch.sum, "sum")(some(0, 9))
        assert len(play._kept) == 2
    finally:
        torch.set_num_threads(before)


def test_trainings_on_one_engine_have_tapes_of_their_own() -> None:
    several, federations = [toys.method("pefll", server_lr=rate) for rate in (0.001, 0.1)], toys.federations(1)

    def trained(graphs: bool) -> list[tree.Tree]:
        engine = Vector(several[0], federations, graphs=graphs)
        trainings = [Training(method, federations, engine, Plan(rounds=4, cohort=3)) for method in several]
        for training in trainings:
            training.complete()
        return [training.states[0] for training in trainings]

    assert all(toys.same(a, b) for a, b in zip(trained(False), trained(True), strict=True))


def test_what_draws_from_the_global_generator_draws_once_a_call() -> None:
    def drawn(play: Callable[..., Callable[..., Tensor]]) -> list[Tensor]:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return [play(lambda x: x + torch.randn(3), "noise")(torch.zeros(3)) for _ in range(5)]

    plain = drawn(lambda function, _: function)
    assert all(torch.equal(a, b) for a, b in zip(plain, drawn(Tapes()), strict=True))


def test_only_so_many_are_kept() -> None:
    play = Tapes()
    for size in range(1, KEPT + 5):
        for _ in range(2):
            play(torch.sum, "sum")(some(0, size))
    assert len(play._kept) == KEPT
    assert len(play._seen) == KEPT, "what is forgotten would have to be seen again first"


@pytest.mark.parametrize("name", sorted(methods.names()))
def test_every_method_trains_with_tapes_as_without(name: str) -> None:
    federations = toys.federations(2)
    method = toys.method(name)
    found = []
    for with_tapes in (False, True):
        engine = Vector(method, federations, chunk=6, graphs=with_tapes)
        training = Training(method, federations, engine, Plan(rounds=5, cohort=4, evaluate_every=2))
        result = training.result(training.complete())
        found.append((training.states, result | {"seconds": 0}))
        assert (engine.capture is not None and len(engine.capture._kept) > 0) == with_tapes
        if engine.capture is not None and not any(each.blank for each in engine.kept):
            (whole,) = [tape for key, tape in engine.capture._kept.items() if key[0] == "a whole round"]
            steady = name != "clusteredfl"  # which parts clusters on the host
            assert (whole.checked, whole.program is not None) == (steady, steady)  # type: ignore[attr-defined]
    (plain, expected), (taped, result) = found
    assert result == expected
    assert all(toys.same(a, b) for a, b in zip(plain, taped, strict=True))
    assert all(bool(leaf.isfinite().all()) for state in taped for leaf in tree.leaves(state))
