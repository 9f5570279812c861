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


class Decoder(torch.nn.Module):
    """GPT-2 with a cache: tokens, mask and the past keys and values of every layer, to states and all keys and values.

    The keys and values lie one layer after another, each float32 [batch, heads, past, 64].
    """

    def __init__(self, decoder: torch.nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        tokens, mask, *past = inputs
        cache = transformers.DynamicCache(list(zip(past[::2], past[1::2], strict=True)))
        given = self.decoder(input_ids=tokens, attention_mask=mask, past_key_values=cache, use_cache=True)
        present = [tensor for layer in given.past_key_values.layers for tensor in (layer.keys, layer.values)]
        return given.last_hidden_state, *present


def gpt2() -> torch.nn.Module:
    """GPT-2 with 12 layers, without its head over the vocabulary."""
    return Decoder(transformers.GPT2Model(transformers.GPT2Config()))


class Classifier(torch.nn.Module):
    """ViT: images, float32 [batch, 3, 224, 224], to logits, float32 [batch, 1000]."""

    def __init__(self, classifier: torch.nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        (images,) = inputs
        return self.classifier(pixel_values=images).logits


def vit_base() -> torch.nn.Module:
    """ViT-Base with patches of 16."""
    return Classifier(transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=1000)))


class EncoderDecoder(torch.nn.Module):
    """BART without a cache: tokens and mask of the source and tokens of the target, to states of both."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, mask, target = inputs
        given = self.model(input_ids=tokens, attention_mask=mask, decoder_input_ids=target, use_cache=False)
        return given.last_hidden_state, given.encoder_last_hidden_state


def bart() -> torch.nn.Module:
    """BART-Base: 6 and 6 layers, without its head over the vocabulary."""
    config = transformers.BartConfig(
        d_model=768, encoder_layers=6, decoder_layers=6, encoder_attention_heads=12, decoder_attention_heads=12,
        encoder_ffn_dim=3072, decoder_ffn_dim=3072,
    )  # fmt: skip
    return EncoderDecoder(transformers.BartModel(config))
