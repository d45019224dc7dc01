"""SeqIO: corpora from tasks and mixtures, vocabularies, and objectives as preprocessors."""
