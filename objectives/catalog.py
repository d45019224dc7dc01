"""Facts about each objective of `gin_configs/objectives`, as plain data."""

from typing import NamedTuple

from ..constraints import near


class Entry(NamedTuple):
    """Facts about an objective.

    In a formula, x is the text, x̃ the text with noise, y the targets of a decoder, and M the set
    of hidden positions. Each mean is over the whole batch: mean_t is over the targets of all its
    documents, and mean_{t∈M} over their hidden tokens. Constants are those of the gin file.
    """

    architecture: str  # one of `ARCHITECTURES`
    good_for: str
    paper: str  # short name and arXiv number, or the address of a pull request without a paper
    # Average number of slots with a loss in a row of 512 text tokens. Sentinels and end-of-sequence
    # tokens count.
    loss_slots: int
    title: str  # name that the field uses
    formula: str  # loss of a batch
    use: str  # when to use the objective, and when to prefer another objective
    # Distribution of the lengths of hidden spans, if known: "composition" (all ways to split the
    # hidden tokens into spans are equally likely) or "poisson" (with the builder's mean).
    span_distribution: str | None = None
    run: str | None = None  # small run, if it differs from the architecture's
    attends: str | None = None  # attention pattern, if it differs from the architecture's
    # Common abbreviations, and the models known for the objective.
    short_names: tuple[str, ...] = ()

    @property
    def attention(self) -> str:
        """Attention pattern; for an encoder-decoder, of the encoder and of the decoder."""
        return self.attends or ARCHITECTURES[self.architecture].attention

    @property
    def paper_link(self) -> tuple[str, str]:
        """Name and address of the paper, or of the code if there is no paper.

        >>> CATALOG["span_corruption"].paper_link
        ('T5', 'https://arxiv.org/abs/1910.10683')
        """
        name, source = self.paper.split(", ")
        return name, "https://" + source.replace("arXiv:", "arxiv.org/abs/")


class Architecture(NamedTuple):
    """The usual model of an objective."""

    label: str  # its name in lists and on pages
    small_run: str  # run (gin_configs/runs/NAME.gin) that trains its objectives on a laptop
    attention: str  # attention pattern


