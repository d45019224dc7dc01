"""MPNet's two streams: one forward pass agrees with `transformers` layers and the paper's masks."""

import jax
import numpy as np
import torch

from pretrax.objectives import TokenIds, layouts, masked_permuted_lm
from tests.objectives.batches import arrange, corrupt
from tests.objectives.registry import features_of
from tests.parity.models import VOCAB, import_model, perturbed

IDS = TokenIds(size=VOCAB, text=(5, VOCAB), pad=0, eos=2, bos=1, mask=4, cls=1, sep=2)
TEXT = 7  # number of tokens


def logits_by_paper(tokens, predicted):
    """Returns the logits of the predicted positions, given a text and their order.

    The content stream has the tokens that are not predicted, then the predicted tokens, then masks
    at their positions. A predicted token attends to itself and to earlier tokens, and to masks in
    place of later tokens. Masks, and tokens that are not predicted, attend to masks in place of all
    predicted tokens. The query of a predicted token attends to earlier tokens, and to masks in
    place of itself and of later tokens (Song et al. 2020, arXiv:2004.09297, section 2.3).
    """
    given = [i for i in range(len(tokens)) if i not in predicted]
    count, places = len(predicted), given + predicted + predicted + predicted
    kinds = ["given"] * len(given)
    kinds += [kind for kind in ("token", "mask", "query") for _ in predicted]
    orders = [*range(len(given)), *([*range(count)] * 3)]

    def sees(query, key) -> bool:
        (kind, order), (other, number) = query, key
        if other in ("given", "query"):
            return other == "given"
        known = {"token": order + 1, "query": order}.get(kind, 0)  # number of predicted tokens
        return number < known if other == "token" else number >= known

    slots = list(zip(kinds, orders))
    mask = torch.tensor([[sees(query, key) for key in slots] for query in slots])
    ids = [IDS.mask if kind in ("mask", "query") else tokens[at] for kind, at in zip(kinds, places)]
    model = perturbed("bert")
    with torch.no_grad():
        out = model(
            input_ids=torch.tensor([ids]),
            position_ids=torch.tensor([places]),
            attention_mask=torch.where(mask, 0.0, -torch.inf)[None, None],
        )
    return out.prediction_logits[0, -count:].numpy()


def test_one_pass_matches_two_stream_predictions(tmp_path):
    perturbed("bert").save_pretrained(tmp_path)
    found, params = import_model(tmp_path)
    objective = masked_permuted_lm(IDS, rate=0.5, mask_share=1.0, random_share=0.0)
    text = np.random.default_rng(0).integers(*IDS.text, TEXT)
    lengths = layouts.encoder.lengths(objective.lengths(TEXT))

    @jax.jit
    def logits(batch):
        outputs = found.model.apply(params, batch)
        slots = batch["encoder_target_slots"][0]
        return outputs.head("vocabulary", outputs.hidden["top"][0, slots])

    features = corrupt(objective, [text], copies=4)
    for row in range(4):
        row_features = features_of(features, row) | {"member": np.int32(0)}
        batch = {
            name: x[None] for name, x in arrange(layouts.encoder, row_features, lengths, 1).items()
        }
        labels = batch["encoder_target_slots"][0]
        predicted = batch["encoder_positions"][0, labels].tolist()
        whole = [IDS.cls, *text.tolist(), IDS.sep]
        assert batch["encoder_target_tokens"][0].tolist() == [whole[at] for at in predicted]
        expected = logits_by_paper(whole, predicted)
        np.testing.assert_allclose(logits(batch), expected, atol=1e-4)
