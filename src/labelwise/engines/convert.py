"""Convert a PyTorch module to a file that another engine opens: torch.export, ONNX, or OpenVINO by way of ONNX."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timm.layers import Conv2dSame
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from labelwise.core.errors import LabelwiseError, missing_extra
from labelwise.heads import Head, HeadConfig
from labelwise.model.network import Network, TorchEngine
from labelwise.runtime.exported import ATTENTION, GATES, IMAGES, KNOWN, OUT
from labelwise.runtime.sessions import Engine, Family, OnnxEngine, OpenVinoEngine, openvino, openvino_core

FILES: dict[Family, str] = {"torch": "model.pt2", "onnxruntime": "model.onnx", "openvino": "model.xml"}
KEY = "labelwise"  # of the metadata inside the file
SCOPES = "pkg.torch.onnx.name_scopes"  # the modules that a node comes from, in its metadata
STRIDE = 32  # sides of images are multiples of it, where the size is dynamic


class Explaining(nn.Module):
    """A network that also gives what led to its logits, as further outputs (`outputs_of`).

    Modules keep their names, by which INT8 knows the head.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.backbone, self.head, self.labels = network.backbone, HeadOutputs(network.head), network.labels
        self.takes_known = network.takes_known

    def forward(self, images: Tensor, known: Tensor | None = None) -> tuple[Tensor, ...]:
        outputs: tuple[Tensor, ...] = self.head(self.backbone(images), known)
        return outputs


class HeadOutputs(nn.Module):
    """A head's logits [B, N], attention [B, layers, K, H, W] and gates [B, layers, K, n_t + n_s], if it has them."""

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.head = head

    def forward(self, x: Tensor, known: Tensor | None = None) -> tuple[Tensor, ...]:
        details = self.head.details(x, **({} if known is None else {"known": known}))
        found = (details.logits, details.mean_attention, details.stacked_gates)
        return tuple(output for output in found if output is not None)


def outputs_of(config: HeadConfig) -> tuple[str, ...]:
    """The names of `HeadOutputs`."""
    return (OUT, *([ATTENTION] if config.has_attention else []), *([GATES] if config.has_experts else []))


def inputs_of(module: nn.Module) -> tuple[str, ...]:
    """The names of a network's inputs."""
    return (IMAGES, KNOWN) if getattr(module, "takes_known", False) else (IMAGES,)


def convert(
    module: nn.Module,
    family: Family,
    folder: Path,
    *,
    size: int,
    batch: int | None = None,
    metadata: str = "",
    outputs: Sequence[str] = (OUT,),
    half: bool = False,
) -> Path:
    """Write the file that `family` opens; gives its path. The module is in evaluation mode, on the CPU.

    Args:
        module: images [B, 3, size, size], and labels [B, N] if some may be known (`inputs_of`) -> the outputs.
        family: What the file is for.
        folder: Where to write it.
        size: Of the images, in pixels.
        batch: How many images there always are, of just this size; None for any number, and other sizes if possible.
        metadata: Text to store in the file.
        outputs: Names of the module's outputs.
        half: Store matrices as 16-bit floats; engines compute with 32 bits all the same.
    """
    path = folder / FILES[family]
    program = _traced(module, size, batch)
    if family == "torch":
        with _quiet():
            torch.export.save(program, path, extra_files={f"{KEY}.json": metadata})
    else:
        _write_onnx(program, folder / FILES["onnxruntime"], metadata, inputs_of(module), outputs)
    if half and family == "onnxruntime":
        store_half(path)
    if family == "openvino":
        model = openvino_core().read_model(folder / FILES["onnxruntime"])
        save_openvino(model, path, metadata, half=half)
        (folder / FILES["onnxruntime"]).unlink()
    return path


def open_file(path: Path, family: Family) -> Engine:
    """Open a file that `convert` wrote; OpenVINO also opens ONNX."""
    if family == "torch":
        return TorchEngine(torch.export.load(path).module())
    return OnnxEngine(path) if family == "onnxruntime" else OpenVinoEngine(path)


def save_openvino(model: Any, path: Path, metadata: str, *, half: bool = False) -> None:
    model.set_rt_info(metadata, KEY)
    openvino().save_model(model, path, compress_to_fp16=half)


