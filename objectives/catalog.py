"""Facts about each objective of `gin_configs/objectives`, as plain data.

An objective has the name of its gin file. `find` also accepts short names:

    CATALOG["span_corruption"].paper -> "T5, arXiv:1910.10683"
    find("t5") -> "span_corruption"
"""

import difflib
from typing import NamedTuple


class Entry(NamedTuple):
    """Facts about an objective.

    In a formula, x is the text, x̃ the text with noise, y the targets of a decoder, and M "
    "the set o"
    hidden positions. Sums are over the tokens of a document.
    """

    architecture: str  # one of `ARCHITECTURES`
    good_for: str
    paper: str
    # Average number of slots with a loss in a row of 512 text tokens. Sentinels and end-of-sequence
    # tokens count.
    loss_slots: int
    title: str  # name that the field uses
    formula: str  # loss of a document
    use: str  # when to use the objective, and when to prefer another objective
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
        "causal_lm": Entry(
            "decoder",
            "generation; prompting",
            "GPT-3, arXiv:2005.14165",
            512,
            title="Causal language modeling",
            formula="−Σ_t log p(x_t | x_<t)",
            use="Use it for generation and prompting, and as the baseline of every comparison of "
            "decoders. Prefer `fill_in_the_middle` if the model must also write between two "
            "texts, and `masked_lm` for embeddings and tagging at small sizes.",
        ),
        "masked_input_next_token": Entry(
            "decoder",
            "finding facts in long contexts",
            "MEAP, arXiv:2502.07490",
            512,
            title="Next-token prediction with masked inputs",
            formula="−Σ_t log p(x_t | x̃_<t), with a share of the inputs x̃ masked",
            use="Use it if a decoder must find facts in long contexts. Prefer `causal_lm` if "
            "generation alone counts.",
        ),
        "masked_input_regularization": Entry(
            "decoder",
            "many epochs on little text",
            "MIR, arXiv:2606.06888",
            1024,
            title="Masked-input regularization",
            formula="−Σ_t log p(x_t | x_<t) − λ Σ_t log p(x_t | x̃_<t)",
            use="Use it if the same text is read many times. Prefer `causal_lm` if text is "
            "plentiful, since a step costs about twice as much.",
        ),
        "prefix_lm": Entry(
            "encoder_decoder",
            "continuing a prompt",
            _T5,
            257,
            title="Prefix language modeling",
            formula="−Σ_{t>k} log p(x_t | x_≤k, x_k+1 … x_t−1), with a prefix of k tokens that is "
            "read from both sides",
            use="Use it for models that continue a prompt or are fine-tuned to map inputs to "
            "outputs. Prefer `causal_lm` if every token should be a target, since only the "
            "tokens after the prefix are.",
        ),
        "multi_token_prediction": Entry(
            "decoder",
            "code; faster decoding",
            "MTP, arXiv:2404.19737",
            512,
            title="Multi-token prediction",
            formula="−Σ_k Σ_t log p_k(x_t+k | x_≤t), with k = 1 … n",
            use="Use it for code and for faster decoding with drafted tokens. The paper finds "
            "gains for large models only, so prefer `causal_lm` for small ones.",
        ),
        "token_order_prediction": Entry(
            "decoder",
            "language modeling",
            "TOP, arXiv:2508.19228",
            512,
            title="Token order prediction",
            formula="−Σ_t log p(x_t+1 | x_≤t) − Σ_t Σ_v q_t(v) log r_t(v), with q_t(v) ∝ "
            "exp(−k) for "
            "a token v that comes first k slots later",
            use="Use it as a cheaper form of looking ahead than `multi_token_prediction`: it "
            "adds a projection, not layers. Prefer `causal_lm` as the baseline.",
        ),
        "future_summary": Entry(
            "decoder",
            "planning further ahead",
            "FSP, arXiv:2510.14751",
            512,
            title="Future summary prediction",
            formula="−Σ_t log p(x_t+1 | x_≤t) + w Σ_t Σ_v BCE(s_t(v), [v is among x_t+2 … "
            "x_t+window])",
            use="Use it to study planning: the model also predicts which tokens follow, in any "
            "order. Prefer `token_order_prediction` if their order matters.",
        ),
        "next_latent": Entry(
            "decoder",
            "states that summarize text",
            "NextLat, arXiv:2511.05963",
            512,
            title="Next-latent prediction",
            formula="−Σ_t log p(x_t+1 | x_≤t) + w Σ_t smooth-L1(f(h_t, x_t+1), "
            "stop-gradient(h_t+1))",
            use="Use it for states that sum up what was read. Prefer `causal_lm` as the baseline.",
        ),
        "number_token_loss": Entry(
            "decoder",
            "arithmetic",
            "NTL, arXiv:2411.02083",
            512,
            title="Number token loss",
            formula="−Σ_t log p(x_t | x_<t) + λ Σ_{t: digit} Σ_d p(d | x_<t, a digit) |d − x_t|",
            use="Use it if texts contain numbers and a near miss should cost less than a far "
            "one. It is added to another objective, so it replaces none.",
        ),
        "llm_jepa": Entry(
            "decoder",
            "two views of the same thing",
            "LLM-JEPA, arXiv:2509.14252",
            259,
            run="llm_jepa",
            title="Joint-embedding prediction (LLM-JEPA)",
            formula="−Σ_t log p(y_t | x, y_<t) + λ (1 − cos(predicted state, state of y)), with y "
            "the second view of x",
            use="Use it if each document has two views of one thing, such as a description and "
            "its code. It needs such pairs; prefer `causal_lm` otherwise.",
        ),
    },
    "span corruption and mixtures": {
        "span_corruption": Entry(
            "encoder_decoder",
            "fine-tuning to text-to-text tasks",
            _T5,
            104,
            span_law="composition",
            title="Span corruption",
            formula="−Σ_t log p(y_t | y_<t, x̃), with y the hidden spans after their sentinels",
            use="Use it for encoder-decoders that are fine-tuned to text-to-text tasks. Prefer "
            "`ul2` if the model must also continue text without fine-tuning.",
        ),
        "iid_denoising": Entry(
            "encoder_decoder",
            "ablation: tokens, not spans",
            _T5,
            144,
            title="Independent token denoising",
            formula="−Σ_t log p(y_t | y_<t, x̃), with y the hidden tokens",
            use="Use it to measure what spans add to hiding single tokens. Prefer "
            "`span_corruption` for training: its targets are shorter.",
        ),
        "deshuffling": Entry(
            "encoder_decoder",
            "ablation: word order only",
            _T5,
            513,
            title="Deshuffling",
            formula="−Σ_t log p(x_t | x_<t, x̃), with x̃ the tokens in random order",
            use="Use it as an ablation: it teaches word order alone. In T5's comparison it is "
            "worse than `span_corruption`.",
        ),
        "ul2": Entry(
            "encoder_decoder",
            "understanding and generating",
            _UL2,
            186,
            span_law="composition",
            title="Mixture of denoisers (UL2)",
            formula="−Σ_t log p(y_t | y_<t, x̃), with the noise of one of seven denoisers",
            use="Use it for a single encoder-decoder that understands and generates. Prefer "
            "`span_corruption` if the model is only fine-tuned, and `spans_and_prefix` for "
            "the smallest mixture.",
        ),
        "ul2_tutorial": Entry(
            "encoder_decoder",
            "a lighter mixture than UL2",
            _UL2,
            145,
            title="Three-denoiser mixture (UL2 tutorial)",
            formula="−Σ_t log p(y_t | y_<t, x̃), with the noise of one of three denoisers",
            use="Use it to follow tutorials on UL2. Prefer `ul2` for the published mixture.",
        ),
        "ul2r": Entry(
            "decoder",
            "adapting a causal model",
            "U-PaLM, arXiv:2210.11399",
            146,
            attends="prefix",
            span_law="composition",
            title="Continued training with denoisers (UL2R)",
            formula="−Σ_t log p(y_t | y_<t, x̃), half of it with a plain prefix",
            use="Use it to continue the training of a causal model. Prefer `ul2` to train an "
            "encoder-decoder from the start.",
        ),
        "spans_and_prefix": Entry(
            "encoder_decoder",
            "the smallest mixture, to start from",
            _T5,
            142,
            span_law="composition",
            title="Span corruption and prefix language modeling",
            formula="−Σ_t log p(y_t | y_<t, x̃), with y the hidden spans or the rest of the text",
            use="Use it as the smallest mixture to start your own from. Prefer `ul2` for the "
            "published mixture.",
        ),
        "blank_infilling": Entry(
            "decoder",
            "like ul2, with a single stack",
            "GLM, arXiv:2103.10360",
            102,
            attends="prefix",
            title="Blank infilling",
            formula="−Σ_i Σ_t log p(y_i,t | y_i,<t, earlier spans, x̃), with the spans y_i "
            "in random "
            "order",
            use="Use it to denoise with one stack, as GLM does. Prefer `span_corruption` if you "
            "have an encoder-decoder.",
        ),
        "mass": Entry(
            "encoder_decoder",
            "translating, rewriting",
            "MASS, arXiv:1905.02450",
            256,
            title="Masked sequence-to-sequence (MASS)",
            formula="−Σ_{t∈M} log p(x_t | x_u for u<t in M, x̃), with M one fragment of "
            "half the text",
            use="Use it before translation or rewriting. Prefer `span_corruption` if the number "
            "of missing tokens should not be given.",
        ),
        "gap_sentences": Entry(
            "encoder_decoder",
            "summarizing",
            "PEGASUS, arXiv:1912.08777",
            296,
            title="Gap sentence generation",
            formula="−Σ_t log p(y_t | y_<t, x̃), with y the masked sentences",
            use="Use it before fine-tuning to summarization. Prefer `bart` for other rewriting.",
        ),
    },
    "denoising of the whole text": {
        "bart": Entry(
            "encoder_decoder",
            "summarization and other rewriting",
            _BART,
            513,
            title="BART denoising",
            formula="−Σ_t log p(x_t | x_<t, x̃), with x̃ in a random order of sentences, and spans "
            "masked",
            use="Use it for encoder-decoders that rewrite texts, such as summarizers. Prefer "
            "`span_corruption` if training must be cheap: its targets are a fifth as long.",
        ),
        "text_infilling": Entry(
            "encoder_decoder",
            "inferring how much is missing",
            _BART,
            513,
            span_law="poisson",
            title="Text infilling",
            formula="−Σ_t log p(x_t | x_<t, x̃), with one mask for each span",
            use="Use it if the model should infer how much is missing. Prefer `bart` for the "
            "published combination.",
        ),
        "token_masking": Entry(
            "encoder_decoder",
            "ablation: masks only",
            _BART,
            513,
            title="Token masking",
            formula="−Σ_t log p(x_t | x_<t, x̃), with tokens masked",
            use="Use it as an ablation of `bart`. Prefer `masked_lm` for an encoder.",
        ),
        "token_deletion": Entry(
            "encoder_decoder",
            "ablation: finding deleted tokens",
            _BART,
            513,
            title="Token deletion",
            formula="−Σ_t log p(x_t | x_<t, x̃), with tokens deleted",
            use="Use it as an ablation of `bart`: the model must find where tokens are missing. "
            "Prefer `insertion_lm` to learn insertions as such.",
        ),
        "sentence_permutation": Entry(
            "encoder_decoder",
            "ablation: order of sentences",
            _BART,
            513,
            title="Sentence permutation",
            formula="−Σ_t log p(x_t | x_<t, x̃), with sentences in random order",
            use="Use it as an ablation of `bart`. It teaches the order of sentences and little "
            "else, so prefer `bart` for training.",
        ),
        "document_rotation": Entry(
            "encoder_decoder",
            "ablation: where a text begins",
            _BART,
            513,
            title="Document rotation",
            formula="−Σ_t log p(x_t | x_<t, x̃), with the text rotated",
            use="Use it as an ablation of `bart`. It is the weakest noise in the paper, so "
            "prefer `bart` for training.",
        ),
    },
    "infilling": {
        "fill_in_the_middle": Entry(
            "decoder",
            "code completion at the cursor",
            "FIM, arXiv:2207.14255",
            514,
            title="Fill in the middle",
            formula="−Σ_t log p(x_t | x_<t), with x in the order prefix, suffix, middle for "
            "half of "
            "the documents",
            use="Use it for code completion at a cursor by a decoder. Prefer `causal_lm` if "
            "nothing is ever written between two texts, and `causal_masking` for several "
            "gaps.",
        ),
        "causal_masking": Entry(
            "decoder",
            "infilling long spans",
            "CM3, arXiv:2201.07520",
            513,
            title="Causal masking",
            formula="−Σ_{t: not a sentinel} log p(x_t | x_<t), with a few spans moved to the end",
            use="Use it if a decoder must fill several long gaps. Prefer `fill_in_the_middle` "
            "for one gap.",
        ),
    },
    "masked language modeling": {
        "masked_lm": Entry(
            "encoder",
            "classifying, tagging, retrieval",
            _BERT,
            77,
            title="Masked language modeling",
            formula="−Σ_{t∈M} log p(x_t | x̃)",
            use="Use it for encoders that classify, tag or retrieve. Prefer `causal_lm` if the "
            "model must write, and `masked_diffusion` if an encoder must.",
        ),
        "adaptive_masked_lm": Entry(
            "encoder",
            "learning from little text",
            "AMLM, arXiv:2510.20475",
            77,
            title="Adaptive masked language modeling",
            formula="−Σ_{t∈M} log p(x_t | x̃), with M drawn more often among words that the model "
            "gets wrong",
            use="Use it if there is little text. Prefer `masked_lm` as the baseline, or if the "
            "corpus is a SeqIO task, which has no model to follow.",
        ),
        "whole_word_masking": Entry(
            "encoder",
            "like masked_lm, by whole words",
            _BERT,
            77,
            title="Whole-word masking",
            formula="−Σ_{t∈M} log p(x_t | x̃), with M whole words",
            use="Use it if a word often has several tokens, since a part gives the rest away. "
            "Prefer `masked_lm` for character or byte vocabularies.",
        ),
        "spanbert": Entry(
            "encoder",
            "extractive question answering",
            "SpanBERT, arXiv:1907.10529",
            77,
            title="SpanBERT masking",
            formula="−Σ_{t∈M} log p(x_t | x̃), with M spans of whole words",
            use="Use it before extractive question answering and other tasks on spans. Prefer "
            "`masked_lm` for single words.",
        ),
        "albert_ngrams": Entry(
            "encoder",
            "like masked_lm, by short phrases",
            _ALBERT,
            77,
            title="N-gram masking (ALBERT)",
            formula="−Σ_{t∈M} log p(x_t | x̃), with M one to three words in a row",
            use="Use it if short phrases should be predicted together. Prefer `spanbert` for "
            "longer spans.",
        ),
        "masked_next_token": Entry(
            "decoder",
            "masked LM for a causal model",
            _GPT_BERT,
            77,
            attends="bidirectional",
            title="Masked next-token prediction",
            formula="−Σ_{t∈M} log p(x_t | x̃), predicted at the slot before t",
            use="Use it to turn a causal decoder into an encoder. Prefer `gpt_bert` to keep both "
            "abilities.",
        ),
        "gpt_bert": Entry(
            "decoder",
            "one model for causal and masked LM",
            _GPT_BERT,
            104,
            attends="bidirectional or causal",
            title="Masked and causal language modeling (GPT-BERT)",
            formula="−Σ_{t∈M} log p(x_t | x̃) for most rows, −Σ_t log p(x_t | x_<t) for the others",
            use="Use it for one small model that both fills in and writes. Prefer `causal_lm` or "
            "`masked_lm` if one of the two is enough.",
        ),
        "antlm": Entry(
            "decoder",
            "learning from little text",
            "AntLM, arXiv:2412.03275",
            294,
            attends="bidirectional or causal",
            title="Alternating causal and masked language modeling (AntLM)",
            formula="−Σ_t log p(x_t | x_<t) and −Σ_{t∈M} log p(x_t | x̃), in turns",
            use="Use it if there is little text. Prefer `gpt_bert` to mix both in each batch "
            "instead of alternating.",
        ),
        "masked_permuted_lm": Entry(
            "encoder",
            "like masked_lm, in a random order",
            "MPNet, arXiv:2004.09297",
            77,
            attends="permuted",
            title="Masked and permuted language modeling (MPNet)",
            formula="−Σ_{t∈M} log p(x_t | x_u for u before t in a random order, positions of all "
            "tokens)",
            use="Use it for encoders whose masked tokens should depend on each other. Prefer "
            "`masked_lm` if the model has relative positions.",
        ),
        "permutation_lm": Entry(
            "decoder",
            "representations; any order",
            "XLNet, arXiv:1906.08237",
            85,
            attends="permuted",
            title="Permutation language modeling (XLNet)",
            formula="−Σ_{t∈M} log p(x_t | x_u for u before t in a random order)",
            use="Use it for representations from both sides without mask tokens, and for writing "
            "in any order. Prefer `masked_permuted_lm` for an encoder, since a row takes "
            "twice its slots here.",
        ),
        "replaced_token_detection": Entry(
            "electra",
            "learning from every token",
            "ELECTRA, arXiv:2003.10555",
            514,
            title="Replaced token detection (ELECTRA)",
            formula="−Σ_{t∈M} log p_G(x_t | x̃) + λ Σ_t BCE(D_t, [token t was replaced])",
            use="Use it for encoders with a small budget: every token gives a signal. Prefer "
            "`masked_lm` if one network must be enough, or if the model must fill in masks.",
        ),
    },
    "diffusion and insertion": {
        "masked_diffusion": Entry(
            "encoder",
            "generating in any order",
            "LLaDA, arXiv:2502.09992",
            256,
            title="Masked diffusion",
            formula="E_r[−(1/r) Σ_{t∈M} log p(x_t | x̃)], with each token hidden with "
            "probability r "
            "~ U(0, 1)",
            use="Use it for encoders that write in any order, and for Sudoku-like constraints. "
            "Prefer `causal_lm` for the best likelihood, and `block_diffusion` for texts of "
            "any length.",
        ),
        "hybrid_diffusion": Entry(
            "encoder",
            "generating with corrections",
            "GIDD, arXiv:2503.04482",
            512,
            title="Hybrid diffusion (GIDD)",
            formula="E_t[Σ_i w_i(t) · (divergence between the noise of the predicted and of "
            "the true "
            "token)]",
            use="Use it if a diffusion model should correct what it has written. Prefer "
            "`masked_diffusion` for the lower loss of pure masking.",
        ),
        "uniform_diffusion": Entry(
            "encoder",
            "revising generated text",
            "Duo, arXiv:2506.10892",
            512,
            title="Uniform-state diffusion (Duo)",
            formula="E_t[Σ_i w_i(t) · (divergence between the noise of the predicted and of "
            "the true "
            "token)], with random tokens as noise",
            use="Use it if any token may be changed again while writing. Prefer "
            "`masked_diffusion` for a lower loss.",
        ),
        "shifted_diffusion": Entry(
            "decoder",
            "turning a causal model to diffusion",
            "DiffuLLaMA, arXiv:2410.17891",
            256,
            attends="bidirectional",
            title="Shifted masked diffusion (DiffuLLaMA)",
            formula="E_r[−(1/r) Σ_{t∈M} log p(x_t | x̃)], predicted at the slot before t",
            use="Use it to turn a trained causal decoder into a diffusion model. Prefer "
            "`masked_diffusion` to train from the start.",
        ),
        "dual_diffusion": Entry(
            "decoder",
            "one model, causal LM and diffusion",
            "Dual objective, arXiv:2512.14549",
            384,
            attends="bidirectional or causal",
            title="Causal language modeling and masked diffusion",
            formula="−Σ_t log p(x_t | x_<t) for half of the rows, E_r[−(1/r) Σ_{t∈M} log p(x_t | "
            "x̃)] for the others",
            use="Use it for one decoder that writes from left to right and in any order. Prefer "
            "one of the two alone if it is enough.",
        ),
        "block_diffusion": Entry(
            "decoder",
            "parallel generation of any length",
            "BD3LM, arXiv:2503.09573",
            256,
            attends="block-causal",
            title="Block diffusion",
            formula="E_r[−Σ_b (1/r_b) Σ_{t∈M_b} log p(x_t | x̃_b, x_<b)], over blocks b with their "
            "own rates r_b",
            use="Use it to write several tokens at once in texts of any length. Prefer "
            "`masked_diffusion` if rows have a fixed length: a row takes twice its slots "
            "here.",
        ),
        "block_diffusion_encoder_decoder": Entry(
            "encoder_decoder",
            "fast generation of blocks",
            "E2D2, arXiv:2510.22852",
            256,
            run="block_diffusion_encoder_decoder",
            attends="block-causal, block",
            title="Block diffusion with an encoder-decoder",
            formula="E_r[−Σ_b (1/r_b) Σ_{t∈M_b} log p(x_t | x̃_b, encoder(x_<b))]",
            use="Use it if blocks must be quick to write: only a small decoder is repeated. "
            "Prefer `block_diffusion` for one stack.",
        ),
        "insertion_lm": Entry(
            "encoder",
            "filling gaps of any length",
            "ILM, arXiv:2505.05755",
            258,
            title="Insertion language modeling",
            formula="−(Σ log p(dropped token, its place | x̃)) − log p(whether anything is "
            "missing | "
            "x̃)",
            use="Use it to fill gaps of unknown length at unknown places. Prefer "
            "`fill_in_the_middle` if the place is known.",
        ),
    },
    "sentences and embeddings": {
        "bert": Entry(
            "encoder",
            "BERT as published",
            _BERT,
            78,
            run="sentence_pairs",
            title="BERT pre-training",
            formula="−Σ_{t∈M} log p(x_t | x̃) − log p(B follows A | x̃)",
            use="Use it to reproduce BERT. Prefer `masked_lm` otherwise: RoBERTa found that next "
            "sentence prediction does not help.",
        ),
        "next_sentence_prediction": Entry(
            "encoder",
            "pairs of texts",
            _BERT,
            1,
            run="sentence_pairs_after_bert",
            title="Next sentence prediction",
            formula="−log p(B follows A | A, B)",
            use="Use it for judgments on pairs of texts, as a part of `bert`. Prefer "
            "`sentence_order_prediction`, which ALBERT found to be harder and more useful.",
        ),
        "sentence_order_prediction": Entry(
            "encoder",
            "coherence of texts",
            _ALBERT,
            1,
            run="sentence_pairs_after_bert",
            title="Sentence order prediction",
            formula="−log p(order | two parts of a text)",
            use="Use it to teach coherence, next to `masked_lm`. Prefer `masked_lm` alone if no "
            "task is about pairs of texts.",
        ),
        "contrastive": Entry(
            "encoder",
            "embeddings without labels",
            "SimCSE, arXiv:2104.08821",
            2,
            run="text_embeddings",
            title="Contrastive learning of text embeddings (SimCSE)",
            formula="−Σ_i log( exp(s(a_i, b_i)/τ) / Σ_j exp(s(a_i, b_j)/τ) ), with two "
            "views a, b of "
            "each text",
            use="Use it for embeddings without labels, after `masked_lm`. Prefer "
            "`contrastive_pairs` if you have pairs of texts.",
        ),
        "retromae": Entry(
            "masked_autoencoder",
            "embeddings for search",
            "RetroMAE, arXiv:2205.12035",
            512,
            title="Masked autoencoding of texts (RetroMAE)",
            formula="−Σ_{t∈M} log p(x_t | x̃) − Σ_t log p(x_t | the embedding of x̃, a few tokens)",
            use="Use it before training embeddings for search. Prefer `contrastive` to use "
            "embeddings without further training.",
        ),
        "contrastive_pairs": Entry(
            "two_towers",
            "search: questions and answers",
            "CLIP, arXiv:2103.00020",
            2,
            title="Contrastive learning of pairs (CLIP)",
            formula="−½ Σ_i [log softmax_j(s(a_i, b_j)/τ)_i + log softmax_j(s(a_j, b_i)/τ)_i]",
            use="Use it for search with pairs such as questions and answers. Prefer "
            "`contrastive` if there are no pairs.",
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
