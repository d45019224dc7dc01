"""The corpus of token files that other programs have written: Megatron, nanoGPT, datatrove."""

import functools
from collections.abc import Sequence

from ...data.corpus import Corpus
from ...data.documents import heldout_records, split_heldout, text_size, training_records
from ...data.finding import find_files
from ...data.records import DocumentArrays, Joined, RecordStream, Shuffled, first_tokens
from ...data.token_file_formats import open_token_file
from ..vocabularies import Factory, VocabularySource


def token_files(
    run_dir: str,
    *,
    files: str | Sequence[str],
    vocabulary: Factory,
    heldout_files: str | Sequence[str] | None = None,
    heldout_every: int = 20,
    seed: int = 0,
) -> Corpus:
    """Token files of Megatron (.bin with .idx), nanoGPT (.bin) or datatrove (.ds), as they are.

        training.Run.corpus = @corpora.token_files
        corpora.token_files.files = "openwebtext/train.bin"
        corpora.token_files.heldout_files = "openwebtext/val.bin"
        corpora.token_files.vocabulary = @vocabularies.from_file
        vocabularies.from_file.path = "gpt2/tokenizer.json"

    Args:
        files: of the `.bin` or `.ds` files, whose tokens stay where they are.
        vocabulary: a factory of `tasks.vocabularies`: of the tokenizer that made the files, whose
            end-of-sequence id ends documents in them.
        The others: as for `text_files`, by the documents of each file.

    Raises ValueError, FileNotFoundError.
    """
    made = vocabulary(run_dir, VocabularySource())

    def opened(patterns: str | Sequence[str]) -> list[DocumentArrays]:
        return [open_token_file(path, made.ids) for path in sorted(find_files(patterns))]

    if heldout_files is None:
        pairs = (split_heldout(each, every=heldout_every) for each in opened(files))
        train, heldout = map(list, zip(*pairs))
    else:
        train, heldout = opened(files), opened(heldout_files)
    counts = " to train on; ".join(
        text_size(sum(map(len, each)), sum(one.tokens for one in each)) for each in (train, heldout)
    )

    @functools.cache
    def order() -> Shuffled:
        return Shuffled(Joined([training_records(each) for each in train]), seed)

    return Corpus(
        ids=made.ids,
        train=lambda shard, num_shards: RecordStream(order(), shard, num_shards),
        heldout=lambda n: first_tokens([heldout_records(each) for each in heldout], n),
        codec=made.codec,
        summary=f"{len(train)} token files: {counts} held out",
    )
