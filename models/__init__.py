"""Networks, as pairs of pure functions: what learns the objectives."""

from pretrax.models.builders import Model, Outputs, decoder, encoder, encoder_decoder
from pretrax.models.pairs_of_stacks import electra, two_towers

__all__ = ["Model", "Outputs", "decoder", "electra", "encoder", "encoder_decoder", "two_towers"]
