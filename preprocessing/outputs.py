"""The outputs of a preparation: a token store, or documents. Each task writes a separate part.

For example:

    preprocessing.Preparation.output = @outputs.token_store
    outputs.token_store.vocabulary = @vocabularies.trained
"""

import functools
import hashlib
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from datatrove.pipeline.base import PipelineStep

from ..constraints import AtLeastTwo, checked
from ..corpora.vocabularies import VocabularySource, load_vocabulary
from ..corpora.vocabularies.factories import check_before_text
from ..corpora.vocabularies.tokenization import batches
from ..corpora.vocabularies.training_sample import MAX_SAMPLE_CHARACTERS, first_texts
from ..data.corpus import Document
from ..data.documents import UNCUT
from ..data.token_store_files import STORE, StoreWriter, is_sealed, seal
from ..settings.run_directory import SENTENCEPIECE_MODEL, TOKENIZER, VOCABULARY
from .blocks import WriteDocuments, documents_of

WRITTEN = (  # names of all files and folders that outputs write in OUT
    *("documents", "train", "heldout", "train.blocks", "heldout.blocks"),
    *(STORE, VOCABULARY, SENTENCEPIECE_MODEL, TOKENIZER),
)
# Runs that suit an alphabet. Overlapping k-mers are not masked, since their neighbors have all of
# their letters.
_RUNS = {"dna": "dna_masked", "rna": "dna_masked", "protein": "protein_masked"}
_RUNS_OF_OVERLAPPING = {"dna": "dna_causal", "rna": "dna_causal"}
_BATCH_CHARACTERS = 1 << 20  # number of characters that are tokenized together


class Output(NamedTuple):
    """A kind of output: how the documents of the last step are written."""

    name: str
    # (folder of the output, folder of the documents, number of tasks) -> None. Runs before the
    # tasks, for example to make a vocabulary.
    begin: Callable[[str, str, int], None] | None
    # (folder of the output, folder of the documents) -> block of each task
    block: Callable[[str, str], PipelineStep]
    # (folder of the output, number of tasks, description) -> None. Runs after the tasks.
    end: Callable[[str, int, Mapping[str, Any]], None]
    # (folder of the output, alphabet of the source) -> a command that uses the output
    next_command: Callable[[str, str], str]


@checked
def token_store(*, vocabulary: Callable, heldout_every: AtLeastTwo = 100) -> Output:
    """Writes a token store for `pretrax train --corpus=token_store`.

    The store has the tokens, their vocabulary and held-out documents.

    Args:
      vocabulary: factory of `corpora.vocabularies`, which gets a sample of the documents.
      heldout_every: one document in this number is held out. It is chosen by a hash of its text, so
        the choice does not depend on other documents. A task without such a document holds out the
        document with the smallest hash. A task with a single document holds it out only if it is
        the last task with documents. If there is only one document in total, its end is held out.

    Raises ValueError if the documents have no tokens, and the errors of a vocabulary that cannot be
    made from any text.
    """
    check_before_text(vocabulary)

    def begin(out: str, documents: str, tasks: int) -> None:
        texts = functools.partial(_texts_of_vocabulary, documents, tasks)
        vocabulary(out, VocabularySource(texts=texts))

    def end(out: str, tasks: int, about: Mapping[str, Any]) -> None:
        if is_sealed(out):
            return
        tokenizer = load_vocabulary(out).tokenizer
        files = [VOCABULARY, *([os.path.basename(tokenizer.path)] if tokenizer.path else [])]
        seal(out, {"train": tasks, "heldout": tasks}, about=about, vocabulary=files)

    def next_command(out: str, alphabet: str) -> str:
        about = load_vocabulary(os.path.expanduser(out)).about
        runs = _RUNS_OF_OVERLAPPING if about.get("overlapping") else _RUNS
        run = runs.get(about.get("alphabet", alphabet).lower(), "decoder")
        return f"pretrax train {run} --corpus=token_store --store={shlex.quote(out)}"

    return Output(
        "tokenize",
        begin,
        lambda out, documents: _Tokenize(out, documents, heldout_every),
        end,
        next_command,
    )


def documents() -> Output:
    """Writes the documents to OUT/documents as JSONL.zst, with text, id and metadata."""

    def next_command(out: str, alphabet: str) -> str:
        """Returns a command that tokenizes the documents without further steps."""
        command = (
            f"pretrax prepare --files={shlex.quote(f'{out}/documents/*')} "
            f"--out={shlex.quote(out.rstrip('/') + '_tokens')} "
            "--gin.preprocessing.Preparation.steps=[]"
        )
        if alphabet:
            command += (
                " --gin.outputs.token_store.vocabulary=@vocabularies.letters"
                f" --gin.vocabularies.letters.alphabet={shlex.quote(alphabet)}"
            )
        return command

    return Output(
        "write",
        None,
        lambda out, documents: WriteDocuments(os.path.join(out, "documents")),
        lambda out, tasks, about: None,
        next_command,
    )


def heldout_hash(text: str) -> int:
    """Returns the hash that decides whether a document is held out."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def _texts_of_vocabulary(documents: str, tasks: int) -> Iterator[str]:
    """Yields the texts to train a vocabulary on: an equal share of a bounded amount per task."""
    for rank in range(tasks):
        texts = (document.text for document in documents_of(documents, rank))
        yield from first_texts(texts, MAX_SAMPLE_CHARACTERS // tasks)


class _Tokenize(PipelineStep):
    """Writes the documents of a task as one part of each split of a store."""

    type = "Tokenizer"
    name = "token store"

    def __init__(self, out: str, documents: str, heldout_every: int):
        super().__init__()
        self.out = out
        self.documents = documents
        self.heldout_every = heldout_every

    def run(self, data, rank: int = 0, world_size: int = 1):
        tokenizer, ids, _ = load_vocabulary(self.out)
        hashes = [heldout_hash(document.text) for document in documents_of(self.documents, rank)]
        held_out = {value for value in hashes if value % self.heldout_every == 0}
        is_single = len(hashes) == 1
        is_last = is_single and not self._have_documents(range(rank + 1, world_size))
        is_only = is_last and not self._have_documents(range(rank))
        if not held_out and (is_last or not is_single):
            held_out = {min(hashes, default=0)}
        with (
            StoreWriter(self.out, "train", rank, ids) as train,
            StoreWriter(self.out, "heldout", rank, ids, longest=UNCUT) as heldout,
        ):
            texts = (document.text for document in data)
            for batch in batches(texts, characters=_BATCH_CHARACTERS):
                for text, tokens in zip(batch, tokenizer.encode_batch(batch)):
                    self.stat_update("total")
                    if not tokens.size:
                        self.stat_update("dropped", "dropped_empty")
                        continue
                    if is_only:
                        cut = tokens.size - -(-tokens.size // self.heldout_every)
                    else:
                        cut = 0 if heldout_hash(text) in held_out else tokens.size
                    for writer, part in ((train, tokens[:cut]), (heldout, tokens[cut:])):
                        writer.add(Document(part))  # which leaves out an empty document
                    self.stat_update("heldout", value=int(tokens.size - cut))
                    self.stat_update("forwarded")
                    self.stat_update("tokens", value=int(tokens.size))
                    unknown = int(np.count_nonzero(tokens == tokenizer.unknown))
                    self.stat_update("unknown", value=unknown)
        yield from ()

    def _have_documents(self, ranks: Iterable[int]) -> bool:
        return any(True for rank in ranks for _ in documents_of(self.documents, rank))
