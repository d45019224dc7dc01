"""SeqIO tasks and mixtures as corpora and evaluations: the only package that imports TensorFlow."""
