"""The documents of a world, as the corpus of a run."""

import zlib
from collections.abc import Callable, Iterator, Sequence

from ...constraints import checked
from ...data.corpus import Corpus
from ...data.token_store import HELDOUT, TRAIN
from ...training.settings.bound import bound
from ..vocabularies import Factory, VocabularySource
from ..worlds.world import World, drawn_world
from .text_readers import LeftOut, TextPart
from .tokenising import SplitText, corpus_of, tokenised


@checked
def world_documents(
    run_dir: str, *, world: Callable[..., World], vocabulary: Factory, seed: int = 0
) -> Corpus:
    """The documents of a world, drawn from a seed: nothing to download.

        training.Run.corpus = @corpora.world_documents
        corpora.world_documents.world = @worlds.word_lists
        corpora.world_documents.vocabulary = @vocabularies.trained
        vocabularies.trained.model_type = "word"

    Args:
        world: draws it: one of `tasks.worlds`, or a function of yours.
        vocabulary: as for `text_files`; one of whole words suits most worlds.
        seed: of what is drawn, and of the order of reading.

    Raises ValueError for what `drawn_world` refuses, and for a run that was trained on other
    documents than the world now has.
    """
    drawn, name = drawn_world(world, seed), bound(world).function.__name__
    texts = {TRAIN: _split(drawn.documents), HELDOUT: _split(drawn.heldout)}
    made = vocabulary(run_dir, VocabularySource(lambda: iter(drawn.documents)))
    tokens = tokenised(run_dir, texts, made)
    if tokens.outdated:
        raise ValueError(
            f"{run_dir} was trained on other documents than {name} draws now, so that its "
            "questions are of another world: set the function and its settings back, or start a "
            "new run directory."
        )
    return corpus_of(f"Documents of {name}", tokens, made, held_out="drawn by the world", seed=seed)


def _split(documents: Sequence[str]) -> SplitText:
    def read(advance: Callable[[int], None]) -> Iterator[TextPart]:
        for document in documents:
            yield TextPart(document)
            advance(1)

    checksum = zlib.crc32("\0".join(documents).encode())
    return SplitText(read, len(documents), [checksum], LeftOut())
