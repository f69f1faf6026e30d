"""A faster copy of a model for inference: folded batch norms, constant queries, channels last."""

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

# Exactly these: other convolutions may change their weights first (e.g. weight standardisation).
_CONVOLUTIONS = (nn.Conv2d, Conv2dSame)
_NORMS = (nn.BatchNorm2d, BatchNormAct2d)
Module = TypeVar("Module", bound=nn.Module)
_QUESTIONS = {"__get__", "dim", "size"}  # calls that do not read a tensor's values; __get__: attributes


@torch.no_grad()
def fold_batch_norms(network: Module, example: Tensor) -> Module:
    """A copy in evaluation mode whose batch norms are folded into the convolutions before them.

    Which convolution feeds which norm is observed while `example` runs through the network, so it works for any
    backbone family. If the outputs differ, an unfolded copy is returned.
    """
    folded = copy.deepcopy(network).eval()
    before = folded(example)
    reparameterize_model(folded, inplace=True)  # merges the branches of RepVGG and its kin
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
    """norm -> the convolution whose output only it reads; both run exactly once in a forward pass."""
    made_by: dict[int, nn.Module] = {}  # id of a convolution's output -> the convolution
    kept: list[Tensor] = []
    uses = _Uses()
    reads: dict[nn.Module, int] = {}  # norm -> id of its input, if a convolution made that
    runs: Counter[nn.Module] = Counter()

    def after_convolution(module: nn.Module, _: Any, output: Tensor) -> None:
        runs[module] += 1
        made_by[id(output)] = module
        uses.count[id(output)] = 0  # the id may have belonged to a tensor that is gone
        kept.append(output)  # keeps it alive, and so its id unique

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
    """A frozen copy of a model that predicts, explains and exports; `LabelModel.optimize` makes one.

    To train, save or relabel it, do that with the model that it was made from.
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
