"""What each objective of `gin_configs/objectives` is good for: words, and nothing else to import.

Names are those of the files:

    CATALOGUE["span_corruption"].paper -> "T5, arXiv:1910.10683"
"""

from typing import NamedTuple


class Entry(NamedTuple):
    architecture: str  # "encoder", "decoder", "encoder_decoder", "electra" or "two_towers"
    attention: str  # what a token sees; of an encoder-decoder, in one stack and in the other
    good_for: str
    paper: str
    # What is known of the lengths of hidden spans: "composition" (a number of tokens split into
    # spans, all ways equally likely) or "poisson" (with the mean that the builder is given).
    span_law: str | None = None
    run: str | None = None  # the small run, where it is not that of the architecture


ARCHITECTURES = {
    "encoder": "encoder",
    "decoder": "decoder",
    "encoder_decoder": "encoder-decoder",
    "electra": "two encoders",
    "two_towers": "encoder or two",
}

# The run for a laptop, gin_configs/runs/NAME.gin, that trains objectives of an architecture.
SMALL_RUNS = {
    "encoder": "encoder",
    "decoder": "decoder",
    "encoder_decoder": "quickstart",
    "electra": "electra",
    "two_towers": "two_towers",
}

_BOTH = "bidirectional"
_LEFT = "causal"
_ACROSS = "bidirectional, causal"
_PREFIX = "prefix"

_T5 = "T5, arXiv:1910.10683"
_UL2 = "UL2, arXiv:2205.05131"
_BART = "BART, arXiv:1910.13461"
_BERT = "BERT, arXiv:1810.04805"
_GPT_BERT = "GPT-BERT, arXiv:2410.24159"
_ALBERT = "ALBERT, arXiv:1909.11942"

CATALOGUE = {
    # what comes next
    "causal_lm": Entry(
        "decoder",
        _LEFT,
        "generating text; prompting",
        "GPT-3, arXiv:2005.14165",
    ),
    "prefix_lm": Entry("encoder_decoder", _ACROSS, "going on from a prompt", _T5),
    "multi_token_prediction": Entry(
        "decoder",
        _LEFT,
        "code; faster decoding",
        "MTP, arXiv:2404.19737",
    ),
    # what is hidden, written out
    "span_corruption": Entry(
        "encoder_decoder", _ACROSS, "fine-tuning to text-to-text tasks", _T5, "composition"
    ),
    "iid_denoising": Entry("encoder_decoder", _ACROSS, "comparing tokens with spans", _T5),
    "deshuffling": Entry("encoder_decoder", _ACROSS, "comparing: word order alone", _T5),
    "ul2": Entry(
        "encoder_decoder",
        _ACROSS,
        "understanding and generating",
        _UL2,
        "composition",
    ),
    "ul2_tutorial": Entry(
        "encoder_decoder", _ACROSS, "a lighter mixture than UL2", _UL2, "composition"
    ),
    "ul2r": Entry(
        "decoder",
        _PREFIX,
        "going on from a causal model",
        "U-PaLM, arXiv:2210.11399",
        "composition",
    ),
    "spans_and_prefix": Entry(
        "encoder_decoder", _ACROSS, "a mixture to copy and change", _T5, "composition"
    ),
    "blank_infilling": Entry(
        "decoder",
        _PREFIX,
        "as ul2, with a single stack",
        "GLM, arXiv:2103.10360",
    ),
    # the whole text from a noisy one
    "bart": Entry("encoder_decoder", _ACROSS, "summaries and other rewriting", _BART),
    "text_infilling": Entry(
        "encoder_decoder", _ACROSS, "telling how much is missing", _BART, "poisson"
    ),
    "token_masking": Entry("encoder_decoder", _ACROSS, "comparing: masks alone", _BART),
    "token_deletion": Entry("encoder_decoder", _ACROSS, "comparing: finding what is gone", _BART),
    "sentence_permutation": Entry(
        "encoder_decoder", _ACROSS, "comparing: order of sentences", _BART
    ),
    "document_rotation": Entry("encoder_decoder", _ACROSS, "comparing: where a text begins", _BART),
    # parts moved to the end
    "fill_in_the_middle": Entry(
        "decoder", _LEFT, "code completion at the cursor", "FIM, arXiv:2207.14255"
    ),
    "causal_masking": Entry("decoder", _LEFT, "infilling long spans", "CM3, arXiv:2201.07520"),
    # what is hidden, predicted in place
    "masked_lm": Entry(
        "encoder",
        _BOTH,
        "classifying, tagging, retrieval",
        _BERT,
    ),
    "whole_word_masking": Entry("encoder", _BOTH, "as masked_lm, by whole words", _BERT),
    "spanbert": Entry("encoder", _BOTH, "answers that are spans", "SpanBERT, arXiv:1907.10529"),
    "albert_ngrams": Entry(
        "encoder",
        _BOTH,
        "as masked_lm, by short phrases",
        _ALBERT,
    ),
    "masked_next_token": Entry(
        "decoder",
        _BOTH,
        "masked LM for a causal model",
        _GPT_BERT,
    ),
    "gpt_bert": Entry(
        "decoder",
        "bidirectional or causal",
        "one small model for both",
        _GPT_BERT,
    ),
    "antlm": Entry(
        "decoder",
        "bidirectional or causal",
        "learning from little text",
        "AntLM, arXiv:2412.03275",
    ),
    "replaced_token_detection": Entry(
        "electra",
        _BOTH,
        "learning from every token",
        "ELECTRA, arXiv:2003.10555",
    ),
    "masked_diffusion": Entry(
        "encoder",
        _BOTH,
        "generating in any order",
        "LLaDA, arXiv:2502.09992",
    ),
    # texts as a whole
    "bert": Entry("encoder", _BOTH, "BERT as published", _BERT, run="sentence_pairs"),
    "next_sentence_prediction": Entry(
        "encoder", _BOTH, "pairs of texts", _BERT, run="sentence_pairs_after_bert"
    ),
    "sentence_order_prediction": Entry(
        "encoder", _BOTH, "coherence of texts", _ALBERT, run="sentence_pairs_after_bert"
    ),
    "contrastive": Entry(
        "encoder",
        _BOTH,
        "embeddings without labels",
        "SimCSE, arXiv:2104.08821",
    ),
    "contrastive_pairs": Entry(
        "two_towers",
        _BOTH,
        "search: questions and answers",
        "CLIP, arXiv:2103.00020",
    ),
}


def run_of(name: str) -> str:
    """The run for a laptop that trains this objective.

    >>> run_of("bart"), run_of("sentence_order_prediction")
    ('quickstart', 'sentence_pairs_after_bert')
    """
    entry = CATALOGUE[name]
    return entry.run or SMALL_RUNS[entry.architecture]
