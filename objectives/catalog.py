"""Facts about each objective of `gin_configs/objectives`, as plain data."""

from typing import NamedTuple

from ..constraints import near


class Entry(NamedTuple):
    """Facts about an objective. Its page in the documentation has its loss, and when to use it."""

    architecture: str  # one of `ARCHITECTURES`
    good_for: str
    paper: str  # short name and arXiv number, or the address of a pull request without a paper
    title: str  # name that the field uses
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
            title="Causal language modeling",
            short_names=("clm",),
        ),
        "masked_input_next_token": Entry(
            "decoder",
            "finding facts in long contexts",
            "MEAP, arXiv:2502.07490",
            title="Next-token prediction with masked inputs (MEAP)",
            short_names=("meap",),
        ),
        "masked_input_regularization": Entry(
            "decoder",
            "many epochs on little text",
            "MIR, arXiv:2606.06888",
            title="Masked-input regularization (MIR)",
            short_names=("mir",),
        ),
        "prefix_lm": Entry(
            "encoder_decoder",
            "text-to-text; continuing a text",
            _T5,
            title="Prefix language modeling",
        ),
        "multi_token_prediction": Entry(
            "decoder",
            "code; faster decoding",
            "MTP, arXiv:2404.19737",
            title="Multi-token prediction",
            short_names=("mtp",),
        ),
        "token_superposition": Entry(
            "decoder",
            "causal pre-training on much text",
            "TST, arXiv:2605.06546",
            title="Token superposition training (TST)",
        ),
        "mutor": Entry(
            "decoder",
            "looking ahead without heads",
            "MuToR, arXiv:2505.10518",
            attends="causal, and registers",
            title="Multi-token prediction with registers (MuToR)",
        ),
        "annealed_multi_token_prediction": Entry(
            "decoder",
            "causal pre-training in few steps",
            "modded-nanogpt, github.com/KellerJordan/modded-nanogpt/pull/178",
            title="Annealed multi-token prediction",
        ),
        "prefix_token_prediction": Entry(
            "decoder",
            "causal pre-training in few steps",
            "modded-nanogpt, github.com/KellerJordan/modded-nanogpt/pull/337",
            title="Prefix token prediction",
            short_names=("ptp",),
        ),
        "token_order_prediction": Entry(
            "decoder",
            "looking ahead at little cost",
            "TOP, arXiv:2508.19228",
            title="Token order prediction (TOP)",
            short_names=("top",),
        ),
        "future_summary": Entry(
            "decoder",
            "planning further ahead",
            "FSP, arXiv:2510.14751",
            title="Future summary prediction (FSP)",
            short_names=("fsp",),
        ),
        "next_latent": Entry(
            "decoder",
            "states that summarize text",
            "NextLat, arXiv:2511.05963",
            title="Next-latent prediction (NextLat)",
            short_names=("nextlat",),
        ),
        "belief_state": Entry(
            "decoder",
            "planning further ahead",
            "BST, arXiv:2410.23506",
            title="Belief state transformer (BST)",
            short_names=("bst",),
        ),
        "next_implicit_token": Entry(
            "decoder",
            "states beyond the next token",
            "NITP, arXiv:2605.24956",
            title="Next implicit token prediction (NITP)",
            short_names=("nitp",),
        ),
        "goldfish_loss": Entry(
            "decoder",
            "text that must not be memorized",
            "Goldfish loss, arXiv:2406.10209",
            title="Goldfish loss",
            short_names=("goldfish",),
        ),
        "distilled_lm": Entry(
            "decoder",
            "small models with a good teacher",
            "Goyal et al. 2025, arXiv:2509.01649",
            run="distillation",
            title="Distilled language modeling",
            short_names=("kd",),
        ),
        "number_token_loss": Entry(
            "decoder",
            "arithmetic",
            "NTL, arXiv:2411.02083",
            title="Number token loss (NTL)",
            short_names=("ntl",),
        ),
        "llm_jepa": Entry(
            "decoder",
            "pairs such as a text and its code",
            "LLM-JEPA, arXiv:2509.14252",
            run="llm_jepa",
            title="Joint-embedding prediction (LLM-JEPA)",
            short_names=("jepa",),
        ),
    },
    "span corruption and mixtures": {
        "span_corruption": Entry(
            "encoder_decoder",
            "fine-tuning to text-to-text tasks",
            _T5,
            span_distribution="composition",
            title="Span corruption",
            short_names=("t5",),
        ),
        "iid_denoising": Entry(
            "encoder_decoder",
            "ablation: tokens, not spans",
            _T5,
            title="Independent token denoising",
        ),
        "deshuffling": Entry(
            "encoder_decoder",
            "ablation: word order only",
            _T5,
            title="Deshuffling",
        ),
        "ul2": Entry(
            "encoder_decoder",
            "understanding and generating",
            _UL2,
            span_distribution="composition",
            title="Mixture of denoisers (UL2)",
        ),
        "ul2_tutorial": Entry(
            "encoder_decoder",
            "a lighter mixture than UL2",
            _UL2,
            title="Three-denoiser mixture (UL2 tutorial)",
        ),
        "ul2r": Entry(
            "decoder",
            "adapting a causal model",
            "U-PaLM, arXiv:2210.11399",
            attends="prefix",
            span_distribution="composition",
            title="Continued training with denoisers (UL2R)",
        ),
        "spans_and_prefix": Entry(
            "encoder_decoder",
            "a start for your own mixture",
            _T5,
            span_distribution="composition",
            title="Span corruption and prefix language modeling",
        ),
        "blank_infilling": Entry(
            "decoder",
            "denoising with a single stack",
            "GLM, arXiv:2103.10360",
            attends="prefix",
            title="Autoregressive blank infilling (GLM)",
            short_names=("glm",),
        ),
        "mass": Entry(
            "encoder_decoder",
            "translation and rewriting",
            "MASS, arXiv:1905.02450",
            title="Masked sequence-to-sequence pre-training (MASS)",
        ),
        "gap_sentences": Entry(
            "encoder_decoder",
            "summarization",
            "PEGASUS, arXiv:1912.08777",
            title="Gap sentences generation (PEGASUS)",
            short_names=("pegasus",),
        ),
    },
    "denoising of the whole text": {
        "bart": Entry(
            "encoder_decoder",
            "summarization and other rewriting",
            _BART,
            title="BART denoising",
        ),
        "text_infilling": Entry(
            "encoder_decoder",
            "inferring how much is missing",
            _BART,
            span_distribution="poisson",
            title="Text infilling",
        ),
        "token_masking": Entry(
            "encoder_decoder",
            "ablation: masks only",
            _BART,
            title="Token masking",
        ),
        "token_deletion": Entry(
            "encoder_decoder",
            "ablation: finding deleted tokens",
            _BART,
            title="Token deletion",
        ),
        "sentence_permutation": Entry(
            "encoder_decoder",
            "ablation: order of sentences",
            _BART,
            title="Sentence permutation",
        ),
        "document_rotation": Entry(
            "encoder_decoder",
            "ablation: where a text begins",
            _BART,
            title="Document rotation",
        ),
    },
    "infilling": {
        "fill_in_the_middle": Entry(
            "decoder",
            "code completion at the cursor",
            "FIM, arXiv:2207.14255",
            title="Fill in the middle (FIM)",
            short_names=("fim",),
        ),
        "causal_masking": Entry(
            "decoder",
            "infilling long spans",
            "CM3, arXiv:2201.07520",
            title="Causal masking (CM3)",
            short_names=("cm3",),
        ),
    },
    "masked language modeling": {
        "masked_lm": Entry(
            "encoder",
            "classification, tagging, retrieval",
            _BERT,
            title="Masked language modeling",
            short_names=("mlm",),
        ),
        "adaptive_masked_lm": Entry(
            "encoder",
            "learning from little text",
            "AMLM, arXiv:2510.20475",
            title="Adaptive masked language modeling (AMLM)",
            short_names=("amlm",),
        ),
        "whole_word_masking": Entry(
            "encoder",
            "like masked_lm, by whole words",
            _BERT,
            title="Whole-word masking",
            short_names=("wwm",),
        ),
        "spanbert": Entry(
            "encoder",
            "extractive question answering",
            "SpanBERT, arXiv:1907.10529",
            title="SpanBERT masking",
        ),
        "albert_ngrams": Entry(
            "encoder",
            "like masked_lm, by short phrases",
            _ALBERT,
            title="N-gram masking (ALBERT)",
        ),
        "masked_next_token": Entry(
            "decoder",
            "masked LM for a causal model",
            _GPT_BERT,
            attends="bidirectional",
            title="Masked next-token prediction (MNTP)",
            short_names=("mntp",),
        ),
        "gpt_bert": Entry(
            "decoder",
            "one model for causal and masked LM",
            _GPT_BERT,
            attends="bidirectional or causal",
            title="Masked and causal language modeling (GPT-BERT)",
        ),
        "antlm": Entry(
            "decoder",
            "learning from little text",
            "AntLM, arXiv:2412.03275",
            attends="bidirectional or causal",
            title="Alternating causal and masked language modeling (AntLM)",
        ),
        "masked_permuted_lm": Entry(
            "encoder",
            "masks predicted in a random order",
            "MPNet, arXiv:2004.09297",
            attends="permuted",
            title="Masked and permuted language modeling (MPNet)",
            short_names=("mpnet",),
        ),
        "permutation_lm": Entry(
            "decoder",
            "representations without masks",
            "XLNet, arXiv:1906.08237",
            attends="permuted",
            title="Permutation language modeling (XLNet)",
            short_names=("plm", "xlnet"),
        ),
        "any_subset_lm": Entry(
            "decoder",
            "any order, several tokens at once",
            "A3, arXiv:2601.13228",
            attends="earlier groups",
            title="Any-order, any-subset autoregression (A3)",
            short_names=("a3",),
        ),
        "shuffled_lm": Entry(
            "decoder",
            "any order at the cost of causal_lm",
            "σ-GPT, arXiv:2404.09562",
            title="Shuffled autoregression (σ-GPT)",
            short_names=("sigma_gpt",),
        ),
        "replaced_token_detection": Entry(
            "electra",
            "learning from every token",
            "ELECTRA, arXiv:2003.10555",
            title="Replaced token detection (ELECTRA)",
            short_names=("rtd", "electra"),
        ),
    },
    "diffusion and insertion": {
        "masked_diffusion": Entry(
            "encoder",
            "generating in any order",
            "LLaDA, arXiv:2502.09992",
            title="Masked diffusion",
            short_names=("mdlm", "llada"),
        ),
        "complementary_diffusion": Entry(
            "encoder",
            "a loss on every token of a text",
            "Fast-dLLM v2, arXiv:2509.26328",
            title="Masked diffusion with complementary masks",
        ),
        "frequency_informed_diffusion": Entry(
            "encoder",
            "rare words, with little text",
            "Frequency-informed, arXiv:2509.05056",
            title="Frequency-informed masked diffusion",
        ),
        "hybrid_diffusion": Entry(
            "encoder",
            "generating with corrections",
            "GIDD, arXiv:2503.04482",
            title="Hybrid diffusion (GIDD)",
            short_names=("gidd",),
        ),
        "mixed_diffusion": Entry(
            "encoder",
            "masks, and corrections",
            "XDLM, arXiv:2602.01362",
            title="Mixed-noise diffusion (XDLM)",
            short_names=("xdlm",),
        ),
        "uniform_diffusion": Entry(
            "encoder",
            "revising generated text",
            "Duo, arXiv:2506.10892",
            title="Uniform-state diffusion (Duo)",
            short_names=("duo",),
        ),
        "unrolled_denoising": Entry(
            "step_unrolled",
            "correcting its own mistakes",
            "SUNDAE, arXiv:2112.06749",
            title="Step-unrolled denoising (SUNDAE)",
            short_names=("sundae",),
        ),
        "embedding_diffusion": Entry(
            "embedding_denoiser",
            "diffusion in a continuous space",
            "LangFlow, arXiv:2604.11748",
            title="Embedding diffusion (LangFlow)",
            short_names=("langflow",),
        ),
        "shifted_diffusion": Entry(
            "decoder",
            "turning a causal LM to diffusion",
            "DiffuLLaMA, arXiv:2410.17891",
            attends="bidirectional",
            title="Shifted masked diffusion (DiffuLLaMA)",
            short_names=("dream",),
        ),
        "dual_diffusion": Entry(
            "decoder",
            "one model, causal LM and diffusion",
            "Dual objective, arXiv:2512.14549",
            attends="bidirectional or causal",
            title="Causal language modeling and masked diffusion",
        ),
        "block_diffusion": Entry(
            "decoder",
            "parallel generation of any length",
            "BD3LM, arXiv:2503.09573",
            attends="block-causal",
            title="Block diffusion",
            short_names=("bd3lm",),
        ),
        "block_diffusion_encoder_decoder": Entry(
            "encoder_decoder",
            "fast generation of blocks",
            "E2D2, arXiv:2510.22852",
            run="block_diffusion_encoder_decoder",
            attends="block-causal, block",
            title="Block diffusion with an encoder-decoder",
            short_names=("e2d2",),
        ),
        "token_editing": Entry(
            "decoder",
            "blocks that edit themselves",
            "LLaDA2.1, arXiv:2602.08676",
            attends="block-causal",
            title="Block diffusion with token editing (LLaDA2.1)",
            short_names=("t2t",),
        ),
        "tidar": Entry(
            "decoder",
            "faster decoding, the same text",
            "TiDAR, arXiv:2511.08923",
            attends="causal, and blocks of masks",
            title="Next token and masked blocks (TiDAR)",
        ),
        "i_dlm": Entry(
            "decoder",
            "drafts that agree with causal text",
            "I-DLM, arXiv:2604.11035",
            attends="causal, and causal masks",
            title="Next token and causal masked blocks (I-DLM)",
            short_names=("idlm",),
        ),
        "flexible_masked_diffusion": Entry(
            "encoder",
            "masks, and texts of any length",
            "FlexMDM, arXiv:2509.01025",
            title="Flexible masked diffusion (FlexMDM)",
            short_names=("flexmdm",),
        ),
        "causal_diffusion": Entry(
            "decoder",
            "one causal pass, drafts from masks",
            "CARD, arXiv:2601.22031",
            title="Causal diffusion (CARD)",
            short_names=("card",),
        ),
        "insertion_lm": Entry(
            "encoder",
            "filling gaps of any length",
            "ILM, arXiv:2505.05755",
            title="Insertion language modeling (ILM)",
            short_names=("ilm",),
        ),
    },
    "sentences and embeddings": {
        "bert": Entry(
            "encoder",
            "BERT as published",
            _BERT,
            run="sentence_pairs",
            title="BERT pre-training",
        ),
        "next_sentence_prediction": Entry(
            "encoder",
            "pairs of texts",
            _BERT,
            run="sentence_pairs_after_bert",
            title="Next sentence prediction (NSP)",
            short_names=("nsp",),
        ),
        "sentence_order_prediction": Entry(
            "encoder",
            "coherence of texts",
            _ALBERT,
            run="sentence_pairs_after_bert",
            title="Sentence order prediction (SOP)",
            short_names=("sop",),
        ),
        "contrastive": Entry(
            "encoder",
            "embeddings without labels",
            "SimCSE, arXiv:2104.08821",
            run="text_embeddings",
            title="Contrastive learning of text embeddings (SimCSE)",
            short_names=("simcse",),
        ),
        "retromae": Entry(
            "masked_autoencoder",
            "embeddings for search",
            "RetroMAE, arXiv:2205.12035",
            title="Masked autoencoding of texts (RetroMAE)",
        ),
        "contrastive_pairs": Entry(
            "two_towers",
            "search: questions and answers",
            "CLIP, arXiv:2103.00020",
            title="Contrastive learning on text pairs (CLIP)",
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
    own = (
        "Your own objective cannot be named here."
        if "." in name
        else "Give your own as MODULE.BUILDER."
    )
    raise ValueError(
        f"There is no objective {name!r}{hint} `pretrax show --list` prints all. {own}"
    )


def run_of(name: str) -> str:
    """Returns the small run that trains this objective on a laptop.

    >>> run_of("bart"), run_of("sentence_order_prediction")
    ('quickstart', 'sentence_pairs_after_bert')
    """
    entry = CATALOG[name]
    return entry.run or ARCHITECTURES[entry.architecture].small_run
