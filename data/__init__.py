"""What a row is made of: documents from corpora and token stores, packed; no TensorFlow."""
