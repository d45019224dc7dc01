"""Networks as pure functions: Transformers of every layout, ELECTRA, a masked autoencoder and
two towers."""

from .attention_mechanisms import Mechanism
from .attention_mechanisms import register as register_attention
from .builders import Model, Outputs, decoder, encoder, encoder_decoder
from .heads import Projection, add_head
from .pairs_of_stacks import electra, masked_autoencoder, two_towers

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
    "two_towers",
]
