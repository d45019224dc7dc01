"""Data for training: documents, token stores and packing into rows; TensorFlow is not needed."""
