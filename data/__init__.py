"""What a row is made of: documents from corpora, token arrays and token stores, packed; no TensorFlow."""
