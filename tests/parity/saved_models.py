"""Models of transformers, saved in the layout of the Hub."""

import torch
import transformers
from tokenizers import processors

from tests.parity.berts import WIDTHS, bert_tokenizer


def saved(folder, model, widths=WIDTHS, frame="[CLS] $A [SEP]", **settings):
    """Writes a directory of `transformers`, and returns its model and tokenizer."""
    tokenizer, roles = bert_tokenizer()
    named = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]", "[MASK]")]
    tokenizer.post_processor = processors.TemplateProcessing(single=frame, special_tokens=named)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **{f"{role}_token": name for role, name in roles.items()}
    )
    size = dict(vocab_size=tokenizer.get_vocab_size(), pad_token_id=0, eos_token_id=3)
    torch.manual_seed(0)
    limited = "n_positions" not in widths and "d_kv" not in widths
    longest = {"max_position_embeddings": 64} if limited else {}
    made = model(model.config_class(**size, **longest, **widths, **settings)).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.2 * torch.randn(parameter.shape)
    made.save_pretrained(folder)
    fast.save_pretrained(folder)
    return made, fast


BERT_LIKE = dict(norm="layer", norm_place="after", biases=True, embedding_norm=True)
