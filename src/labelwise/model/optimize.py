"""A model for inference: the same logits, faster."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self, TypeVar

import torch
from timm.layers import BatchNormAct2d, Conv2dSame
from timm.utils import reparameterize_model
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights
from torch.overrides import TorchFunctionMode

from labelwise import heads
from labelwise.backbones.timm_backbone import put_channels_last
from labelwise.core.errors import LabelwiseError
from labelwise.model.network import Network

# Exactly these: other convolutions may do something to their weights first (weight standardisation, for example).
_CONVOLUTIONS = (nn.Conv2d, Conv2dSame)
_NORMS = (nn.BatchNorm2d, BatchNormAct2d)
Module = TypeVar("Module", bound=nn.Module)
_QUESTIONS = {"__get__", "dim", "size"}  # what a tensor is asked without its values being read; __get__: attributes


@torch.no_grad()
def fold_batch_norms(network: Module, example: Tensor) -> Module:
    """A copy in evaluation mode whose batch norms are part of the convolutions before them, where there are any.

    Which convolution stands before which norm is watched while `example` runs through the network, so that no naming
    convention of any backbone family matters. A copy whose output is not the same is not used.
    """
    folded = copy.deepcopy(network).eval()
    before = folded(example)
    reparameterize_model(folded, inplace=True)  # the branches of RepVGG and its kin become one convolution each
    names = {module: name for name, module in folded.named_modules()}
    for norm, convolution in _pairs(folded, example).items():
        _fold(convolution, norm)
        rest = norm.act if isinstance(norm, BatchNormAct2d) else nn.Identity()
        if isinstance(norm, BatchNormAct2d) and not isinstance(norm.drop, nn.Identity):
            rest = nn.Sequential(norm.drop, norm.act)
        folded.set_submodule(names[norm], rest)
    same = torch.allclose(folded(example), before, rtol=1e-4, atol=1e-4 * float(before.abs().max()))
    return folded if same else copy.deepcopy(network).eval()


def _pairs(network: nn.Module, example: Tensor) -> dict[nn.Module, nn.Conv2d]:
    """norm -> the convolution whose output it alone reads; both run exactly once in a forward pass."""
    made_by: dict[int, nn.Module] = {}  # id of a convolution's output -> the convolution
    kept: list[Tensor] = []
    uses = _Uses()
    reads: dict[nn.Module, int] = {}  # norm -> id of its input, if a convolution made that
    runs: Counter[nn.Module] = Counter()

    def after_convolution(module: nn.Module, _: Any, output: Tensor) -> None:
        runs[module] += 1
        made_by[id(output)] = module
        uses.count[id(output)] = 0  # the id may have been that of a tensor which is gone
        kept.append(output)  # so that from now on it means this output

    def before_norm(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        runs[module] += 1
        if id(inputs[0]) in made_by:
            reads[module] = id(inputs[0])

    handles = [m.register_forward_hook(after_convolution) for m in network.modules() if type(m) in _CONVOLUTIONS]
    handles += [m.register_forward_pre_hook(before_norm) for m in network.modules() if type(m) in _NORMS]
    try:
        with uses:
            network(example)
    finally:
        for handle in handles:
            handle.remove()
    pairs = {norm: made_by[key] for norm, key in reads.items() if uses.count[key] == 1}
    return {
        norm: convolution
        for norm, convolution in pairs.items()
        if isinstance(convolution, nn.Conv2d) and runs[norm] == runs[convolution] == 1
    }


class _Uses(TorchFunctionMode):
    """Counts how many torch functions read each tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[int] = Counter()

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if getattr(function, "__name__", "") not in _QUESTIONS:
            self.count.update({id(tensor) for tensor in _tensors([*args, *(kwargs or {}).values()])})
        return function(*args, **(kwargs or {}))


def _tensors(values: list[Any] | tuple[Any, ...]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):  # of `torch.cat`, for example
            yield from _tensors(value)


def _fold(convolution: nn.Conv2d, norm: nn.Module) -> None:
    assert isinstance(norm, nn.BatchNorm2d)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    convolution.weight, convolution.bias = fuse_conv_bn_weights(
        convolution.weight,
        convolution.bias,
        norm.running_mean,
        norm.running_var,
        norm.eps,
        norm.weight,
        norm.bias,
    )


class OptimizedModel(Network):
    """Made by `LabelModel.optimize`: a frozen copy that predicts, explains and exports.

    Train, save or relabel the model that it was made from.
    """

    def __init__(self, model: Network, *, compile: bool = False) -> None:
        size = model.config.preprocessing.size
        device = next(model.parameters()).device
        example = torch.rand(2, 3, size, size, device=device)
        backbone = fold_batch_norms(model.backbone, example)
        with torch.no_grad():
            tokens = backbone(example).shape[2:].numel()
        super().__init__(model.config, backbone, heads.optimize(model.head, tokens))
        put_channels_last(self)
        self.requires_grad_(False).train(False)
        if compile:
            self.compile()

    def train(self, mode: bool = True) -> Self:
        if mode:
            raise LabelwiseError("an optimised model cannot be trained; train the model that it was made from")
        return super().train(False)
