"""Facts about each objective of `gin_configs/objectives`, as plain data.

An objective has the name of its gin file. `find` also accepts short names:

    CATALOG["span_corruption"].paper -> "T5, arXiv:1910.10683"
    find("t5") -> "span_corruption"
"""

import difflib
from typing import NamedTuple


class Entry(NamedTuple):
    architecture: str  # one of `ARCHITECTURES`
    good_for: str
    paper: str
    # Average number of slots with a loss in a row of 512 text tokens. Sentinels and end-of-sequence
    # tokens count.
    loss_slots: int
    # Distribution of the lengths of hidden spans, if known: "composition" (all ways to split the
    # hidden tokens into spans are equally likely) or "poisson" (with the builder's mean).
    span_law: str | None = None
    run: str | None = None  # small run, if it differs from the architecture's
    attends: str | None = None  # attention pattern, if it differs from the architecture's

    @property
    def attention(self) -> str:
        """Attention pattern; for an encoder-decoder, of the encoder and of the decoder."""
        return self.attends or _ATTENTION[self.architecture]


ARCHITECTURES = {
    "encoder": "encoder",
    "decoder": "decoder",
    "encoder_decoder": "encoder-decoder",
    "electra": "two encoders",
    "masked_autoencoder": "autoencoder",
    "two_towers": "encoder or two",
}

# Small run (gin_configs/runs/NAME.gin) that trains an architecture's objectives on a laptop.
SMALL_RUNS = {
    "encoder": "encoder",
    "decoder": "decoder",
    "encoder_decoder": "quickstart",
    "electra": "electra",
    "masked_autoencoder": "retromae",
    "two_towers": "two_towers",
}

_ATTENTION = {
    "encoder": "bidirectional",
    "decoder": "causal",
    "encoder_decoder": "bidirectional, causal",
    "electra": "bidirectional",
    "masked_autoencoder": "random keys",
    "two_towers": "bidirectional",
}

_T5 = "T5, arXiv:1910.10683"
_UL2 = "UL2, arXiv:2205.05131"
_BART = "BART, arXiv:1910.13461"
_BERT = "BERT, arXiv:1810.04805"
_GPT_BERT = "GPT-BERT, arXiv:2410.24159"
_ALBERT = "ALBERT, arXiv:1909.11942"

