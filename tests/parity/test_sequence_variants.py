"""Scores of variants agree with a loop over `EsmForMaskedLM`, on a small random ESM-2."""

import numpy as np
import pytest
import torch

from pretrax.inference import Batching, Trained
from pretrax.inference.answering.sequence_variants import SequenceVariant, score_variants
from pretrax.objectives import TokenIds
from tests.parity.models import ESM_MASK, VOCAB, import_model, perturbed

LETTERS = "ACDEFGHIKLMNPQRSTVWY"
FIRST = 20  # id of the first letter
CLS, EOS = 2, 3
WILD_TYPE = "MKTAYIAKQRQISFVKSHFSRQ"
MUTANTS = ["K2R", "M1A", "Q22W", "K2R:A4G", "I6L:F19Y:Q22C"]


@pytest.fixture(scope="module")
def esm(tmp_path_factory):
    """Returns (their model, ours)."""
    folder = tmp_path_factory.mktemp("esm")
    theirs = perturbed("esm")
    theirs.save_pretrained(folder)
    found, params = import_model(folder)
    ids = TokenIds(size=VOCAB, text=(FIRST, FIRST + 20), eos=EOS, cls=CLS, sep=EOS, mask=ESM_MASK)

    def decode(tokens):
        return "".join(LETTERS[token - FIRST] for token in tokens)

    return theirs, Trained(found.model, params, ids, encode, decode)


def encode(text):
    return [FIRST + LETTERS.index(letter) for letter in text]


def their_log_probs(model, tokens, masked):
    """Returns the log-probabilities [slots, ids] of `transformers` with these slots masked."""
    row = torch.tensor([CLS, *tokens, EOS])
    row[[1 + slot for slot in masked]] = ESM_MASK
    with torch.no_grad():
        return model(row[None]).logits[0, 1:-1].log_softmax(-1).double().numpy()


@pytest.mark.parametrize("scoring", ["masked_marginal", "wild_type_marginal"])
def test_variant_marginals_match_esm(esm, scoring):
    model, ours = esm
    tokens = encode(WILD_TYPE)
    expected = []
    for mutant in MUTANTS:
        changes = SequenceVariant.of(WILD_TYPE, mutant).substitutions
        masked = [slot for slot, _ in changes] if scoring == "masked_marginal" else []
        found = their_log_probs(model, tokens, masked)
        terms = [found[slot, encode(new)[0]] - found[slot, tokens[slot]] for slot, new in changes]
        expected.append(sum(terms))
    variants = [SequenceVariant.of(WILD_TYPE, mutant) for mutant in MUTANTS]
    scores = score_variants(ours, WILD_TYPE, variants, scoring, batching=Batching(2))
    assert np.ptp(expected) > 1
    np.testing.assert_allclose(scores, expected, atol=1e-4)


@pytest.mark.slow
def test_pseudo_likelihoods_with_insertions_and_deletions_match_esm(esm):
    model, ours = esm

    def expected(sequence):
        tokens = encode(sequence)
        slots = range(len(tokens))
        return sum(their_log_probs(model, tokens, [slot])[slot, tokens[slot]] for slot in slots)

    sequences = ["MRTAYIAKQRQISFVKSHFSRQ", "MKTAYIAKQRQIVKSHFSRQ", WILD_TYPE + "AC"]
    variants = [SequenceVariant.between(WILD_TYPE, sequence) for sequence in sequences]
    scores = score_variants(ours, WILD_TYPE, variants, "pseudo_likelihood")
    wanted = [expected(sequence) - expected(WILD_TYPE) for sequence in sequences]
    np.testing.assert_allclose(scores, wanted, atol=1e-3)
