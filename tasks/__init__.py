"""What a model learns from: text, vocabularies and SeqIO tasks, as token ids for `train.py`.

The only package that may import TensorFlow; `corpora.python_library` and `corpora.text_files` do
without it, so a run on text files starts at once and needs neither TensorFlow nor SeqIO.
"""
