"""Switch Transformers ("switch_transformers"): T5 1.0 with experts in every second layer.

An expert processes at most `expert_capacity` tokens of a text and drops later ones, here and in
`transformers`. A model without a capacity is exported with a capacity that no text reaches.
"""

from ..config import Config
from . import t5
from .family import (
    ACTIVATIONS,
    field_names,
    known,
    register_families,
    require,
    their_activation,
)
from .links import Link, linear, table

HARMLESS = field_names("""
    initializer_factor router_ignore_padding_tokens router_jitter_noise
    router_z_loss_coef router_aux_loss_coef add_router_probs output_router_logits is_gated_act
    encoder_sparse_step decoder_sparse_step num_selected_experts feed_forward_proj n_positions
""")
CAPACITY = 2**20  # exported capacity of a model without one; more tokens than any text has
STACKS = {"encoder": "num_layers", "decoder": "num_decoder_layers"}


def settings(hf: dict, has) -> dict:
    require(hf, router_bias=False, router_dtype="float32", router_type="tokens_masked")
    tied = hf.get("tie_word_embeddings", True)
    return t5.common_settings(hf) | dict(
        mlp_activations=(known({"act": hf.get("dense_act_fn", "relu")}, "act", ACTIVATIONS),),
        num_experts=hf["num_experts"],
        experts_per_token=1,
        normalize_expert_weights=False,
        expert_capacity=_capacity(hf),
        sparse_every=_sparse_every(hf),
        logits_via_embedding=not has("lm_head.weight"),
        scale_logits=bool(tied),
    )


def _capacity(hf: dict) -> int | None:
    capacity = hf.get("expert_capacity", 64)
    return capacity if capacity < CAPACITY else None


def _sparse_every(hf: dict) -> int:
    """Returns the distance between sparse layers, which must be the same in both stacks."""
    layers = [hf["num_layers"], hf.get("num_decoder_layers") or hf["num_layers"]]
    sparse = [hf.get(f"num_sparse_{stack}_layers", 3) for stack in STACKS]
    steps = {n // max(n_sparse, 1) if n_sparse else 0 for n, n_sparse in zip(layers, sparse)}
    if steps not in ({1}, {2}):
        raise ValueError(
            f"Got {sparse[0]} sparse layers of {layers[0]} in the encoder and {sparse[1]} of "
            f"{layers[1]} in the decoder, expected all layers or every second layer of both stacks."
        )
    return steps.pop()


def config(c: Config) -> dict:
    if not c.num_experts:
        raise ValueError("Got num_experts=0, expected 2 or more: a Switch Transformer is sparse.")
    layers = {"encoder": c.num_encoder_layers, "decoder": c.num_decoder_layers}
    sparse = {f"num_sparse_{stack}_layers": n // c.sparse_every for stack, n in layers.items()}
    return t5.common_config(c) | dict(
        **sparse,
        num_experts=c.num_experts,
        expert_capacity=c.expert_capacity or CAPACITY,
        dense_act_fn=their_activation(c),
        tie_word_embeddings=c.scale_logits,
    )


def links(c: Config) -> list[Link]:
    result = [table("token_embedding", "shared")]
    for stack, layer in (("encoder", 1), ("decoder", 2)):
        path = f"{stack}/layers/{{i}}/experts"
        mlp = f"{stack}.block.{{i}}.layer.{layer}.mlp"
        result += t5.stack_links(c, stack, "mlp")
        result += linear(f"{path}/router", f"{mlp}.router.classifier", False)
        result += linear(f"{path}/wi_0", f"{mlp}.experts.expert_{{e}}.wi", False)
        result += linear(f"{path}/wo", f"{mlp}.experts.expert_{{e}}.wo", False)
    if not c.logits_via_embedding:
        result += [table("vocabulary/embedding", "lm_head")]
    return result


register_families(
    t5.T5._replace(
        model_type="switch_transformers",
        architecture="SwitchTransformersForConditionalGeneration",
        settings=settings,
        config=config,
        links=links,
        harmless=HARMLESS,
        presets=("switch_*",),
        by_heads=(),
        assumes_tied=False,
    )
)
