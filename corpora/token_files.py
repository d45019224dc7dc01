"""The corpus of token files that Megatron, nanoGPT or datatrove has written."""

import functools
from collections.abc import Sequence

from ..data.corpus import Corpus
from ..data.documents import (
    document_count,
    heldout_documents,
    split_heldout_of_files,
    text_size,
    training_documents,
)
from ..data.finding import find_files
from ..data.records import DocumentArrays, RecordStream, Shuffled, concatenated, first_tokens
from ..data.token_file_formats import open_token_file
from .vocabularies import Factory, VocabularySource


def token_files(
    run_dir: str,
    *,
    files: str | Sequence[str],
    vocabulary: Factory,
    heldout_files: str | Sequence[str] | None = None,
    heldout_every: int = 20,
    seed: int = 0,
) -> Corpus:
    """Token files of Megatron (.bin with .idx), nanoGPT (.bin) or datatrove (.ds).

        training.Run.corpus = @corpora.token_files
        corpora.token_files.files = "openwebtext/train.bin"
        corpora.token_files.heldout_files = "openwebtext/val.bin"
        corpora.token_files.vocabulary = @vocabularies.from_file
        vocabularies.from_file.path = "gpt2/tokenizer.json"

    Args:
        files: paths or glob patterns of the `.bin` or `.ds` files. Their tokens are not copied.
        vocabulary: a factory of `corpora.vocabularies` for the tokenizer that made the files. Its
            end-of-sequence id ends the documents in the files.
        heldout_files: paths or patterns of the held-out files, instead of `heldout_every`.
        heldout_every: one document in `heldout_every` is held out of each file. If a file has fewer
            documents, see `data.documents.split_heldout_of_files`.

    Raises ValueError for a file of another format or vocabulary, and FileNotFoundError for a
    pattern that matches no file.
    """
    vocab = vocabulary(run_dir, VocabularySource())

    def opened(patterns: str | Sequence[str]) -> list[DocumentArrays]:
        return [open_token_file(path, vocab.ids) for path in sorted(find_files(patterns))]

    training_files = opened(files)
    if heldout_files is None:
        train, heldout = split_heldout_of_files(training_files, every=heldout_every)
    else:
        train = training_files
        heldout = opened(heldout_files)

    @functools.cache
    def order() -> Shuffled:
        return Shuffled(concatenated([training_documents(documents) for documents in train]), seed)

    number = len(training_files)
    cut = ""
    if heldout_files is None and sum(map(document_count, training_files)) == 1:
        cut = f" (the last {100 / heldout_every:.3g}% of the tokens of the only document)"
    return Corpus(
        ids=vocab.ids,
        open_shard=lambda shard, num_shards: RecordStream(order(), shard, num_shards),
        heldout=lambda n: first_tokens([heldout_documents(documents) for documents in heldout], n),
        codec=vocab.codec,
        summary=(
            f"{number} token file{'' if number == 1 else 's'}: {_counts(train)} to train on; "
            f"{_counts(heldout)} held out{cut}"
        ),
    )


def _counts(files: Sequence[DocumentArrays]) -> str:
    tokens = sum(documents.tokens for documents in files)
    return text_size(sum(map(document_count, files)), tokens)
