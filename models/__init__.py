"""Networks, as pairs of pure functions: what learns the objectives."""

from models.builders import Model, Outputs, decoder, encoder_decoder

__all__ = ["Model", "Outputs", "decoder", "encoder_decoder"]
