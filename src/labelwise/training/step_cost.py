"""What one training step costs, counted on torch's meta device: nothing is computed and no memory is taken."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True)
class StepCost:
    """Of one forward and backward pass.

    Attributes:
        flops: Floating point operations, two per multiply-add; what is computed twice counts twice.
        activations: Bytes: the most that was held at one moment, without weights and their gradients.
    """

    flops: int
    activations: int


def count_step(module: nn.Module, make_inputs: Callable[[], dict[str, Tensor]], dtype: torch.dtype | None) -> StepCost:
    """Count a training step of a module on the meta device.

    The loss is left out: it holds a few values per image and label, and some losses cannot be counted without values.

    Args:
        module: On the meta device, in training mode.
        make_inputs: Makes the module's keyword arguments.
        dtype: Of autocast; None computes in float32.
    """
    weights = [parameter for parameter in module.parameters() if parameter.requires_grad]
    hooks = [weight.register_post_accumulate_grad_hook(_drop_gradient) for weight in weights]
    flops = FlopCounterMode(display=False, custom_mapping={torch.ops.aten.convolution_backward: _convolution_backward})
    memory = LiveBytes()
    for counter in (memory, flops):  # in turn: torch's keeps what checkpointed blocks compute
        with counter, CudaAutocast(dtype).in_modules():
            with torch.device("meta"):
                logits = module(**make_inputs())
            logits.float().sum().backward()
            del logits
    for hook in hooks:
        hook.remove()
    return StepCost(flops.get_total_flops(), memory.peak)


def _drop_gradient(weight: Tensor) -> None:
    weight.grad = None


def _convolution_backward(grad: Any, x: Any, weight: Any, *options: Any, **rest: Any) -> int:
    """From shapes. Each gradient, of the input and of the weight, costs as much as the forward pass; torch's own count
    leaves out that channels are in groups."""
    batch, _, *sides = grad
    wanted = sum(options[-1][:2])
    return int(2 * batch * math.prod(sides) * math.prod(weight) * wanted)


class LiveBytes(TorchDispatchMode):
    """Bytes of all tensors that operations have made and that are still there, now (`live`) and at most (`peak`)."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.device.type != "cpu":
                self._add(tensor.untyped_storage())  # views share one
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        if id(storage) in self._known:
            return
        self._known.add(id(storage))
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._remove, id(storage), storage.nbytes())

    def _remove(self, known: int, size: int) -> None:
        self._known.discard(known)
        self.live -= size


class CudaAutocast(TorchFunctionMode):
    """CUDA's autocast and fused attention for tensors on the meta device, where torch's own do nothing.

    Which functions run in half and which in full precision is in PyTorch's documentation of `torch.amp`.
    """

    HALF: ClassVar = {
        *(F.conv1d, F.conv2d, F.conv3d, F.conv_transpose2d, F.linear, F.scaled_dot_product_attention, torch.einsum),
        *(torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, torch.bmm, torch.baddbmm, torch.addmm),
    }
    FULL: ClassVar = {
        *(F.layer_norm, F.group_norm, F.softmax, F.log_softmax, F.softplus, F.normalize, F.cosine_similarity),
        *(torch.softmax, Tensor.softmax, torch.exp, Tensor.exp, torch.log, Tensor.log, torch.rsqrt, Tensor.rsqrt),
        *(torch.pow, Tensor.pow, Tensor.__pow__, torch.sum, Tensor.sum, torch.cumsum, Tensor.cumsum, Tensor.norm),
    }

    def __init__(self, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.dtype = dtype
        self.depth = 0  # of the modules that are running

    @contextmanager
    def in_modules(self) -> Iterator[None]:
        """On while a module runs: in a forward pass, and when a checkpointed block runs again in the backward pass, for
        which a plain `with` is of no use, as torch leaves all modes before it starts."""

        def enter(*_: Any) -> None:
            if self.depth == 0:
                self.__enter__()  # type: ignore[no-untyped-call]
            self.depth += 1

        def leave(*_: Any) -> None:
            self.depth -= 1
            if self.depth == 0:
                self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

        hooks = register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.dtype is not None and function in self.HALF | self.FULL:
            dtype = self.dtype if function in self.HALF else torch.float32
            args, kwargs = tree_map_only(Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, (args, kwargs))
        if function is F.scaled_dot_product_attention:
            return fused_attention(*args, **kwargs)
        return function(*args, **kwargs)


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Tensor:
    """The attention that GPUs run: it never holds the weights [.., queries, tokens], which meta tensors would."""
    fused = torch.ops.aten._scaled_dot_product_efficient_attention
    out: Tensor = fused(query, key, value, attn_mask, True, dropout_p, is_causal)[0]
    return out
