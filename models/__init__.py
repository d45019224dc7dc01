"""Networks as pure functions: Transformers of every layout, ELECTRA, a masked autoencoder and
two towers."""

from .builders import Model, Outputs, decoder, encoder, encoder_decoder
from .heads import Projection, add_head
from .pairs_of_stacks import electra, masked_autoencoder, two_towers

__all__ = [
    "Model",
    "Outputs",
    "Projection",
    "add_head",
    "decoder",
    "electra",
    "encoder",
    "encoder_decoder",
    "masked_autoencoder",
    "two_towers",
]