def store_half(path: Path) -> None:
    """Replace the matrices in an ONNX file by 16-bit floats and casts, which ONNX Runtime undoes once, at loading.

    Vectors (biases) are small and stay exact, and so does a matrix with values that 16 bits cannot hold.
    """
    import onnx
    from onnx import numpy_helper

    model = onnx.load(path)
    casts, stored = [], []
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype == np.float32 and values.ndim > 1 and np.abs(values).max(initial=0) < np.finfo(np.float16).max:
            name = tensor.name
            tensor = numpy_helper.from_array(values.astype(np.float16), f"{name}_16")
            casts.append(onnx.helper.make_node("Cast", [tensor.name], [name], to=onnx.TensorProto.FLOAT))
        stored.append(tensor)
    nodes = [*casts, *model.graph.node]
    for field, content in ((model.graph.initializer, stored), (model.graph.node, nodes)):
        del field[:]
        field.extend(content)
    onnx.save(model, path)


def takes_other_sizes(module: nn.Module, size: int) -> bool:
    """Whether the converted network takes images whose sides are other multiples of 32.

    timm marks the families whose positions or windows are made for one size (ViT, Swin and their kin). Some of these
    can adapt them, but by Python code that depends on the size, which a converted network does not contain. A CNN's
    padding is constant at these sizes (see `with_constant_padding`).
    """
    fixed = any(getattr(part, "pretrained_cfg", {}).get("fixed_input_size") for part in module.modules())
    return not fixed and size % STRIDE == 0 and size > STRIDE


def _traced(module: nn.Module, size: int, batch: int | None) -> ExportedProgram:
    # The tracer treats a length of 1 as a constant and equal lengths as the same one: hence two images and, where the
    # size is dynamic, a rectangle that gives maps of several rows and columns.
    example = torch.zeros(batch or 2, 3, size, size)
    shapes: dict[int, Any] = {} if batch else {0: Dim.DYNAMIC}
    if not batch and takes_other_sizes(module, size):
        module, example = with_constant_padding(module), torch.zeros(2, 3, size + 2 * STRIDE, size + 3 * STRIDE)
        shapes |= {2: STRIDE * Dim("rows", min=2), 3: STRIDE * Dim("columns", min=2)}
    network: Any = module
    further = [torch.zeros(len(example), len(network.labels))] if KNOWN in inputs_of(module) else []
    more = [dict.fromkeys(shapes.keys() & {0}, Dim.DYNAMIC) for _ in further]
    with _quiet():
        try:
            return torch.export.export(module, (example, *further), dynamic_shapes=(shapes, *more), strict=False)
        except Exception as error:  # tracing fails with all kinds of errors
            reason = " ".join(str(error).split())[:300]
            raise LabelwiseError(f"this network cannot be exported ({type(error).__name__}: {reason})") from error


def _write_onnx(
    program: ExportedProgram, path: Path, metadata: str, inputs: Sequence[str], outputs: Sequence[str]
) -> None:
    try:
        import onnxscript  # noqa: F401
    except ImportError:
        raise missing_extra("onnxscript", "onnx") from None
    with _quiet():
        written = torch.onnx.export(
            program, dynamo=True, input_names=list(inputs), output_names=list(outputs), verbose=False
        )
    assert written is not None
    written.model.metadata_props[KEY] = metadata
    for node in written.model.graph.all_nodes():  # the exporter stores stack traces, with the paths of this machine
        for entry in [entry for entry in node.metadata_props if entry != SCOPES]:
            del node.metadata_props[entry]
    # Everything in one file: ONNX needs a second one only beyond 2 GB of weights.
    written.save(path, external_data=False)


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporters log their internals."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def with_constant_padding(network: nn.Module) -> nn.Module:
    """A deep copy for images whose sides are multiples of the network's stride.

    Convolutions of the tf_ models pad by an amount that depends on the side x of their input,
    (ceil(x / s) - 1) s + (k - 1) d + 1 - x. For a symbolic x, carried through dozens of layers, tracing takes minutes.
    Where s divides x, the amount is the constant (k - 1) d + 1 - s.
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
        sides += [total // 2, total - total // 2]  # the odd pixel goes right and down
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
