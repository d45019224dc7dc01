"""An encoder that reads a text, and then reads its own samples of the text (SUNDAE)."""

from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp

from .builders import Model, Part, config_of_encoders, forward_flops
from .config import Config
from .pairs_of_stacks import model_of_encoders, sampled, written_at_labels
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
      heads: 'vocabulary' and 'unrolled'; `objectives.unrolled_denoising` requires both.
      encoder_settings: settings of the encoder, as in `encoder`.

    The hidden states are 'top' [B, T, E] of the first pass, and 'unrolled' [B, T, E] of the second.
    """
    config = config_of_encoders("step_unrolled", vocab_size, encoder_settings)

    def flops(lengths):
        sampled = lengths | {"predict": 2 * lengths["predict"]}
        return forward_flops(config, lengths) + forward_flops(config, sampled)

    def part(params: dict) -> Part:
        """Returns the encoder, which is the whole network."""
        return Part(config, params["encoder"], ())

    network = StepUnrolled(config)
    return model_of_encoders(
        network, config, config.heads, heads, flops, hidden=("unrolled",), part=part
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
        sampled_BxK = sampled(self, self.encoder.head("vocabulary", states_BxKxE))
        tokens_BxT = jnp.asarray(batch["encoder_input_tokens"])
        read_BxT = written_at_labels(batch, tokens_BxT, sampled_BxK)
        second = self.encoder(batch | {"encoder_input_tokens": read_BxT})
        return hidden | {"unrolled": second["top"]}
