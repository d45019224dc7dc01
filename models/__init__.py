"""Networks as pure functions: Transformers, ELECTRA, a masked autoencoder and two towers.

    model = models.decoder(32000, num_layers=12, emb_dim=768, num_heads=12, head_dim=64,
                           mlp_dim=2048)

A builder returns a `Model`. It takes:

- `vocab_size`, the number of rows of the embedding and of logits, at least the number of token ids.
- `heads`, the names of the heads that the objective needs.
- fields of `models.config.Config`.

It raises ValueError for invalid or missing settings. `add_head` and `register_attention` add your
own heads and attention mechanisms.
"""

from .attention_mechanisms import Mechanism as Mechanism
from .attention_mechanisms import register_attention as register_attention
from .builders import Model as Model
from .builders import Outputs as Outputs
from .builders import decoder as decoder
from .builders import encoder as encoder
from .builders import encoder_decoder as encoder_decoder
from .embedding_denoiser import embedding_denoiser as embedding_denoiser
from .heads import Projection as Projection
from .heads import add_head as add_head
from .pairs_of_stacks import electra as electra
from .pairs_of_stacks import masked_autoencoder as masked_autoencoder
from .pairs_of_stacks import two_towers as two_towers
from .step_unrolled import step_unrolled as step_unrolled
