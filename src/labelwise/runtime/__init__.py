"""Models that answer, without PyTorch: the tagger, its predictions, ONNX and OpenVINO sessions, exported models."""
