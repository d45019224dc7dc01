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


NAMES = dict(id2label={0: "bad", 1: "so so", 2: "good"})
GPT2 = dict(n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=2)
BART = dict(
    d_model=32,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=48,
    decoder_ffn_dim=48,
    encoder_layers=2,
    decoder_layers=2,
    bos_token_id=2,
    decoder_start_token_id=3,
)
BERT_LIKE = dict(norm="layer", norm_place="after", biases=True, embedding_norm=True)
