"""Training data without TensorFlow: documents, token stores, and packing into rows."""
