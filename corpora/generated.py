"""The corpus of a synthetic task."""

import itertools
import re
import zlib
from collections.abc import Callable, Iterator, Sequence

from ..constraints import checked
from ..data.corpus import Corpus
from ..data.reading import RawDocument
from ..data.token_store import HELDOUT, TRAIN
from ..settings.partial import as_partial
from .synthetic_tasks.task import SyntheticTask, drawn_task
from .text_readers import LeftOut
from .tokenizing import SplitText, corpus_of, tokenized
from .vocabularies import Factory, VocabularySource
from .vocabularies.tokenization import Tokenizer, batches

_HIDDEN = re.compile(r"<extra_id_\d+>|\[MASK\]")  # a blank or a mask in a question


@checked
def synthetic_documents(
    run_dir: str, *, task: Callable[..., SyntheticTask], vocabulary: Factory, seed: int = 0
) -> Corpus:
    """The documents of a synthetic task, which are drawn from a seed. Nothing is downloaded.

        training.Run.corpus = @corpora.synthetic_documents
        corpora.synthetic_documents.task = @synthetic_tasks.word_lists
        corpora.synthetic_documents.vocabulary = @vocabularies.trained
        vocabularies.trained.model_type = "word"

    Args:
        task: function that draws the synthetic task, from `corpora.synthetic_tasks` or your own.
        vocabulary: a factory of `corpora.vocabularies`. A vocabulary of whole words suits most
            synthetic tasks.

    Raises ValueError for an invalid synthetic task (see `drawn_task`), and if the run was trained
    on other documents. The vocabulary must contain all words of the documents, questions and
    answers, and must encode the answers of a question differently.
    """
    drawn = drawn_task(task, seed)
    name = as_partial(task).function.__name__
    texts = {TRAIN: _split(drawn.documents), HELDOUT: _split(drawn.heldout)}
    vocab = vocabulary(
        run_dir, VocabularySource(lambda: iter(drawn.documents), version=texts[TRAIN].version)
    )
    tokens = tokenized(run_dir, texts, vocab)
    if tokens.outdated:
        raise ValueError(
            f"{run_dir} was trained on other documents than {name} draws now, so the questions "
            "would not match its training text: restore the function and its settings, or start a "
            "new run directory."
        )
    _check_known(drawn, name, vocab.tokenizer)
    held_out = "drawn by the synthetic task"
    return corpus_of(f"Documents of {name}", tokens, vocab, held_out=held_out, seed=seed)


def _check_known(task: SyntheticTask, name: str, tokenizer: Tokenizer) -> None:
    questions = [*task.questions, *(site.question for site in task.sites)]
    answers = list({answer for question in questions for answer in question.answers})
    encoded = dict(zip(answers, tokenizer.encode_batch(answers)))
    pairs = (text for pair in task.pairs for text in (*pair.right, *pair.wrong))
    question_parts = (
        part
        for question in questions
        for text in (question.text, question.after or "")
        for part in _HIDDEN.split(text)
    )
    documents = itertools.chain.from_iterable(
        zip(texts, tokenizer.encode_batch(texts))
        for texts in batches(itertools.chain(task.documents, task.heldout, pairs, question_parts))
    )
    for text, ids in itertools.chain(encoded.items(), documents):
        if tokenizer.unknown is not None and tokenizer.unknown in ids:
            raise ValueError(
                f"{name} returned the text {text!r:.80}, which contains a word that is not among "
                f"the {tokenizer.size} tokens of the vocabulary: raise vocabularies.trained.size, "
                "or write a document with each word of the questions."
            )
    for question in questions:
        if len({tuple(encoded[answer]) for answer in question.answers}) < len(question.answers):
            raise ValueError(
                f"{name} returned the question {question.text!r:.80}, and the vocabulary encodes "
                f"two of its answers {question.answers!r:.80} as the same tokens: change the "
                "answers or the vocabulary."
            )


def _split(documents: Sequence[str]) -> SplitText:
    def read(advance: Callable[[int], None], left_out: LeftOut) -> Iterator[RawDocument]:
        for document in documents:
            yield RawDocument(document)
            advance(1)

    checksum = zlib.crc32("\0".join(documents).encode())
    return SplitText(read, len(documents), [checksum])
