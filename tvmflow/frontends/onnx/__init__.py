"""Import ONNX models."""
