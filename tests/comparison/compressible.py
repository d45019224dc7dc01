"""Texts and subjects for tests of compression."""

import types

import numpy as np

from pretrax.data.corpus import Corpus, Document
from tests.inference.runs import CODEC, IDS

TEXTS = ["Ada wrote it, or so they say. " * 2, "Zoë"]


class Training:
    """Returns an endless stream of one document."""

    def next_document(self):
        return Document(np.array(CODEC.encode("aab"), np.int32))


def corpus(texts=tuple(TEXTS), codec=CODEC):
    pieces = [Document(np.array(CODEC.encode(text), np.int32)) for text in texts]
    return Corpus(IDS, lambda shard, shards: Training(), lambda n: pieces, codec=codec)


def subject(one, of=None):
    return types.SimpleNamespace(trained=one, plan=types.SimpleNamespace(corpus=of or corpus()))
