"""Engines: what runs a network. Images in, logits (or feature maps) out, on PyTorch, ONNX Runtime or OpenVINO."""

from labelwise.runtime.sessions import FAMILIES, Engine, EngineName, Family

__all__ = ["FAMILIES", "Engine", "EngineName", "Family"]
