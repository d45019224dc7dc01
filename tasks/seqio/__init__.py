"""SeqIO: corpora of tasks and mixtures, vocabularies, and objectives as preprocessors."""
