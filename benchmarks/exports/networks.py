"""The networks of `benchmarks.exports.dynamic`, with random weights: each takes its inputs by position, in the
registry's order, and returns its outputs as one tensor or a tuple.

They are called as people export them: attention is transformers' default (sdpa), and no attention mask is left out.
"""

import torch
import transformers


class Encoder(torch.nn.Module):
    """BERT and RoBERTa: tokens and mask, int64 [batch, seq], to states, float32 [batch, seq, 768]."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        tokens, mask = inputs
        return self.encoder(input_ids=tokens, attention_mask=mask).last_hidden_state


def bert_base() -> torch.nn.Module:
    """BERT-Base: transformers' defaults."""
    return Encoder(transformers.BertModel(transformers.BertConfig(), add_pooling_layer=False))


def roberta_base() -> torch.nn.Module:
    """RoBERTa-Base: BERT-Base whose positions count the tokens that are not padding."""
    config = transformers.RobertaConfig(
        vocab_size=50265, max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5
    )
    return Encoder(transformers.RobertaModel(config, add_pooling_layer=False))
