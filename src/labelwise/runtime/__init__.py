"""Inference without PyTorch: the tagger and its predictions, exported models, ONNX Runtime and OpenVINO sessions."""