ARCHITECTURES = {
    "encoder": Architecture("encoder", "encoder", "bidirectional"),
    "decoder": Architecture("decoder", "decoder", "causal"),
    "encoder_decoder": Architecture("encoder-decoder", "quickstart", "bidirectional, causal"),
    "electra": Architecture("two encoders", "electra", "bidirectional"),
    "masked_autoencoder": Architecture("autoencoder", "retromae", "bidirectional, random subsets"),
    "step_unrolled": Architecture("encoder, twice", "unrolled_denoising", "bidirectional"),
    "embedding_denoiser": Architecture("encoder", "embedding_diffusion", "bidirectional"),
    "two_towers": Architecture("encoder or two", "two_towers", "bidirectional"),
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
            formula="−mean_t log p(x_t | x_<t)",
            use="Use it for generation and prompting, and as the baseline of every comparison of "
            "decoders. Prefer `fill_in_the_middle` if the model must also write between two "
            "texts. Prefer `masked_lm` if an encoder is fine-tuned to classify texts.",
            short_names=("clm",),
        ),
        "masked_input_next_token": Entry(
            "decoder",
            "finding facts in long contexts",
            "MEAP, arXiv:2502.07490",
            512,
            title="Next-token prediction with masked inputs (MEAP)",
            formula="−mean_t log p(x_t | x̃_<t)\nwith x̃ the text with 15% of the tokens masked",
            use="Use it if a decoder must find facts in long contexts. Prefer `causal_lm` if only "
            "generation counts: in our comparison, masked inputs made the loss on unmasked text "
            "slightly worse.",
            short_names=("meap",),
        ),
        "masked_input_regularization": Entry(
            "decoder",
            "many epochs on little text",
            "MIR, arXiv:2606.06888",
            1024,
            title="Masked-input regularization (MIR)",
            formula="−mean_t log p(x_t | x_<t) − λ mean_t log p(x_t | x̃_<t)\n"
            "with λ = 0.4, and tokens of x̃ masked at a rate r ~ U(0, 0.5) for each document",
            use="Use it with strong weight decay if the same text is read many times. Prefer "
            "`causal_lm` if text is plentiful, since a step costs about twice as much.",
            short_names=("mir",),
        ),
        "prefix_lm": Entry(
            "encoder_decoder",
            "text-to-text; continuing a text",
            _T5,
            257,
            title="Prefix language modeling",
            formula="−mean_{t>k} log p(x_t | x_<t)\n"
            "with a prefix of k tokens, k uniform in 1 … n−1, which the encoder reads in both "
            "directions",
            use="Use it for encoder-decoders that continue a text or are fine-tuned to map inputs "
            "to outputs. Prefer `causal_lm` for prompting without fine-tuning. In our comparison "
            "at equal size and text, a causal decoder had the lower loss even on the same "
            "suffixes.",
        ),
        "multi_token_prediction": Entry(
            "decoder",
            "code; faster decoding",
            "MTP, arXiv:2404.19737",
            512,
            title="Multi-token prediction",
            formula="−Σ_k mean_t log p_k(x_{t+k} | x_≤t)\nwith a head p_k for each k = 1 … 4",
            use="Use it for code, for planning ahead, and for faster decoding with drafted "
            "tokens. Prefer `causal_lm` for small models: the paper's gains grow with size. In "
            "our comparisons, small models predicted the next token worse, but three heads "
            "learned to look ahead.",
            short_names=("mtp",),
        ),
        "token_superposition": Entry(
            "decoder",
            "causal pre-training on much text",
            "TST, arXiv:2605.06546",
            384,
            title="Token superposition training (TST)",
            formula="−mean_{b, t∈b} log p(x_t | x̄_<b) in the first 30% of the steps\n"
            "−mean_t log p(x_t | x_<t) in the other steps\n"
            "with bags b of six tokens, each read as its mean embedding x̄_b",
            use="Use it for causal models if compute is scarce and text is not: a run reads "
            "2.5 times the text of `causal_lm` in the same number of steps. The paper claims up to "
            "2.5 times less time from 270M parameters on. In our comparison of models with 0.46M "
            "parameters, the loss was not lower at equal FLOPs. Prefer `causal_lm` if the text "
            "would be read more than once.",
        ),
        "mutor": Entry(
            "decoder",
            "looking ahead without heads",
            "MuToR, arXiv:2505.10518",
            512,
            attends="causal, and registers",
            title="Multi-token prediction with registers (MuToR)",
            formula="−(1 − a) mean_t log p(x_t | x_<t) − a mean_{t≥d} log p(x_t | x_≤t−d, register "
            "at t)\n"
            "with d ~ U{1, 2, 3, 4} for each document, and a = 0.3",
            use="Use it if a causal model should look ahead, and its layers must stay as they are, "
            "as in fine-tuning. Prefer `multi_token_prediction` if drafted tokens should make "
            "decoding faster, and `token_order_prediction` if training must be cheap, since each "
            "row takes twice its number of slots.",
        ),
        "annealed_multi_token_prediction": Entry(
            "decoder",
            "causal pre-training in few steps",
            "modded-nanogpt, github.com/KellerJordan/modded-nanogpt/pull/178",
            512,
            title="Annealed multi-token prediction",
            formula="−Σ_k w_k mean_t log p(x_{t+k} | x_≤t)\n"
            "with one head p, w_1 = 1, and w_2 and w_3 falling from 0.5 and 0.25 to 0 in training",
            use="Use it to train a causal model with a richer signal early on, without additional "
            "parameters and at little cost. It shortened the record runs of modded-nanogpt. Its "
            "benefit is not yet measured here. Prefer `multi_token_prediction` if drafted tokens "
            "should make decoding faster. Prefer `causal_lm` if training has no planned end, since "
            "the weights must reach 0 before it.",
        ),
        "prefix_token_prediction": Entry(
            "decoder",
            "causal pre-training in few steps",
            "modded-nanogpt, github.com/KellerJordan/modded-nanogpt/pull/337",
            512,
            title="Prefix token prediction",
            formula="−Σ_k w_k mean_t log p(x_{t+k} | x_≤t)\n"
            "−u mean_t log p(prefix(x_{t+1}) | x_≤t)\n"
            "with prefix(v) the longest token with which v begins, u falling from 0.25 to 0 in "
            "training, and w_k as in annealed multi-token prediction",
            use="Use it with a vocabulary of subwords, to teach that a token which begins like the "
            "next token is a better guess than other tokens. Its benefit is not yet measured "
            "here. Prefer "
            "`annealed_multi_token_prediction` alone for a vocabulary in which few tokens begin "
            "with another token.",
            short_names=("ptp",),
        ),
        "token_order_prediction": Entry(
            "decoder",
            "looking ahead at little cost",
            "TOP, arXiv:2508.19228",
            512,
            title="Token order prediction (TOP)",
            formula="−mean_t log p(x_{t+1} | x_≤t) − mean_t Σ_v q_t(v) log r_t(v)\n"
            "with r_t the softmax of a second head, and q_t(v) ∝ exp(−k) if token v first occurs "
            "k slots after t",
            use="Use it to look ahead more cheaply than with `multi_token_prediction`: it adds a "
            "projection, not layers. Prefer `causal_lm` for small models: the paper's models have "
            "at least 340M parameters, and our comparison of small models is inconclusive.",
            short_names=("top",),
        ),
        "future_summary": Entry(
            "decoder",
            "planning further ahead",
            "FSP, arXiv:2510.14751",
            512,
            title="Future summary prediction (FSP)",
            formula="−mean_t log p(x_{t+1} | x_≤t) + w mean_t Σ_v BCE(s_t(v), [v is among x_{t+2} "
            "… x_{t+12}])\n"
            "with w = 0.1, and s_t(v) the sigmoid of a second head",
            use="Use it to study planning: the model also predicts which tokens follow, in any "
            "order. Prefer `token_order_prediction` if their order matters. Prefer `causal_lm` "
            "for small models, which had a higher loss with this objective in our comparison.",
            short_names=("fsp",),
        ),
        "next_latent": Entry(
            "decoder",
            "states that summarize text",
            "NextLat, arXiv:2511.05963",
            512,
            title="Next-latent prediction (NextLat)",
            formula="−mean_t log p(x_{t+1} | x_≤t) + w mean_t smooth-L1(f(h_t, x_{t+1}), "
            "stop-gradient(h_{t+1}))\n"
            "with w = 1, and h_t the hidden state after x_≤t",
            use="Use it if hidden states should summarize the text so far. Prefer `causal_lm` if "
            "only the next token counts: our comparison of small models found no significant "
            "difference.",
            short_names=("nextlat",),
        ),
        "belief_state": Entry(
            "decoder",
            "planning further ahead",
            "BST, arXiv:2410.23506",
            768,
            title="Belief state transformer (BST)",
            formula="−mean_t log p(x_{t+1} | f_t) − mean_t (log p(x_{t+1} | f_t, b_s) + "
            "log q(x_{s−1} | f_t, b_s))\n"
            "with f_t the state after x_≤t, b_s the state after x_≥s read from right to left, and "
            "s > t + 1 drawn for each t",
            use="Use it to study planning: a state of a prefix must tell what comes before any "
            "suffix. Prefer `causal_lm` if only the next token counts, since each row costs as "
            "much compute as two. In one run of 12,000 steps on small star graphs (run "
            "`star_graphs`, four pairs), the model still guessed the first node of the path.",
            short_names=("bst",),
        ),
        "next_implicit_token": Entry(
            "decoder",
            "states beyond the next token",
            "NITP, arXiv:2605.24956",
            512,
            title="Next implicit token prediction (NITP)",
            formula="−mean_t log p(x_{t+1} | x_≤t) + w mean_t (1 − cos(P(h_t), "
            "stop-gradient(z_{t+1})))\n"
            "with w = 1, P a gated MLP, h_t the last hidden state after x_≤t, and z_t the state "
            "after 20% of the layers",
            use="Use it to study the geometry of hidden states: the paper's models have at least "
            "0.5B parameters and do better on tasks, at 2% more FLOPs. Prefer `next_latent` if "
            "states should summarize the text, and `causal_lm` if only the next token counts.",
            short_names=("nitp",),
        ),
        "goldfish_loss": Entry(
            "decoder",
            "text that must not be memorized",
            "Goldfish loss, arXiv:2406.10209",
            387,
            title="Goldfish loss",
            formula="−mean_{t∈G} log p(x_t | x_<t)\n"
            "with G the tokens for which hash(x_{t−13} … x_{t−1}) ≥ 1/4, and 0 ≤ hash < 1",
            use="Use it if training texts repeat and the model must not reproduce them word for "
            "word: in our comparison, a model repeated 2% of the passages that it had read about "
            "160 times, and a causal model repeated all of them. Prefer `causal_lm` for text that "
            "may be memorized, since a quarter of the tokens are read without being learned. A "
            "larger k leaves out fewer tokens and protects less.",
            short_names=("goldfish",),
        ),
        "distilled_lm": Entry(
            "decoder",
            "small models with a good teacher",
            "Goyal et al. 2025, arXiv:2509.01649",
            512,
            run="distillation",
            title="Distilled language modeling",
            formula="−(1 − w) mean_t log p(x_t | x_<t) − w mean_t Σ_v q_t(v) log p(v | x_<t)\n"
            "with w = 0.5, and q_t the probabilities of the teacher's 16 likeliest tokens, where "
            "x_t has the rest",
            use="Use it if a larger model of the same vocabulary has read the text before: "
            "`pretrax teach` writes its predictions into a token store. Prefer `causal_lm` without "
            "such a model, and if copying from the context matters most: Goyal et al. found that "
            "distillation impairs it.",
            short_names=("kd",),
        ),
        "number_token_loss": Entry(
            "decoder",
            "arithmetic",
            "NTL, arXiv:2411.02083",
            512,
            title="Number token loss (NTL)",
            formula="−mean_t log p(x_t | x_<t) + λ mean_{t∈N} Σ_d p(d | x_<t, the token is a "
            "digit) |d − x_t|\n"
            "with N the targets that are digits, d = 0 … 9, and λ = 0.3",
            use="Use it if texts contain numbers, and a near miss should cost less than a far "
            "one. It adds a term to the loss of another objective, by default `causal_lm`. Prefer "
            "that objective alone if digits do not stand for quantities, as in phone numbers.",
            short_names=("ntl",),
        ),
        "llm_jepa": Entry(
            "decoder",
            "pairs such as a text and its code",
            "LLM-JEPA, arXiv:2509.14252",
            259,
            run="llm_jepa",
            title="Joint-embedding prediction (LLM-JEPA)",
            formula="−mean_t log p(y_t | x, y_<t) + λ mean_documents (1 − cos(f(x), g(y)))\n"
            "with y the second view of x, f(x) the state of a sentinel after x, g(y) the last "
            "state of y, and λ = 0.1",
            use="Use it if each document has two views with the same meaning, such as a "
            "description and its code. Prefer `causal_lm` if the text has no such pairs.",
            short_names=("jepa",),
        ),
    },
    "span corruption and mixtures": {
        "span_corruption": Entry(
            "encoder_decoder",
            "fine-tuning to text-to-text tasks",
            _T5,
            104,
            span_distribution="composition",
            title="Span corruption",
            formula="−mean_t log p(y_t | y_<t, x̃)\n"
            "with y the hidden spans, each after its sentinel; 15% of the tokens are hidden",
            use="Use it for encoder-decoders that are fine-tuned to text-to-text tasks. Prefer "
            "`ul2` if the model must also continue text without fine-tuning.",
            short_names=("t5",),
        ),
        "iid_denoising": Entry(
            "encoder_decoder",
            "ablation: tokens, not spans",
            _T5,
            144,
            title="Independent token denoising",
            formula="−mean_t log p(y_t | y_<t, x̃)\n"
            "with each token hidden with probability 0.15, and y the runs of hidden tokens, each "
            "after its sentinel",
            use="Use it to measure what is gained by hiding spans instead of single tokens. "
            "Prefer `span_corruption` for training: its targets are shorter.",
        ),
        "deshuffling": Entry(
            "encoder_decoder",
            "ablation: word order only",
            _T5,
            513,
            title="Deshuffling",
            formula="−mean_t log p(x_t | x_<t, x̃)\nwith x̃ the tokens in random order",
            use="Use it as an ablation: it teaches word order alone. Prefer `span_corruption` for "
            "training: in T5's comparison, deshuffling is far worse than denoising.",
        ),
        "ul2": Entry(
            "encoder_decoder",
            "understanding and generating",
            _UL2,
            186,
            span_distribution="composition",
            title="Mixture of denoisers (UL2)",
            formula="−mean_t log p(y_t | y_<t, x̃)\n"
            "with the x̃ and y of one of seven denoisers in each row, at equal rates",
            use="Use it for a single encoder-decoder that understands and generates. Prefer "
            "`span_corruption` if the model is only fine-tuned, and `prefix_lm` if it only "
            "continues text. Use `spans_and_prefix` to build your own mixture.",
        ),
        "ul2_tutorial": Entry(
            "encoder_decoder",
            "a lighter mixture than UL2",
            _UL2,
            145,
            title="Three-denoiser mixture (UL2 tutorial)",
            formula="−mean_t log p(y_t | y_<t, x̃)\n"
            "with the x̃ and y of R, S or X in each row, at the rates 2, 1 and 1",
            use="Use it to follow tutorials on UL2, in which S hides short spans and not the end "
            "of the text. Prefer `ul2` for the published mixture.",
        ),
        "ul2r": Entry(
            "decoder",
            "adapting a causal model",
            "U-PaLM, arXiv:2210.11399",
            146,
            attends="prefix",
            span_distribution="composition",
            title="Continued training with denoisers (UL2R)",
            formula="−mean_t log p(y_t | y_<t, x̃)\n"
            "with y the rest of a text after its prefix in half of the rows, and hidden spans in "
            "the others",
            use="Use it to continue the training of a causal model. Prefer `ul2` to train an "
            "encoder-decoder from scratch.",
        ),
        "spans_and_prefix": Entry(
            "encoder_decoder",
            "a start for your own mixture",
            _T5,
            142,
            span_distribution="composition",
            title="Span corruption and prefix language modeling",
            formula="−mean_t log p(y_t | y_<t, x̃)\n"
            "with y the hidden spans in three rows of four, and the rest of a text after its "
            "prefix in the fourth",
            use="Use it as the smallest mixture, to start your own from. Prefer `ul2` for the "
            "published mixture.",
        ),
        "blank_infilling": Entry(
            "decoder",
            "denoising with a single stack",
            "GLM, arXiv:2103.10360",
            102,
            attends="prefix",
            title="Autoregressive blank infilling (GLM)",
            formula="−mean_{i,t} log p(y_{i,t} | y_{i,<t}, y_j for j < i, x̃)\n"
            "with y_1, y_2, … the hidden spans in random order, and x̃ the text with one mask for "
            "each span",
            use="Use it to denoise with a single stack, as GLM does. Prefer `span_corruption` for "
            "an encoder-decoder.",
            short_names=("glm",),
        ),
        "mass": Entry(
            "encoder_decoder",
            "translation and rewriting",
            "MASS, arXiv:1905.02450",
            256,
            title="Masked sequence-to-sequence pre-training (MASS)",
            formula="−mean_{t∈M} log p(x_t | x_u for u ∈ M before t, x̃)\n"
            "with M one fragment of half the tokens, masked in x̃",
            use="Use it before fine-tuning for translation or rewriting. Prefer `span_corruption` "
            "if the input should not show how many tokens are missing.",
        ),
        "gap_sentences": Entry(
            "encoder_decoder",
            "summarization",
            "PEGASUS, arXiv:1912.08777",
            296,
            title="Gap sentences generation (PEGASUS)",
            formula="−mean_t log p(y_t | y_<t, x̃)\n"
            "with y the most important sentences, three in ten, and x̃ the text with one mask for "
            "each of them",
            use="Use it before fine-tuning for summarization. Prefer `bart` for other kinds of "
            "rewriting.",
            short_names=("pegasus",),
        ),
    },
    "denoising of the whole text": {
        "bart": Entry(
            "encoder_decoder",
            "summarization and other rewriting",
            _BART,
            513,
            title="BART denoising",
            formula="−mean_t log p(x_t | x_<t, x̃)\n"
            "with x̃ the sentences in random order, and 30% of the tokens hidden, with one mask "
            "for each span",
            use="Use it for encoder-decoders that rewrite texts, such as summarizers. Prefer "
            "`span_corruption` if training must be cheap: its targets are a fifth as long.",
        ),
        "text_infilling": Entry(
            "encoder_decoder",
            "inferring how much is missing",
            _BART,
            513,
            span_distribution="poisson",
            title="Text infilling",
            formula="−mean_t log p(x_t | x_<t, x̃)\n"
            "with 30% of the tokens hidden, with one mask in x̃ for each span",
            use="Use it if the model should infer how much is missing. Prefer `bart` for the "
            "published combination with shuffled sentences.",
        ),
        "token_masking": Entry(
            "encoder_decoder",
            "ablation: masks only",
            _BART,
            513,
            title="Token masking",
            formula="−mean_t log p(x_t | x_<t, x̃)\n"
            "with each token masked in x̃ with probability 0.15",
            use="Use it as an ablation of `bart`, which hides spans instead. Prefer `masked_lm` "
            "for an encoder.",
        ),
        "token_deletion": Entry(
            "encoder_decoder",
            "ablation: finding deleted tokens",
            _BART,
            513,
            title="Token deletion",
            formula="−mean_t log p(x_t | x_<t, x̃)\n"
            "with each token deleted from x̃ with probability 0.15",
            use="Use it as an ablation of `bart`: the model must find where tokens are missing. "
            "Prefer `insertion_lm` if an encoder must insert them.",
        ),
        "sentence_permutation": Entry(
            "encoder_decoder",
            "ablation: order of sentences",
            _BART,
            513,
            title="Sentence permutation",
            formula="−mean_t log p(x_t | x_<t, x̃)\nwith x̃ the sentences in random order",
            use="Use it as an ablation of `bart`. It teaches the order of sentences and little "
            "else, so prefer `bart` for training.",
        ),
        "document_rotation": Entry(
            "encoder_decoder",
            "ablation: where a text begins",
            _BART,
            513,
            title="Document rotation",
            formula="−mean_t log p(x_t | x_<t, x̃)\n"
            "with x̃ the text rotated to begin with a random token",
            use="Use it as an ablation of `bart`. Prefer `bart` for training: rotation alone is "
            "the weakest noise in the paper.",
        ),
    },
    "infilling": {
        "fill_in_the_middle": Entry(
            "decoder",
            "code completion at the cursor",
            "FIM, arXiv:2207.14255",
            514,
            title="Fill in the middle (FIM)",
            formula="−mean_t log p(z_t | z_<t)\n"
            "with z = x for half of the documents, and the middle of x moved to the end, with "
            "three markers, for the others",
            use="Use it for decoders that complete code at a cursor. It costs left-to-right "
            "prediction little. Prefer `causal_lm` if the model never writes between two texts, "
            "and `causal_masking` for several gaps.",
            short_names=("fim",),
        ),
        "causal_masking": Entry(
            "decoder",
            "infilling long spans",
            "CM3, arXiv:2201.07520",
            513,
            title="Causal masking (CM3)",
            formula="−mean_{t∈T} log p(z_t | z_<t)\n"
            "with z the text with one to four spans moved to its end, and T all slots except "
            "sentinels",
            use="Use it if a decoder must fill several long gaps. Prefer `fill_in_the_middle` for "
            "one gap.",
            short_names=("cm3",),
        ),
    },
    "masked language modeling": {
        "masked_lm": Entry(
            "encoder",
            "classification, tagging, retrieval",
            _BERT,
            77,
            title="Masked language modeling",
            formula="−mean_{t∈M} log p(x_t | x̃)\nwith M 15% of the tokens",
            use="Use it for encoders that are trained for long and then classify, tag or "
            "retrieve. Prefer `causal_lm` if the model must generate text, or if training is "
            "short: small causal models tagged better in our comparisons. Prefer "
            "`masked_diffusion` if an encoder must generate text.",
            short_names=("mlm",),
        ),
        "adaptive_masked_lm": Entry(
            "encoder",
            "learning from little text",
            "AMLM, arXiv:2510.20475",
            77,
            title="Adaptive masked language modeling (AMLM)",
            formula="−mean_{t∈M} log p(x_t | x̃)\n"
            "with M about 15% of the tokens, drawn more often among words that the model predicts "
            "badly",
            use="Use it if there is little text. Prefer `masked_lm` as the baseline: our "
            "comparison found no significant difference. SeqIO tasks mask all words at the same "
            "rate, since they draw masks without a model.",
            short_names=("amlm",),
        ),
        "whole_word_masking": Entry(
            "encoder",
            "like masked_lm, by whole words",
            _BERT,
            77,
            title="Whole-word masking",
            formula="−mean_{t∈M} log p(x_t | x̃)\nwith M whole words, 15% of the tokens",
            use="Use it if words often have several tokens, since the visible pieces of a word "
            "reveal the masked ones. Prefer `masked_lm` for vocabularies of characters or bytes.",
            short_names=("wwm",),
        ),
        "spanbert": Entry(
            "encoder",
            "extractive question answering",
            "SpanBERT, arXiv:1907.10529",
            77,
            title="SpanBERT masking",
            formula="−mean_{t∈M} log p(x_t | x̃)\n"
            "with M spans of one to ten words, 15% of the tokens",
            use="Use it before extractive question answering and other tasks on spans. SpanBERT's "
            "second loss, the span-boundary objective, is left out. Prefer `masked_lm` for tasks "
            "on single words.",
        ),
        "albert_ngrams": Entry(
            "encoder",
            "like masked_lm, by short phrases",
            _ALBERT,
            77,
            title="N-gram masking (ALBERT)",
            formula="−mean_{t∈M} log p(x_t | x̃)\n"
            "with M sequences of one to three words, 15% of the tokens",
            use="Use it if the words of short phrases should be predicted together. Prefer "
            "`spanbert` for longer spans.",
        ),
        "masked_next_token": Entry(
            "decoder",
            "masked LM for a causal model",
            _GPT_BERT,
            77,
            attends="bidirectional",
            title="Masked next-token prediction (MNTP)",
            formula="−mean_{t∈M} log p(x_t | x̃), predicted at the slot before t\n"
            "with M 15% of the tokens",
            use="Use it to turn a trained causal decoder into an encoder. Prefer `gpt_bert` if "
            "the model must also generate text.",
            short_names=("mntp",),
        ),
        "gpt_bert": Entry(
            "decoder",
            "one model for causal and masked LM",
            _GPT_BERT,
            104,
            attends="bidirectional or causal",
            title="Masked and causal language modeling (GPT-BERT)",
            formula="−mean_t log p(x_t | c_t) over the targets of all rows\n"
            "with c_t = x̃ and t ∈ M in 15 of 16 rows, and c_t = x_<t for all t in the others",
            use="Use it for one small model that both fills in masks and generates text. Prefer "
            "`causal_lm` or `masked_lm` if one of the two is enough.",
        ),
        "antlm": Entry(
            "decoder",
            "learning from little text",
            "AntLM, arXiv:2412.03275",
            294,
            attends="bidirectional or causal",
            title="Alternating causal and masked language modeling (AntLM)",
            formula="−mean_t log p(x_t | x_<t) and −mean_{t∈M} log p(x_t | x̃), each for 100 "
            "steps in turn",
            use="Use it if there is little text. Prefer `gpt_bert` to mix both losses in every "
            "batch.",
        ),
        "masked_permuted_lm": Entry(
            "encoder",
            "masks predicted in a random order",
            "MPNet, arXiv:2004.09297",
            77,
            attends="permuted",
            title="Masked and permuted language modeling (MPNet)",
            formula="−mean_{t∈M} log p(x_t | x_u for u ∉ M, x_u for u before t in a random order "
            "of M, masks elsewhere)\n"
            "with M 15% of the tokens",
            use="Use it for encoders whose masked tokens should depend on each other. Prefer "
            "`masked_lm` if the model has relative positions, which this objective rejects.",
            short_names=("mpnet",),
        ),
        "permutation_lm": Entry(
            "decoder",
            "representations without masks",
            "XLNet, arXiv:1906.08237",
            85,
            attends="permuted",
            title="Permutation language modeling (XLNet)",
            formula="−mean_{t∈M} log p(x_t | the position t, x_u for u ∉ M, x_u for u before t in "
            "a random order of M)\n"
            "with M spans, a sixth of the tokens",
            use="Use it for representations from both sides without mask tokens in the inputs. "
            "Prefer `masked_permuted_lm` for an encoder: here each row takes twice its number of "
            "slots.",
            short_names=("plm", "xlnet"),
        ),
        "any_subset_lm": Entry(
            "decoder",
            "any order, several tokens at once",
            "A3, arXiv:2601.13228",
            512,
            attends="earlier groups",
            title="Any-order, any-subset autoregression (A3)",
            formula="−mean_t log p(x_t | the position t, x_u for u in groups before t's group)\n"
            "with random groups of 8 tokens in a random order",
            use="Use it for a decoder that predicts any tokens from any others, several at a time. "
            "Prefer `shuffled_lm` if training must be cheap, since each row takes twice its number "
            "of slots, and `masked_diffusion` for an encoder.",
            short_names=("a3",),
        ),
        "shuffled_lm": Entry(
            "decoder",
            "any order at the cost of causal_lm",
            "σ-GPT, arXiv:2404.09562",
            512,
            title="Shuffled autoregression (σ-GPT)",
            formula="−mean_t log p(x_t | the position t, x_u for u before t in a random order)",
            use="Use it for a causal decoder that predicts tokens in any order, such as for "
            "likelihoods of parts of a text. Prefer `masked_diffusion` for an encoder, and "
            "`any_subset_lm` if several tokens should be predicted at once.",
            short_names=("sigma_gpt",),
        ),
        "replaced_token_detection": Entry(
            "electra",
            "learning from every token",
            "ELECTRA, arXiv:2003.10555",
            514,
            title="Replaced token detection (ELECTRA)",
            formula="−mean_{t∈M} log p_G(x_t | x̃) + λ mean_t BCE(D_t(x̂), [x̂_t ≠ x_t])\n"
            "with x̂ the text with samples from the generator p_G at M, 15% of the tokens, and λ "
            "= 50",
            use="Use it for encoders with a small budget: the discriminator has a loss on every "
            "token. Prefer `masked_lm` if you want one network, or if the model must fill in "
            "masks.",
            short_names=("rtd", "electra"),
        ),
    },
    "diffusion and insertion": {
        "masked_diffusion": Entry(
            "encoder",
            "generating in any order",
            "LLaDA, arXiv:2502.09992",
            256,
            title="Masked diffusion",
            formula="−mean_t [t ∈ M] (1/r) log p(x_t | x̃)\n"
            "with each token masked with probability r, and r ~ U(0.001, 1) for each document",
            use="Use it for encoders that generate text in any order, and for constraints such as "
            "Sudoku. Prefer `causal_lm` for the best likelihood, and `block_diffusion` for texts "
            "of any length.",
            short_names=("mdlm", "llada"),
        ),
        "complementary_diffusion": Entry(
            "encoder",
            "a loss on every token of a text",
            "Fast-dLLM v2, arXiv:2509.26328",
            512,
            title="Masked diffusion with complementary masks",
            formula="−½ mean_t ([t ∈ M] (1/r) log p(x_t | x̃) + [t ∉ M] (1/(1−r)) log p(x_t | x̃′))\n"
            "with each token masked in x̃ with probability r and otherwise in x̃′, and r ~ "
            "U(0.001, 0.999) for each document",
            use="Use it if text is scarcer than computation: all tokens of a text have a loss "
            "whenever it is read. Prefer `masked_diffusion` if computation is scarce, since here "
            "each row takes twice its number of slots.",
        ),
        "frequency_informed_diffusion": Entry(
            "encoder",
            "rare words, with little text",
            "Frequency-informed, arXiv:2509.05056",
            256,
            title="Frequency-informed masked diffusion",
            formula="−mean_t [t ∈ M] (1/r) log p(x_t | x̃)\n"
            "with token t masked with a probability of mean r that rises with w_t^0.02,\n"
            "w_t from 0 to 1 by the number of words that are more frequent than x_t,\n"
            "and r ~ U(0.001, 1) for each document",
            use="Use it if there is little text, and rare words matter. Prefer `masked_diffusion` "
            "as the baseline. SeqIO tasks mask all words at the same rate, since they draw masks "
            "without counts.",
        ),
        "hybrid_diffusion": Entry(
            "encoder",
            "generating with corrections",
            "GIDD, arXiv:2503.04482",
            512,
            title="Hybrid diffusion (GIDD)",
            formula="mean_t w_t [KL(q_t ‖ p_t) + ρ_t − log ρ_t − 1]\n"
            "with q_t and p_t the distributions of the noised true token and the noised "
            "prediction, ρ_t = q_t(x̃_t) / p_t(x̃_t),\n"
            "w_t = 2 for a mask, 1 for a replaced token, and min(2, (B/N) √(τ/(1−τ))) for an "
            "unchanged token,\n"
            "τ ~ U(0, 1) for each document, N ids of text, and B = 2/9",
            use="Use it if a diffusion model should correct what it has written. Prefer "
            "`masked_diffusion` for a better likelihood.",
            short_names=("gidd",),
        ),
        "mixed_diffusion": Entry(
            "encoder",
            "masks, and corrections",
            "XDLM, arXiv:2602.01362",
            512,
            title="Mixed-noise diffusion (XDLM)",
            formula="mean_t w_t [KL(q_t ‖ p_t) + ρ_t − log ρ_t − 1]\n"
            "with q_t and p_t the distributions of the noised true token and the noised "
            "prediction, ρ_t = q_t(x̃_t) / p_t(x̃_t),\n"
            "w_t = 0.999 π(x̃_t) / (a q_t(x̃_t)) with π = 0.1 / N for each of N ids of text and 0.9 "
            "for the mask, a = 1 − 0.999 τ, and τ ~ U(0.001, 1) for each document",
            use="Use it if a diffusion model should generate in few steps and correct what it has "
            "written, with a loss that is a bound. Prefer `masked_diffusion` for a better "
            "likelihood, and `uniform_diffusion` if it should change tokens as often as "
            "possible.",
            short_names=("xdlm",),
        ),
        "uniform_diffusion": Entry(
            "encoder",
            "revising generated text",
            "Duo, arXiv:2506.10892",
            512,
            title="Uniform-state diffusion (Duo)",
            formula="mean_t w_t [KL(q_t ‖ p_t) + ρ_t − log ρ_t − 1]\n"
            "with q_t and p_t the distributions of the noised true token and the noised "
            "prediction, ρ_t = q_t(x̃_t) / p_t(x̃_t),\n"
            "w_t = 0.999 / (N a q_t(x̃_t)) for N ids of text, a = 1 − 0.999 τ, and τ ~ U(0.001, "
            "1) for each document",
            use="Use it if the model should be able to change any token again while it generates. "
            "Prefer `masked_diffusion` for a better likelihood, as in the paper and in our "
            "comparison.",
            short_names=("duo",),
        ),
        "unrolled_denoising": Entry(
            "step_unrolled",
            "correcting its own mistakes",
            "SUNDAE, arXiv:2112.06749",
            512,
            title="Step-unrolled denoising (SUNDAE)",
            formula="−(mean_t log p(x_t | x̃) + mean_t log p(x_t | x̂)) / 2\n"
            "with each token of x̃ random with probability r, r ~ U(0, 1) for each document, and x̂ "
            "drawn from p(· | x̃)",
            use="Use it if a model should generate in few steps and correct its own samples. "
            "Prefer `uniform_diffusion` for a loss that is a bound, and if training must be cheap, "
            "since a step costs about twice as much here.",
            short_names=("sundae",),
        ),
        "embedding_diffusion": Entry(
            "embedding_denoiser",
            "diffusion in a continuous space",
            "LangFlow, arXiv:2604.11748",
            512,
            title="Embedding diffusion (LangFlow)",
            formula="−mean_t log p(x_t | z)\n"
            "with z_t = a e(x_t) + s n_t, n_t ~ N(0, 1), and a² = 1 − s² by the document's noise "
            "level",
            use="Use it if a text should be generated by a continuous flow, all tokens at once. "
            "Prefer `masked_diffusion` for a loss that is a bound on the likelihood, and for any "
            "encoder.",
            short_names=("langflow",),
        ),
        "shifted_diffusion": Entry(
            "decoder",
            "turning a causal LM to diffusion",
            "DiffuLLaMA, arXiv:2410.17891",
            256,
            attends="bidirectional",
            title="Shifted masked diffusion (DiffuLLaMA)",
            formula="−mean_t [t ∈ M] (1/r) log p(x_t | x̃), predicted at the slot before t\n"
            "with each token masked with probability r, and r ~ U(0.001, 1) for each document",
            use="Use it to turn a trained causal decoder into a diffusion model. It also had a "
            "better bound than `masked_diffusion` in our comparison of models trained from "
            "scratch. Prefer `masked_diffusion` for an encoder.",
            short_names=("dream",),
        ),
        "dual_diffusion": Entry(
            "decoder",
            "one model, causal LM and diffusion",
            "Dual objective, arXiv:2512.14549",
            384,
            attends="bidirectional or causal",
            title="Causal language modeling and masked diffusion",
            formula="−mean_t log p(x_t | x_<t) in half of the rows, −mean_t [t ∈ M] (1/r) log "
            "p(x_t | x̃) in the others\n"
            "with r ~ U(0.001, 1) for each document, and masked tokens predicted at the slot "
            "before t",
            use="Use it for one decoder that generates from left to right and in any order. The "
            "paper finds a mixture best in all settings, with more causal rows if text is not "
            "repeated. Prefer `causal_lm` or `shifted_diffusion` if one order is enough.",
        ),
        "block_diffusion": Entry(
            "decoder",
            "parallel generation of any length",
            "BD3LM, arXiv:2503.09573",
            256,
            attends="block-causal",
            title="Block diffusion",
            formula="−mean_t [t ∈ M] (1/r_b) log p(x_t | x̃_b, x_<b)\n"
            "with b the block of t, its tokens masked with probability r_b, and r_b ~ U(0.001, 1) "
            "for each block",
            use="Use it to generate several tokens at once in texts of any length, or for a "
            "better likelihood than `masked_diffusion`. Prefer `masked_diffusion` if training "
            "must be cheap: here each row takes twice its number of slots.",
            short_names=("bd3lm",),
        ),
        "block_diffusion_encoder_decoder": Entry(
            "encoder_decoder",
            "fast generation of blocks",
            "E2D2, arXiv:2510.22852",
            256,
            run="block_diffusion_encoder_decoder",
            attends="block-causal, block",
            title="Block diffusion with an encoder-decoder",
            formula="−mean_t [t ∈ M] (1/r_b) log p(x_t | x̃_b, encoder(x_<b))\n"
            "with b the block of t, its tokens masked with probability r_b, and r_b ~ U(0.001, 1) "
            "for each block",
            use="Use it if blocks must be generated quickly: only a small decoder runs at each "
            "denoising step. Prefer `block_diffusion` for a single stack.",
            short_names=("e2d2",),
        ),
        "token_editing": Entry(
            "decoder",
            "blocks that edit themselves",
            "LLaDA2.1, arXiv:2602.08676",
            282,
            attends="block-causal",
            title="Block diffusion with token editing (LLaDA2.1)",
            formula="−mean_t [t ∈ M] (1/r_b) log p(x_t | x̃_b, x_<b) − mean_{t∈W} log p(x_t | x̃_b, "
            "x_<b)\n"
            "with b the block of t, its tokens masked with probability r_b, r_b ~ U(0.001, 1) for "
            "each block, and W one in ten of the tokens that are not masked, each replaced by "
            "another token",
            use="Use it if a model of blocks should correct tokens that it has written. Prefer "
            "`block_diffusion` for a better likelihood, and `mixed_diffusion` for wrong tokens "
            "with a loss that is a bound.",
            short_names=("t2t",),
        ),
        "tidar": Entry(
            "decoder",
            "faster decoding, the same text",
            "TiDAR, arXiv:2511.08923",
            512,
            attends="causal, and blocks of masks",
            title="Next token and masked blocks (TiDAR)",
            formula="−(α mean_t log p(x_t | x_<t) + mean_t log p(x_t | masks, x_<b)) / (1 + α)\n"
            "with b the first token of the block of t, all of whose tokens are masks, and α = 1",
            use="Use it for a causal model that drafts the next block itself: `pretrax predict "
            "--own_drafts` gives the text of greedy decoding in fewer calls. Prefer `causal_lm` "
            "if training must be cheap, since each row takes twice its number of slots, and "
            "`multi_token_prediction` for a few drafts at a lower cost.",
        ),
        "i_dlm": Entry(
            "decoder",
            "drafts that agree with causal text",
            "I-DLM, arXiv:2604.11035",
            512,
            attends="causal, and causal masks",
            title="Next token and causal masked blocks (I-DLM)",
            formula="−(α mean_t log p(x_t | x_<t) + mean_t log p(x_t | masks_<t, x_<s)) / (1 + α)\n"
            "with s the slot before the block of t, of masks alone, and α = 0.2",
            use="Use it like `tidar`, if a trained causal model should learn to draft: its masks "
            "attend causally and predict the token after them, as the model already does. Prefer "
            "`tidar` if masks should see their whole block.",
            short_names=("idlm",),
        ),
        "flexible_masked_diffusion": Entry(
            "encoder",
            "masks, and texts of any length",
            "FlexMDM, arXiv:2509.01025",
            257,
            title="Flexible masked diffusion (FlexMDM)",
            formula="mean_t (1/r) (−[t ∈ M] log p(x_t | x̃) + y_t − n_t + n_t log(n_t / y_t))\n"
            "with each token missing with probability r and masked with probability −r ln r,\n"
            "n_t the number of missing tokens after the remaining token t, predicted as y_t,\n"
            "and r ~ U(0.001, 1) for each document",
            use="Use it if a masked diffusion model should also learn how much text is missing and "
            "where. Prefer `insertion_lm` to generate text: with this model, `pretrax predict` "
            "fills in the masks of a text, but inserts no masks.",
            short_names=("flexmdm",),
        ),
        "causal_diffusion": Entry(
            "decoder",
            "one causal pass, drafts from masks",
            "CARD, arXiv:2601.22031",
            512,
            title="Causal diffusion (CARD)",
            formula="−(1/Σ_t w_t) Σ_t w_t log p(x_t | x̃_<t)\n"
            "with N = ⌊τ n⌋ of the last ⌊1.5 N⌋ tokens of a document masked, τ ~ U(0, 1), and w_t "
            "smaller with more masks shortly before t",
            use="Use it for a causal model that predicts several tokens at once from masks, "
            "without a second copy of the text in training. Prefer `tidar` or `i_dlm` if the model "
            "should also be trained on text without masks, and `causal_lm` for the best "
            "likelihood.",
            short_names=("card",),
        ),
        "insertion_lm": Entry(
            "encoder",
            "filling gaps of any length",
            "ILM, arXiv:2505.05755",
            258,
            title="Insertion language modeling (ILM)",
            formula="−mean_documents [(1/|M|) Σ_{t∈M} log p(s_t, x_t | x̃) + log p(c | x̃)]\n"
            "with M the dropped tokens, s_t the slot of the last remaining token before t, and c "
            "whether M is empty",
            use="Use it to fill gaps of unknown length at unknown places. Prefer "
            "`fill_in_the_middle` if the place is known.",
            short_names=("ilm",),
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
            formula="−mean_{t∈M} log p(x_t | x̃) − mean_pairs log p(c | x̃)\n"
            "with two texts A and B in x̃, M 15% of the tokens, and c whether B follows A",
            use="Use it to reproduce BERT. Prefer `masked_lm` otherwise: RoBERTa found that next "
            "sentence prediction does not help.",
        ),
        "next_sentence_prediction": Entry(
            "encoder",
            "pairs of texts",
            _BERT,
            1,
            run="sentence_pairs_after_bert",
            title="Next sentence prediction (NSP)",
            formula="−mean_pairs log p(c | A, B)\nwith c whether text B follows text A",
            use="Use it as a part of `bert`, for judgments on pairs of texts. Prefer "
            "`sentence_order_prediction`, which ALBERT found to be harder and more useful.",
            short_names=("nsp",),
        ),
        "sentence_order_prediction": Entry(
            "encoder",
            "coherence of texts",
            _ALBERT,
            1,
            run="sentence_pairs_after_bert",
            title="Sentence order prediction (SOP)",
            formula="−mean_pairs log p(c | A, B)\n"
            "with A and B the two parts of a text, and c whether they are in order",
            use="Use it in addition to `masked_lm`, to teach coherence. Prefer `masked_lm` alone "
            "if no task is about pairs of texts.",
            short_names=("sop",),
        ),
        "contrastive": Entry(
            "encoder",
            "embeddings without labels",
            "SimCSE, arXiv:2104.08821",
            2,
            run="text_embeddings",
            title="Contrastive learning of text embeddings (SimCSE)",
            formula="−mean_i log( exp(s(a_i, b_i)/τ) / Σ_j exp(s(a_i, b_j)/τ) )\n"
            "with two views a_i and b_i of each text of the batch, s the cosine, and τ = 0.05",
            use="Use it for embeddings without labels, after `masked_lm`. Prefer "
            "`contrastive_pairs` if you have pairs of texts.",
            short_names=("simcse",),
        ),
        "retromae": Entry(
            "masked_autoencoder",
            "embeddings for search",
            "RetroMAE, arXiv:2205.12035",
            512,
            title="Masked autoencoding of texts (RetroMAE)",
            formula="−mean_{t∈M} log p(x_t | x̃) − mean_t log p(x_t | h, x_u for u ∈ V_t)\n"
            "with M 30% of the tokens, h the [CLS] state of x̃, and V_t a random half of the "
            "other tokens",
            use="Use it before contrastive training of embeddings for search. Prefer "
            "`contrastive` if embeddings should be useful without further training.",
        ),
        "contrastive_pairs": Entry(
            "two_towers",
            "search: questions and answers",
            "CLIP, arXiv:2103.00020",
            2,
            title="Contrastive learning on text pairs (CLIP)",
            formula="−½ mean_i [log softmax_j(s(a_i, b_j)/τ)_i + log softmax_j(s(a_j, b_i)/τ)_i]\n"
            "with the pairs (a_i, b_i) of the batch, s the cosine, and τ learned",
            use="Use it for search, with pairs such as questions and answers. Prefer "
            "`contrastive` for text without pairs.",
            short_names=("clip",),
        ),
    },
}

CATALOG = {name: entry for family in FAMILIES.values() for name, entry in family.items()}

ALIASES = {alias: name for name, entry in CATALOG.items() for alias in entry.short_names}


def find(name: str) -> str:
    """Returns the catalog name of an objective, from that name or a short name.

    >>> find("mlm"), find("Span-Corruption")
    ('masked_lm', 'span_corruption')

    Raises ValueError for any other name. The message lists the nearest names.
    """
    plain = name.lower().replace("-", "_")
    if (full_name := ALIASES.get(plain, plain)) in CATALOG:
        return full_name
    hint = near(plain, [*CATALOG, *ALIASES], count=3, cutoff=0.55)
    raise ValueError(f"There is no objective {name!r}{hint} `pretrax show --list` prints all.")


def run_of(name: str) -> str:
    """Returns the small run that trains this objective on a laptop.

    >>> run_of("bart"), run_of("sentence_order_prediction")
    ('quickstart', 'sentence_pairs_after_bert')
    """
    entry = CATALOG[name]
    return entry.run or ARCHITECTURES[entry.architecture].small_run
