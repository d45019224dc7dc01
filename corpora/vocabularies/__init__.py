"""Vocabularies: factories for corpora, and the files in which run directories store vocabularies.

For example:

    corpora.text_files.vocabulary = @vocabularies.trained
    vocabularies.trained.size = 8192
"""

from .factories import (
    Factory,
    Vocabulary,
    VocabularySource,
    from_file,
    from_run,
    kept_vocabulary,
    letters,
    load_vocabulary,
    renew_checksums,
    save_vocabulary,
    trained,
    utf8_bytes,
)

__all__ = [
    "Factory",
    "VocabularySource",
    "Vocabulary",
    "from_file",
    "kept_vocabulary",
    "letters",
    "load_vocabulary",
    "from_run",
    "renew_checksums",
    "save_vocabulary",
    "trained",
    "utf8_bytes",
]
