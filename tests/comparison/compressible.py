"""Texts and subjects to compress."""

import types

import numpy as np

from pretrax.data.corpus import Corpus, Piece
from tests.inference.runs import CODEC, IDS

TEXTS = ["Ada wrote it, or so they say. " * 2, "Zoë"]


class Training:
    """An endless stream of one document."""

    def next_document(self):
        return Piece(np.array(CODEC.encode("aab"), np.int32), True)


def corpus(texts=tuple(TEXTS), codec=CODEC):
    pieces = [Piece(np.array(CODEC.encode(text), np.int32), True) for text in texts]
    return Corpus(IDS, lambda shard, shards: Training(), lambda n: pieces, codec=codec)


def subject(one, of=None):
    return types.SimpleNamespace(trained=one, plan=types.SimpleNamespace(corpus=of or corpus()))
