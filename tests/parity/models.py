"""Small random models of `transformers`, one for each family, with every parameter perturbed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers

from pretrax.models.hugging_face import open_source, read_params, recognize
from pretrax.models.trees import nested

torch.set_num_threads(1)  # with several threads, matrices of 32 took 6 ms each

VOCAB = 60
ESM_MASK = 14  # in the first of the documents of test_parity alone
_WIDTHS = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
_IDS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
_T5 = dict(
    d_model=32,
    d_kv=6,
    d_ff=48,
    num_layers=2,
    num_decoder_layers=3,
    num_heads=4,
    dropout_rate=0.0,
    decoder_start_token_id=0,
)
_NO_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=500_000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=16,
)


def _t5(feed_forward, tied, model=transformers.T5ForConditionalGeneration, **settings):
    config = model.config_class(
        vocab_size=VOCAB,
        feed_forward_proj=feed_forward,
        tie_word_embeddings=tied,
        **_T5,
        **settings,
    )
    made = model(config)
    if tied and model is transformers.MT5ForConditionalGeneration:  # its logits are never scaled
        made.shared.weight.data /= 10
    if not tied and getattr(made, "lm_head", None) and made.lm_head.weight is made.shared.weight:
        # Logits are near 1. At 30, with embeddings of deviation 1, float32 is off by 1e-4.
        made.lm_head.weight = torch.nn.Parameter(made.lm_head.weight.detach() / 10)
        if model is transformers.T5ForConditionalGeneration:  # the other models always tie
            config.tie_word_embeddings = made.config.tie_word_embeddings = False
    return made


def _decoder(model, **settings):
    widths = _WIDTHS | dict(num_key_value_heads=2)
    return model(model.config_class(vocab_size=VOCAB, **_IDS, **(widths | settings)))


def _experts(model, **settings):
    experts = dict(num_local_experts=5, num_experts=5, num_experts_per_tok=2)
    return _decoder(model, **experts, attn_implementation="eager", **settings)


def _switch(model, **settings):
    widths = {name: value for name, value in _T5.items() if "layers" not in name}
    layers = dict(num_layers=4, num_decoder_layers=2)
    sparse = dict(num_sparse_encoder_layers=2, num_sparse_decoder_layers=1)
    switch_settings = dict(num_experts=4, expert_capacity=1000, router_jitter_noise=0.0)
    return model(
        model.config_class(
            vocab_size=VOCAB, **widths, **layers, **(switch_settings | sparse | settings)
        )
    )


def _gpt2(model, **settings):
    widths = dict(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=40)
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return model(
        transformers.GPT2Config(**widths, **dropout, bos_token_id=1, eos_token_id=2, **settings)
    )


def _bart(model, **settings):
    return model(
        model.config_class(
            vocab_size=VOCAB,
            d_model=32,
            encoder_layers=2,
            decoder_layers=3,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            max_position_embeddings=40,
            dropout=0.0,
            **(_IDS | dict(pad_token_id=1, bos_token_id=0)),
            **settings,
        )
    )


def _gemma2(model, **settings):
    gemma_settings = dict(
        sliding_window=5,
        head_dim=10,
        query_pre_attn_scalar=12,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
        attn_implementation="eager",  # another attention implementation would ignore the softcap
        num_hidden_layers=4,
    )
    return _decoder(model, **gemma_settings, **settings)


def _bert(model, **settings):
    widths = dict(vocab_size=VOCAB, max_position_embeddings=40, **_WIDTHS, **_NO_DROPOUT)
    return model(transformers.BertConfig(**widths, **settings))


def _roberta(model, **settings):
    return model(
        model.config_class(
            vocab_size=VOCAB,
            max_position_embeddings=42,
            type_vocab_size=1,
            layer_norm_eps=1e-5,
            **_WIDTHS,
            **_NO_DROPOUT,
            **(_IDS | dict(pad_token_id=1, bos_token_id=0)),
            **settings,
        )
    )


def _esm(model, rounded=False, **settings):
    """Returns ESM-2. Its mask is in the documents of `test_parity`, in other shares."""
    esm_settings = dict(
        vocab_size=VOCAB,
        pad_token_id=1,
        mask_token_id=ESM_MASK,
        max_position_embeddings=42,
        position_embedding_type="rotary",
        token_dropout=True,
    )
    made = model(transformers.EsmConfig(**(_WIDTHS | _NO_DROPOUT | esm_settings | settings)))
    if rounded:  # as in the published models
        frequencies = made.base_model.rotary_embeddings.inv_freq
        frequencies.copy_(frequencies.half())
    return made


def _electra(model, **settings):
    widths = dict(vocab_size=VOCAB, max_position_embeddings=40, embedding_size=32)
    return model(transformers.ElectraConfig(**(widths | _WIDTHS | _NO_DROPOUT | settings)))


def _distilbert(model, **settings):
    widths = dict(dim=32, n_layers=2, n_heads=4, hidden_dim=48, dropout=0.0, attention_dropout=0.0)
    return model(
        transformers.DistilBertConfig(
            vocab_size=VOCAB, max_position_embeddings=40, **widths, **settings
        )
    )


def _modernbert(model, **settings):
    return model(
        transformers.ModernBertConfig(
            vocab_size=VOCAB,
            local_attention=8,
            **(_WIDTHS | dict(num_hidden_layers=4)),
            **_IDS,
            cls_token_id=1,
            sep_token_id=2,
            **settings,
        )
    )


def _modernbert_decoder(model, **settings):
    widths = _WIDTHS | dict(num_hidden_layers=4, local_attention=12)
    return model(model.config_class(vocab_size=VOCAB, **_IDS, **(widths | settings)))


def _gemma3(model, **settings):
    gemma_settings = dict(
        sliding_window=5, head_dim=10, query_pre_attn_scalar=12, num_hidden_layers=4
    )
    kinds = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
    return _decoder(model, layer_types=kinds, **(gemma_settings | settings))


def _t5gemma(model, **settings):
    """Returns T5Gemma with stacks of Gemma 2, or of Gemma 3 with an unused image tower."""
    widths = _WIDTHS | _IDS | dict(num_key_value_heads=2, head_dim=10, query_pre_attn_scalar=12)
    pattern = ["sliding_attention", "full_attention"]
    stack_settings = widths | dict(vocab_size=VOCAB, sliding_window=6, layer_types=pattern)
    encoder = stack_settings
    decoder = stack_settings | dict(num_hidden_layers=4, layer_types=2 * pattern)
    if model is transformers.T5Gemma2ForConditionalGeneration:
        tower = dict(model_type="siglip_vision_model", hidden_size=8, num_hidden_layers=0)
        tower |= dict(num_attention_heads=1, image_size=4, patch_size=2, vision_use_head=False)
        encoder = dict(text_config=encoder, vision_config=tower, mm_tokens_per_image=4)
    else:
        caps = dict(attn_logit_softcapping=2.0, final_logit_softcapping=3.0)
        encoder, decoder = encoder | caps, decoder | caps
    return model(
        model.config_class(
            encoder=encoder,
            decoder=decoder,
            vocab_size=VOCAB,
            attn_implementation="eager",
            **settings,
        )
    )


MODELS = {
    "t5": lambda: _t5("relu", True),
    "t5_1_1": lambda: _t5("gated-gelu", False),
    "ul2": lambda: _t5("gated-silu", False),
    "mt5": lambda: _t5("gated-gelu", False, transformers.MT5ForConditionalGeneration),
    "mt5_tied": lambda: _t5("gated-gelu", True, transformers.MT5ForConditionalGeneration),
    "umt5": lambda: _t5("gated-gelu", True, transformers.UMT5ForConditionalGeneration),
    "umt5_untied": lambda: _t5("gated-gelu", False, transformers.UMT5ForConditionalGeneration),
    "bert": lambda: _bert(transformers.BertForPreTraining),
    "roberta": lambda: _roberta(transformers.RobertaForMaskedLM),
    "roberta_relu": lambda: _roberta(transformers.RobertaForMaskedLM, hidden_act="relu"),
    "xlm_roberta": lambda: _roberta(transformers.XLMRobertaForMaskedLM),
    "camembert": lambda: _roberta(transformers.CamembertForMaskedLM),
    "distilbert": lambda: _distilbert(transformers.DistilBertForMaskedLM),
    "electra": lambda: _electra(transformers.ElectraForMaskedLM),
    "electra_small": lambda: _electra(transformers.ElectraForMaskedLM, embedding_size=20),
    "electra_relu": lambda: _electra(transformers.ElectraForMaskedLM, hidden_act="relu"),
    "esm": lambda: _esm(transformers.EsmForMaskedLM, rounded=True),
    "esm_bare": lambda: _esm(transformers.EsmForMaskedLM, token_dropout=False, rope_theta=500.0),
    "esm_1b": lambda: _esm(
        transformers.EsmForMaskedLM, position_embedding_type="absolute", emb_layer_norm_before=True
    ),
    "modernbert": lambda: _modernbert(transformers.ModernBertForMaskedLM),
    "modernbert_decoder": lambda: _modernbert_decoder(transformers.ModernBertDecoderForCausalLM),
    "eurobert": lambda: _decoder(transformers.EuroBertForMaskedLM),
    "bart": lambda: _bart(transformers.BartForConditionalGeneration),
    "mbart": lambda: _bart(transformers.MBartForConditionalGeneration, scale_embedding=True),
    "pegasus": lambda: _bart(
        transformers.PegasusForConditionalGeneration,
        activation_function="relu",
        scale_embedding=True,
    ),
    "gpt2": lambda: _gpt2(transformers.GPT2LMHeadModel),
    "llama": lambda: _decoder(transformers.LlamaForCausalLM),
    "llama3": lambda: _decoder(
        transformers.LlamaForCausalLM, rope_parameters=LLAMA3, tie_word_embeddings=True
    ),
    "mistral": lambda: _decoder(transformers.MistralForCausalLM, sliding_window=5, head_dim=8),
    "qwen2": lambda: _decoder(transformers.Qwen2ForCausalLM),
    "qwen3": lambda: _decoder(transformers.Qwen3ForCausalLM, head_dim=10),
    "gemma2": lambda: _gemma2(transformers.Gemma2ForCausalLM),
    "gemma3": lambda: _gemma3(transformers.Gemma3ForCausalLM),
    "t5gemma": lambda: _t5gemma(transformers.T5GemmaForConditionalGeneration),
    "t5gemma2": lambda: _t5gemma(transformers.T5Gemma2ForConditionalGeneration),
    "olmo2": lambda: _decoder(transformers.Olmo2ForCausalLM, rms_norm_eps=1e-5),
    "mixtral": lambda: _experts(transformers.MixtralForCausalLM),
    "mixtral_window": lambda: _experts(transformers.MixtralForCausalLM, sliding_window=5),
    "qwen3_moe": lambda: _experts(
        transformers.Qwen3MoeForCausalLM, head_dim=10, moe_intermediate_size=20
    ),
    "qwen3_moe_every": lambda: _experts(
        transformers.Qwen3MoeForCausalLM,
        num_hidden_layers=4,
        decoder_sparse_step=2,
        moe_intermediate_size=48,  # width of the dense layers
    ),
    "olmoe": lambda: _experts(transformers.OlmoeForCausalLM),
    "switch": lambda: _switch(transformers.SwitchTransformersForConditionalGeneration),
    "switch_full": lambda: _switch(
        transformers.SwitchTransformersForConditionalGeneration, expert_capacity=2
    ),
    "switch_every": lambda: _switch(
        transformers.SwitchTransformersForConditionalGeneration,
        num_sparse_encoder_layers=4,
        num_sparse_decoder_layers=2,
    ),
}


_NAMES = dict(id2label={0: "bad", 1: "so so", 2: "good"})
# The same models with other heads: the class to build, and our name of the head.
OTHER_HEADS = {
    "bert_mlm": (lambda: _bert(transformers.BertForMaskedLM), "vocabulary"),
    "bert_pair": (lambda: _bert(transformers.BertForNextSentencePrediction), "pair"),
    "bert_base": (lambda: _bert(transformers.BertModel), "embedding"),
    "bert_named": (lambda: _bert(transformers.BertForSequenceClassification, **_NAMES), "classes"),
    "bert_one": (
        lambda: _bert(transformers.BertForSequenceClassification, num_labels=1),
        "classes",
    ),
    "roberta_named": (
        lambda: _roberta(
            transformers.RobertaForSequenceClassification,
            problem_type="multi_label_classification",
            **_NAMES,
        ),
        "classes",
    ),
    "llama_three": (
        lambda: _decoder(
            transformers.LlamaForSequenceClassification, tie_word_embeddings=True, **_NAMES
        ),
        "classes",
    ),
    "bart_classes": (lambda: _bart(transformers.BartForSequenceClassification), "classes"),
    "mbart_classes": (lambda: _bart(transformers.MBartForSequenceClassification), "classes"),
    "t5_classes": (lambda: _t5("relu", True, transformers.T5ForSequenceClassification), "classes"),
    "t5_1_1_classes": (
        lambda: _t5("gated-gelu", False, transformers.T5ForSequenceClassification, **_NAMES),
        "classes",
    ),
    "umt5_classes": (
        lambda: _t5("gated-gelu", True, transformers.UMT5ForSequenceClassification),
        "classes",
    ),
    "eurobert_token_classes": (
        lambda: _decoder(transformers.EuroBertForTokenClassification),
        "token_classes",
    ),
    "roberta_relu_classes": (
        lambda: _roberta(transformers.RobertaForSequenceClassification, hidden_act="relu"),
        "classes",
    ),
    "electra_relu_classes": (
        lambda: _electra(transformers.ElectraForSequenceClassification, hidden_act="relu"),
        "classes",
    ),
    "electra_relu_replaced": (
        lambda: _electra(transformers.ElectraForPreTraining, hidden_act="relu"),
        "replaced",
    ),
    "electra_replaced": (
        lambda: _electra(transformers.ElectraForPreTraining, embedding_size=20),
        "replaced",
    ),
} | {
    f"{kind}_{head}": (functools.partial(make, getattr(transformers, f"{name}{theirs}")), head)
    for kind, name, make in (
        ("bert", "Bert", _bert),
        ("roberta", "Roberta", _roberta),
        ("distilbert", "DistilBert", _distilbert),
        ("electra", "Electra", _electra),
        ("esm", "Esm", _esm),
        ("modernbert", "ModernBert", _modernbert),
        ("gpt2", "GPT2", _gpt2),
        ("llama", "Llama", _decoder),
        ("mistral", "Mistral", functools.partial(_decoder, sliding_window=5, head_dim=8)),
        ("qwen2", "Qwen2", _decoder),
        ("qwen3", "Qwen3", functools.partial(_decoder, head_dim=10)),
        ("gemma2", "Gemma2", _gemma2),
        ("gemma3", "Gemma3Text", _gemma3),
        ("olmo2", "Olmo2", _decoder),
    )
    for head, theirs in (
        ("classes", "ForSequenceClassification"),
        ("token_classes", "ForTokenClassification"),
    )
    if hasattr(transformers, f"{name}{theirs}")
}


def perturbed(name: str):
    """Returns the model with noise of deviation 0.2 on every saved parameter and buffer.

    At initialization biases are 0 and norms are 1, which would hide many mistakes.
    """
    torch.manual_seed(0)
    made = OTHER_HEADS[name][0] if name in OTHER_HEADS else MODELS[name]
    model = made().eval().float()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
        if name in ("bart", "mbart", "pegasus"):
            model.final_logits_bias += 0.2 * torch.randn(1, VOCAB, generator=generator)
    return model


def import_model(folder):
    """Returns our model of a directory that `transformers` saved, and its parameters."""
    source = open_source(str(folder))
    found = recognize(source)
    return found, jax.tree.map(jnp.asarray, nested(read_params(source, found)))


def tokens(rows: int, length: int, seed: int) -> np.ndarray:
    """Returns ids of text, int64 [rows, length]."""
    return np.random.default_rng(seed).integers(4, VOCAB, (rows, length))
