"""Networks as pure functions: Transformers, ELECTRA, a masked autoencoder and two towers.

    model = models.decoder(32000, num_layers=12, emb_dim=768, num_heads=12, head_dim=64,
                           mlp_dim=2048)

A builder returns a `Model`. It takes:

- `vocab_size`, the number of rows of the embedding and of logits. It may exceed the number of token
  ids in use.
- `heads`, the names of the heads that the objective needs.
- the fields of `models.config.Config`.

It raises ValueError for a setting that is unknown, missing or out of range, and for settings that
exclude each other. `add_head` and `register_attention` add heads and attention mechanisms of your
own.
"""

from .attention_mechanisms import Mechanism, register_attention
from .builders import Model, Outputs, decoder, encoder, encoder_decoder
from .heads import Projection, add_head
from .pairs_of_stacks import electra, masked_autoencoder, two_towers
from .step_unrolled import step_unrolled

__all__ = [
    "Mechanism",
    "Model",
    "Outputs",
    "Projection",
    "add_head",
    "decoder",
    "electra",
    "encoder",
    "encoder_decoder",
    "masked_autoencoder",
    "register_attention",
    "step_unrolled",
    "two_towers",
]