# Entries by family and name, in the order in which `pretrax show --list` prints them.
FAMILIES: dict[str, dict[str, Entry]] = {
    "language modeling": {
        "causal_lm": Entry("decoder", "generation; prompting", "GPT-3, arXiv:2005.14165", 512),
        "masked_input_next_token": Entry(
            "decoder", "finding facts in long contexts", "MEAP, arXiv:2502.07490", 512
        ),
        "masked_input_regularization": Entry(
            "decoder", "many epochs on little text", "MIR, arXiv:2606.06888", 1024
        ),
        "prefix_lm": Entry("encoder_decoder", "continuing a prompt", _T5, 257),
        "multi_token_prediction": Entry(
            "decoder", "code; faster decoding", "MTP, arXiv:2404.19737", 512
        ),
        "token_order_prediction": Entry(
            "decoder", "language modeling", "TOP, arXiv:2508.19228", 512
        ),
        "future_summary": Entry("decoder", "planning further ahead", "FSP, arXiv:2510.14751", 512),
        "next_latent": Entry(
            "decoder", "states that summarize text", "NextLat, arXiv:2511.05963", 512
        ),
        "number_token_loss": Entry("decoder", "arithmetic", "NTL, arXiv:2411.02083", 512),
        "llm_jepa": Entry(
            "decoder",
            "two views of the same thing",
            "LLM-JEPA, arXiv:2509.14252",
            259,
            run="llm_jepa",
        ),
    },
    "denoising, to be written out": {
        "span_corruption": Entry(
            "encoder_decoder", "fine-tuning to text-to-text tasks", _T5, 104, span_law="composition"
        ),
        "iid_denoising": Entry("encoder_decoder", "ablation: tokens, not spans", _T5, 144),
        "deshuffling": Entry("encoder_decoder", "ablation: word order only", _T5, 513),
        "ul2": Entry(
            "encoder_decoder", "understanding and generating", _UL2, 186, span_law="composition"
        ),
        "ul2_tutorial": Entry("encoder_decoder", "a lighter mixture than UL2", _UL2, 145),
        "ul2r": Entry(
            "decoder",
            "adapting a causal model",
            "U-PaLM, arXiv:2210.11399",
            146,
            attends="prefix",
            span_law="composition",
        ),
        "spans_and_prefix": Entry(
            "encoder_decoder",
            "the smallest mixture, to start from",
            _T5,
            142,
            span_law="composition",
        ),
        "blank_infilling": Entry(
            "decoder",
            "like ul2, with a single stack",
            "GLM, arXiv:2103.10360",
            102,
            attends="prefix",
        ),
        "mass": Entry("encoder_decoder", "translating, rewriting", "MASS, arXiv:1905.02450", 256),
        "gap_sentences": Entry("encoder_decoder", "summarizing", "PEGASUS, arXiv:1912.08777", 296),
    },
    "denoising of the whole text": {
        "bart": Entry("encoder_decoder", "summarization and other rewriting", _BART, 513),
        "text_infilling": Entry(
            "encoder_decoder", "inferring how much is missing", _BART, 513, span_law="poisson"
        ),
        "token_masking": Entry("encoder_decoder", "ablation: masks only", _BART, 513),
        "token_deletion": Entry("encoder_decoder", "ablation: finding deleted tokens", _BART, 513),
        "sentence_permutation": Entry(
            "encoder_decoder", "ablation: order of sentences", _BART, 513
        ),
        "document_rotation": Entry("encoder_decoder", "ablation: where a text begins", _BART, 513),
    },
    "infilling": {
        "fill_in_the_middle": Entry(
            "decoder", "code completion at the cursor", "FIM, arXiv:2207.14255", 514
        ),
        "causal_masking": Entry("decoder", "infilling long spans", "CM3, arXiv:2201.07520", 513),
    },
    "masked language modeling": {
        "masked_lm": Entry("encoder", "classifying, tagging, retrieval", _BERT, 77),
        "adaptive_masked_lm": Entry(
            "encoder", "learning from little text", "AMLM, arXiv:2510.20475", 77
        ),
        "whole_word_masking": Entry("encoder", "like masked_lm, by whole words", _BERT, 77),
        "spanbert": Entry(
            "encoder", "extractive question answering", "SpanBERT, arXiv:1907.10529", 77
        ),
        "albert_ngrams": Entry("encoder", "like masked_lm, by short phrases", _ALBERT, 77),
        "masked_next_token": Entry(
            "decoder", "masked LM for a causal model", _GPT_BERT, 77, attends="bidirectional"
        ),
        "gpt_bert": Entry(
            "decoder",
            "one model for causal and masked LM",
            _GPT_BERT,
            104,
            attends="bidirectional or causal",
        ),
        "antlm": Entry(
            "decoder",
            "learning from little text",
            "AntLM, arXiv:2412.03275",
            294,
            attends="bidirectional or causal",
        ),
        "masked_permuted_lm": Entry(
            "encoder",
            "like masked_lm, in a random order",
            "MPNet, arXiv:2004.09297",
            77,
            attends="permuted",
        ),
        "permutation_lm": Entry(
            "decoder",
            "representations; any order",
            "XLNet, arXiv:1906.08237",
            85,
            attends="permuted",
        ),
        "replaced_token_detection": Entry(
            "electra", "learning from every token", "ELECTRA, arXiv:2003.10555", 514
        ),
    },
    "diffusion and insertion": {
        "masked_diffusion": Entry(
            "encoder", "generating in any order", "LLaDA, arXiv:2502.09992", 256
        ),
        "hybrid_diffusion": Entry(
            "encoder", "generating with corrections", "GIDD, arXiv:2503.04482", 512
        ),
        "uniform_diffusion": Entry(
            "encoder", "revising generated text", "Duo, arXiv:2506.10892", 512
        ),
        "shifted_diffusion": Entry(
            "decoder",
            "turning a causal model to diffusion",
            "DiffuLLaMA, arXiv:2410.17891",
            256,
            attends="bidirectional",
        ),
        "dual_diffusion": Entry(
            "decoder",
            "one model, causal LM and diffusion",
            "Dual objective, arXiv:2512.14549",
            384,
            attends="bidirectional or causal",
        ),
        "block_diffusion": Entry(
            "decoder",
            "parallel generation of any length",
            "BD3LM, arXiv:2503.09573",
            256,
            attends="block-causal",
        ),
        "block_diffusion_encoder_decoder": Entry(
            "encoder_decoder",
            "fast generation of blocks",
            "E2D2, arXiv:2510.22852",
            256,
            run="block_diffusion_encoder_decoder",
            attends="block-causal, block",
        ),
        "insertion_lm": Entry(
            "encoder", "filling gaps of any length", "ILM, arXiv:2505.05755", 258
        ),
    },
    "sentences and embeddings": {
        "bert": Entry("encoder", "BERT as published", _BERT, 78, run="sentence_pairs"),
        "next_sentence_prediction": Entry(
            "encoder", "pairs of texts", _BERT, 1, run="sentence_pairs_after_bert"
        ),
        "sentence_order_prediction": Entry(
            "encoder", "coherence of texts", _ALBERT, 1, run="sentence_pairs_after_bert"
        ),
        "contrastive": Entry(
            "encoder",
            "embeddings without labels",
            "SimCSE, arXiv:2104.08821",
            2,
            run="text_embeddings",
        ),
        "retromae": Entry(
            "masked_autoencoder", "embeddings for search", "RetroMAE, arXiv:2205.12035", 512
        ),
        "contrastive_pairs": Entry(
            "two_towers", "search: questions and answers", "CLIP, arXiv:2103.00020", 2
        ),
    },
}

