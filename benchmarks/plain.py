"""Whole rounds of three methods as one would write them in plain PyTorch: what `bench.py` compares with.

One client after the other, modules and optimisers of torch, everything in memory beforehand. A round starts from the
state of a latecomer training and does the same work on the same clients; where every batch is a client's whole data,
the results are equal (tests/test_benchmarks.py). The random expansion P of FLowDUP is latecomer's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, one_hot

from common import Data, batches, fit, module, owned
from latecomer import tree
from latecomer.method import Method
from latecomer.methods.fedavg import FedAvg
from latecomer.methods.flowdup import FLowDUP
from latecomer.methods.pefll import PeFLL
from latecomer.nets.models import LeNet
from latecomer.train import Training
from latecomer.tree import Tree

Round = Callable[[], Tree]
"""Does one round with all clients and returns the weights on the server."""


def rounds(training: Training) -> Round:
    """The plain counterpart of a training's rounds, from the state it is in."""
    federation, device = training.federations[0], training.engine.device
    data = [owned(federation, client, device) for client in range(federation.members)]
    makers: dict[type[Method], Callable[..., Round]] = {FedAvg: fedavg, PeFLL: pefll, FLowDUP: flowdup}
    return makers[type(training.methods[0])](training.methods[0], training.states[0], data, device)


def fedavg(method: FedAvg, state: Tree, data: list[Data], device: torch.device) -> Round:
    model, common = module(method.task.model.build, device), state["params"]
    total = sum(len(y) for _, y in data)

    def once() -> Tree:
        nonlocal common
        change = tree.map(torch.zeros_like, common)
        for mine in data:
            own = fit(model, common, mine, method.local, passes(mine, method), method.batch)
            change = tree.add(change, tree.scale(own, len(mine[1]) / total))
        common = tree.add(common, change)
        return common

    return once


def pefll(method: PeFLL, state: Tree, data: list[Data], device: torch.device) -> Round:
    wide = (method.task.shape[0] + method.task.classes, *method.task.shape[1:])
    embed = module(lambda: LeNet(wide, method.hyper.descriptor), device)
    hyper = module(method.hyper.build, device)
    model = module(method.task.model.build, device)
    embed.load_state_dict(state["learned"]["embed"])
    hyper.load_state_dict(state["learned"]["hyper"])
    learned = [*embed.parameters(), *hyper.parameters()]
    adam = torch.optim.Adam(learned, method.server_lr)
    shapes = {name: weight.shape for name, weight in model.named_parameters()}
    standard: list[Tensor] = []

    def describe(x: Tensor, y: Tensor) -> Tensor:
        rows = next(batches(len(x), 1, method.batch, device))
        planes = one_hot(y[rows], method.task.classes)[:, :, None, None].expand(-1, -1, *x.shape[2:])
        described: Tensor = embed(torch.cat([x[rows], planes], 1)).mean(0)
        return described

    def generate(v: Tensor) -> Tree:
        parts = hyper((v - standard[0]) / standard[1]).split([shape.numel() for shape in shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}

    def once() -> Tree:
        adam.zero_grad()
        described = [describe(*mine) for mine in data]
        if not standard:
            v = torch.stack(described).detach()
            standard.extend([v.mean(1).mean(), v.std(1).mean()])
        for v, mine in zip(described, data, strict=True):
            params = generate(v)
            start = {name: weight.detach() for name, weight in params.items()}
            change = fit(model, start, mine, method.local, method.steps, method.batch)
            errors = [-change[name] / len(data) for name in params]
            torch.autograd.backward(list(params.values()), errors)  # into hypernetwork and embedding network
        with torch.no_grad():  # lines 17 and 18: the regulariser shrinks the weights before the step
            for net, strength in ((embed, method.lambda_v), (hyper, method.lambda_h)):
                for weight in net.parameters():
                    weight.mul_(1 - 2 * method.server_lr * strength)
        nn.utils.clip_grad_norm_(learned, method.clip)
        adam.step()
        return {"embed": weights(embed), "hyper": weights(hyper)}

    return once


def flowdup(method: FLowDUP, state: Tree, data: list[Data], device: torch.device) -> Round:
    psi = nn.ModuleDict({name: module(net.build, device) for name, net in (("h1", method.h1), ("h2", method.h2))})
    psi.register_parameter("r", nn.Parameter(state["psi"]["r"].clone()))
    psi.load_state_dict({name.replace("/", "."): leaf for name, leaf in tree.flatten(state["psi"]).items()})
    model, space, local = module(method.task.model.build, device), method.space.on(device), method.local
    common = {name: nn.Parameter(weight.detach().clone()) for name, weight in psi.named_parameters()}
    adam = torch.optim.Adam(common.values(), method.server_lr, (0.9, method.server_beta))

    def objective(x: Tensor, y: Tensor) -> Tensor:
        cut = (len(x) + 1) // 2
        v = psi["h2"](psi["h1"](x[:cut]).mean(0))
        loss = cross_entropy(functional_call(model, space(v), x[cut:]), y[cut:])
        return loss + method.lambda_reg * (v - psi.r).square().sum()

    def train(x: Tensor, y: Tensor) -> None:
        optimiser = torch.optim.SGD(psi.parameters(), local.lr, local.momentum, weight_decay=local.weight_decay)
        for rows in batches(len(x), passes((x, y), method), method.batch, device):
            optimiser.zero_grad()
            objective(x[rows], y[rows]).backward()
            nn.utils.clip_grad_norm_(psi.parameters(), local.clip)
            optimiser.step()

    def once() -> Tree:
        slope = {name: torch.zeros_like(weight) for name, weight in common.items()}
        for mine in data:
            psi.load_state_dict(common)
            train(*mine)
            for name, weight in psi.named_parameters():
                slope[name] -= (weight.detach() - common[name].detach()) / len(data)
        for name, weight in common.items():
            weight.grad = slope[name]
        adam.step()
        return nested(common)

    return once


def passes(data: Data, method: Any) -> int:
    """How many batches the local passes over a client's data are."""
    steps: int = method.epochs * -(-len(data[1]) // method.batch)
    return steps


def weights(net: nn.Module) -> Tree:
    return {name: weight.detach().clone() for name, weight in net.named_parameters()}


def nested(named: Mapping[str, Tensor]) -> Tree:
    """psi as latecomer keeps it: a branch a network, and r."""
    return tree.unflatten({name.replace(".", "/", 1): weight.detach().clone() for name, weight in named.items()})
