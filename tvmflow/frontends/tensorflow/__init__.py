"""Import TensorFlow Lite models."""
