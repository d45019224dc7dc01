"""A user's attention mechanism: each key is weighed separately (sigmoid attention).

Source: Ramapuram et al. 2024, arXiv:2409.04431.
"""

import jax
import jax.numpy as jnp

from pretrax.models import Mechanism, register_attention


def attend(q_BxTxHxd, k_BxSxGxd, v_BxSxGxd, intervals_Bx2xT, bias=None, softcap=None):
    share = q_BxTxHxd.shape[2] // k_BxSxGxd.shape[2]
    k_BxSxHxd, v_BxSxHxd = (jnp.repeat(x, share, axis=2) for x in (k_BxSxGxd, v_BxSxGxd))
    scores_BxHxTxS = jnp.einsum("bthd,bshd->bhts", q_BxTxHxd, k_BxSxHxd)
    start_Bx1xTx1, end_Bx1xTx1 = jnp.moveaxis(intervals_Bx2xT, 1, 0)[:, :, None, :, None]
    key_1x1x1xS = jnp.arange(k_BxSxHxd.shape[1])[None, None, None]
    seen_Bx1xTxS = (start_Bx1xTx1 <= key_1x1x1xS) & (key_1x1x1xS < end_Bx1xTx1)
    count_Bx1xTx1 = (end_Bx1xTx1 - start_Bx1xTx1).astype(scores_BxHxTxS.dtype)
    p_BxHxTxS = jnp.where(seen_Bx1xTxS, jax.nn.sigmoid(scores_BxHxTxS) / count_Bx1xTx1, 0)
    return jnp.einsum("bhts,bshd->bthd", p_BxHxTxS, v_BxSxHxd), None


def attend_cached(q_BxTxHxd, k_BxGxSxd, v_BxGxSxd, intervals_Bx2xT, bias=None, softcap=None):
    k_BxSxGxd, v_BxSxGxd = (jnp.swapaxes(x, 1, 2) for x in (k_BxGxSxd, v_BxGxSxd))
    return attend(q_BxTxHxd, k_BxSxGxd, v_BxSxGxd, intervals_Bx2xT)


MECHANISM = Mechanism(
    name="sigmoid",
    attend=attend,
    attend_cached=attend_cached,
    dtypes=("float32",),
)
register_attention(MECHANISM)
