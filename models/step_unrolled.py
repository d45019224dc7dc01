"""An encoder that reads a text, and then reads its own samples of the text (SUNDAE)."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

from .builders import Model, Part, encoder_config, forward_flops, from_network
from .config import Config
from .quantization import quantized
from .transformer import Transformer, WithEncoderHeads


def step_unrolled(
    vocab_size: int, heads: Iterable[str] = ("vocabulary", "unrolled"), **encoder_settings: Any
) -> Model:
    """An encoder that runs twice, the second time on samples of its predictions.

        models.step_unrolled(32000, emb_dim=256, num_heads=4, head_dim=64, mlp_dim=512,
                             num_layers=6)

    The encoder predicts the tokens of the labels. A sample from these predictions replaces the
    tokens at the slots of the labels, and the same encoder reads the result. No gradient passes
    through the sample (Savinov et al. 2021, SUNDAE, arXiv:2112.06749, section 2). With a batch
    without labels, the encoder runs once.

    Args:
      vocab_size: number of rows of the embedding and of logits. It may exceed the number of token
        ids in use.
      heads: 'vocabulary' and 'unrolled'; `objectives.unrolled_denoising` requires both.
      encoder_settings: settings of the encoder, as in `encoder`.

    Returns:
      A `Model` of layout 'encoder'. Its hidden states are 'top' [B, T, E] of the first pass, and
      'unrolled' [B, T, E] of the second pass.

    Raises:
      ValueError: A setting is unknown, missing or out of range, or settings exclude each other.
    """
    config = encoder_config(vocab_size, ("vocabulary",), **encoder_settings)

    def flops(lengths):
        sampled = lengths | {"predict": 2 * lengths["predict"]}
        return forward_flops(config, lengths) + forward_flops(config, sampled)

    def part(params: dict) -> Part:
        """Returns the encoder, which is the whole network."""
        return Part(config, params["encoder"], ())

    return from_network(
        quantized(StepUnrolled(config), config.quantization),
        layout="encoder",
        heads=tuple(name for name in config.heads if name in heads),
        hidden=("unrolled",),
        flops=flops,
        vocab_size=config.vocab_size,
        max_positions=config.max_positions,
        attention=config.attention,
        part=part,
    )


class StepUnrolled(WithEncoderHeads):
    """The network of `step_unrolled`."""

    config: Config

    def setup(self):
        self.encoder = Transformer(self.config)

    def __call__(self, batch):
        hidden = self.encoder(batch)
        if "encoder_target_slots" not in batch:
            return hidden
        slots_BxK = batch["encoder_target_slots"]
        states_BxKxE = jnp.take_along_axis(hidden["top"], slots_BxK[..., None], axis=1)
        logits_BxKxV = jax.lax.stop_gradient(self.encoder.head("vocabulary", states_BxKxE))
        # Evaluation draws the same sample every time.
        key = self.make_rng("dropout") if self.has_rng("dropout") else jax.random.key(0)
        sampled_BxK = jax.random.categorical(key, logits_BxKxV)
        tokens_BxT = jnp.asarray(batch["encoder_input_tokens"])
        # Slots without a label are moved out of range, and their writes are dropped.
        is_label_BxK = batch["encoder_loss_weights"] > 0
        at_BxK = jnp.where(is_label_BxK, slots_BxK, tokens_BxT.shape[1])
        row_Bx1 = jnp.arange(tokens_BxT.shape[0])[:, None]
        read_BxT = tokens_BxT.at[row_Bx1, at_BxK].set(
            sampled_BxK.astype(tokens_BxT.dtype), mode="drop"
        )
        second = self.encoder(batch | {"encoder_input_tokens": read_BxT})
        return hidden | {"unrolled": second["top"]}