CATALOG = {name: entry for family in FAMILIES.values() for name, entry in family.items()}

# Short names: common abbreviations, and the models known for an objective.
ALIASES = {
    "clm": "causal_lm",
    "meap": "masked_input_next_token",
    "mir": "masked_input_regularization",
    "mtp": "multi_token_prediction",
    "top": "token_order_prediction",
    "fsp": "future_summary",
    "nextlat": "next_latent",
    "ntl": "number_token_loss",
    "jepa": "llm_jepa",
    "t5": "span_corruption",
    "glm": "blank_infilling",
    "pegasus": "gap_sentences",
    "fim": "fill_in_the_middle",
    "cm3": "causal_masking",
    "mlm": "masked_lm",
    "amlm": "adaptive_masked_lm",
    "wwm": "whole_word_masking",
    "mntp": "masked_next_token",
    "mpnet": "masked_permuted_lm",
    "rtd": "replaced_token_detection",
    "electra": "replaced_token_detection",
    "plm": "permutation_lm",
    "xlnet": "permutation_lm",
    "mdlm": "masked_diffusion",
    "llada": "masked_diffusion",
    "bd3lm": "block_diffusion",
    "e2d2": "block_diffusion_encoder_decoder",
    "dream": "shifted_diffusion",
    "gidd": "hybrid_diffusion",
    "ilm": "insertion_lm",
    "duo": "uniform_diffusion",
    "nsp": "next_sentence_prediction",
    "sop": "sentence_order_prediction",
    "simcse": "contrastive",
    "clip": "contrastive_pairs",
}


def find(name: str) -> str:
    """Returns the catalog name of an objective, from that name or a short name.

    >>> find("mlm"), find("Span-Corruption")
    ('masked_lm', 'span_corruption')

    Raises ValueError for any other name. The message lists the nearest names.
    """
    plain = name.lower().replace("-", "_")
    if (full_name := ALIASES.get(plain, plain)) in CATALOG:
        return full_name
    near = difflib.get_close_matches(plain, [*CATALOG, *ALIASES], 3, cutoff=0.55)
    hint = f"; did you mean {' or '.join(near)}?" if near else "."
    raise ValueError(f"There is no objective {name!r}{hint} `pretrax show --list` prints all.")


def aliases_of(name: str) -> list[str]:
    """Returns the short names of an objective.

    >>> aliases_of("replaced_token_detection")
    ['rtd', 'electra']
    """
    return [short for short, long in ALIASES.items() if long == name]


def run_of(name: str) -> str:
    """Returns the small run that trains this objective on a laptop.

    >>> run_of("bart"), run_of("sentence_order_prediction")
    ('quickstart', 'sentence_pairs_after_bert')
    """
    entry = CATALOG[name]
    return entry.run or SMALL_RUNS[entry.architecture]
