"""Muon for matrices, Adam for the rest: half as many steps to the same loss as Adam alone here.

Muon is by Keller Jordan (https://kellerjordan.github.io/posts/muon/): the momentum of a matrix is
replaced by the nearest matrix whose singular values are about 1. A convolution's weight is taken as
the matrix of its outputs. The scale that gives its updates Adam's size, so that both take one
learning rate, is that of "Muon is Scalable for LLM Training" (arXiv 2502.16982). torch.optim.Muon
takes matrices of two dimensions alone, one after the other; half of these are convolutions.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

_POLYNOMIAL = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_ADAM_SIZE = 0.2
"""Root mean square of Adam's usual update."""

_KEPT_FROM_MUON = ("embed_tokens", "patch_embedding", "relative_attention_bias", "proj_out")
"""Parts of the names of what has two dimensions and is no map from features to features."""


class MuonAdam(torch.optim.Optimizer):
    """Both at one learning rate, with decoupled weight decay on matrices.

    Args:
        matrices: for Muon, two dimensions or more.
        others: for Adam.
        decay: of matrices.
        momentum: of Muon, Nesterov's.
        betas: of Adam.
    """

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        others: Iterable[nn.Parameter],
        decay: float = 0.01,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.98),
    ) -> None:
        groups = [
            {"params": list(matrices), "muon": True},
            {"params": list(others), "muon": False},
        ]
        super().__init__([g for g in groups if g["params"]], {"lr": 0.0})
        self._decay = decay
        self._momentum = momentum
        self._betas = betas

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Takes a step; what has no gradient stays."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if group["muon"]:
                self._muon(parameters, group["lr"])
            elif parameters:
                self._adam(parameters, group["lr"])

    def _muon(self, parameters: list[nn.Parameter], rate: float) -> None:
        by_shape: dict[tuple[int, ...], list[nn.Parameter]] = {}
        for parameter in parameters:
            by_shape.setdefault(tuple(parameter.flatten(1).shape), []).append(parameter)
        for shape, same in by_shape.items():
            moments = [self._moment(p, "momentum") for p in same]
            gradients = [p.grad for p in same if p.grad is not None]
            torch._foreach_lerp_(moments, gradients, 1 - self._momentum)
            ahead = torch._foreach_lerp(gradients, moments, self._momentum)
            stacked = torch.stack([each.flatten(1) for each in ahead])
            updates = orthogonal(stacked) * (_ADAM_SIZE * math.sqrt(max(shape)))
            for parameter, update in zip(same, updates, strict=True):
                parameter.mul_(1 - rate * self._decay)
                parameter.sub_(rate * update.view_as(parameter))

    def _adam(self, parameters: list[nn.Parameter], rate: float) -> None:
        first = [self._moment(p, "first") for p in parameters]
        second = [self._moment(p, "second") for p in parameters]
        gradients = [p.grad for p in parameters if p.grad is not None]
        torch._foreach_lerp_(first, gradients, 1 - self._betas[0])
        torch._foreach_mul_(second, self._betas[1])
        torch._foreach_addcmul_(second, gradients, gradients, 1 - self._betas[1])
        roots = torch._foreach_sqrt(second)
        taken = []
        for parameter in parameters:
            count = self.state[parameter].setdefault("step", torch.zeros(()))
            count += 1
            taken.append(float(count))
        unbiased = [[1 - beta**steps for steps in taken] for beta in self._betas]
        torch._foreach_div_(roots, [math.sqrt(each) for each in unbiased[1]])
        torch._foreach_add_(roots, 1e-8)
        weights: list[Tensor] = [*parameters]
        torch._foreach_addcdiv_(weights, first, roots, [-rate / each for each in unbiased[0]])

    def _moment(self, parameter: nn.Parameter, name: str) -> Tensor:
        state = self.state[parameter]
        if name not in state:
            state[name] = torch.zeros_like(parameter)
        moment: Tensor = state[name]
        return moment


def optimizer_for(network: nn.Module) -> MuonAdam:
    """The optimizer of a network's parameters."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in network.named_parameters():
        is_map = parameter.squeeze().ndim > 1 and name.endswith("weight")
        kept = any(part in name for part in _KEPT_FROM_MUON)
        (matrices if is_map and not kept else others).append(parameter)
    return MuonAdam(matrices, others)


def orthogonal(matrices: Tensor) -> Tensor:
    """Matrices ``[N, rows, columns]`` with singular values near 1 and the same singular vectors."""
    a, b, c = _POLYNOMIAL
    wide = matrices.shape[1] <= matrices.shape[2]
    x = matrices if wide else matrices.mT
    # bf16 is enough, and on a GPU many times as fast.
    x = x.bfloat16() if x.is_cuda else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = (x if wide else x.mT).to(matrices.dtype)
    return result
