"""TensorFlow's "same" padding as constants, which can be traced."""

from __future__ import annotations

import copy

from timm.layers import Conv2dSame
from torch import nn


def with_constant_padding(network: nn.Module) -> nn.Module:
    """A copy for pictures whose sides are multiples of the network's stride; it shares nothing with `network`.

    Convolutions of the tf_ models pad by what the side x of their input needs, (ceil(x / s) - 1) s + (k - 1) d + 1 - x.
    As an expression over an unknown x, carried through dozens of layers, that takes minutes to trace. Where s divides x
    it is the constant (k - 1) d + 1 - s.
    """
    copied = copy.deepcopy(network)
    for name, layer in list(copied.named_modules()):
        if type(layer) is Conv2dSame:
            copied.set_submodule(name, _padded(layer))
    return copied


def _padded(layer: Conv2dSame) -> nn.Module:
    sides = []  # left, right, top, bottom
    for kernel, dilation, stride in reversed(list(zip(layer.kernel_size, layer.dilation, layer.stride, strict=True))):
        total = max((kernel - 1) * dilation + 1 - stride, 0)
        sides += [total // 2, total - total // 2]  # an odd one goes to the right and to the bottom
    plain = nn.Conv2d(
        layer.in_channels,
        layer.out_channels,
        layer.kernel_size,
        layer.stride,
        dilation=layer.dilation,
        groups=layer.groups,
        bias=layer.bias is not None,
        device="meta",
    )
    plain.weight, plain.bias = layer.weight, layer.bias
    return nn.Sequential(nn.ZeroPad2d(tuple(sides)), plain)
