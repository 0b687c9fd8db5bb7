"""Import Keras models."""
