"""What a model learns from: text, vocabularies and SeqIO tasks, as token ids for `pretrax train`.

The only package that may import TensorFlow. `corpora` does without it, so a run on text files
starts at once and needs neither TensorFlow nor SeqIO.
"""
