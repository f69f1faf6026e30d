"""An ONNX file as an engine. Needs neither PyTorch nor the package `onnx`."""

from __future__ import annotations

from pathlib import Path

from labelwise.engines.base import Family, Floats, thread_count
from labelwise.errors import LabelwiseError, missing_extra


class OnnxEngine:
    family: Family = "onnxruntime"

    def __init__(self, path: Path) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise missing_extra("onnxruntime", "onnx") from None
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors alone
        # A number of its own choice would also tie each thread to a core, and idle threads would spin: both take the
        # cores from the threads that decode the next pictures.
        options.intra_op_num_threads = thread_count()
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            (inputs,), (output,) = self._session.get_inputs(), self._session.get_outputs()
        except Exception as error:  # the runtime has a dozen classes of errors, and none above them
            reason = " ".join(str(error).split())[:200]
            raise LabelwiseError(
                f"{str(path)!r} is not a network that can be run ({reason}); export it again"
            ) from None
        self._input = inputs.name
        self.output_shape: list[int | str | None] = output.shape  # names and None where it depends on the input
        self.metadata: dict[str, str] = self._session.get_modelmeta().custom_metadata_map

    def __call__(self, images: Floats) -> Floats:
        (out,) = self._session.run(None, {self._input: images})
        result: Floats = out
        return result
