"""PyTorch networks of the corpus, with random weights.

Each network takes its inputs by position, in the order of their declaration in `corpus.py`, and returns one tensor or a
tuple. Except for `distilbert_float16`, transformers use their default attention (sdpa). All texts have an attention
mask.
"""

import torch
import transformers


class Encoder(torch.nn.Module):
    """Module that maps tokens and attention mask, int64 [batch, seq], to hidden states [batch, seq, features].

    The wrapped model is an encoder, or a decoder without a cache.
    """

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        tokens, mask = inputs
        return self.encoder(input_ids=tokens, attention_mask=mask).last_hidden_state


def bert_base() -> torch.nn.Module:
    """Return BERT-Base with transformers' defaults."""
    return Encoder(transformers.BertModel(transformers.BertConfig(), add_pooling_layer=False))


def roberta_base() -> torch.nn.Module:
    """Return RoBERTa-Base, which differs from BERT-Base in its position ids: they count only tokens without padding."""
    config = transformers.RobertaConfig(
        vocab_size=50265, max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5
    )
    return Encoder(transformers.RobertaModel(config, add_pooling_layer=False))


def albert_base() -> torch.nn.Module:
    """Return ALBERT-Base, whose 12 layers share their weights and whose embeddings are narrow."""
    config = transformers.AlbertConfig(hidden_size=768, num_attention_heads=12, intermediate_size=3072)
    return Encoder(transformers.AlbertModel(config, add_pooling_layer=False))


def distilbert_float16() -> torch.nn.Module:
    """Return DistilBERT in float16 with eager attention."""
    return Encoder(transformers.DistilBertModel(transformers.DistilBertConfig(attn_implementation="eager"))).half()


def gpt2_prompt() -> torch.nn.Module:
    """Return GPT-2 without a cache and without its vocabulary head; all tokens are processed at once."""
    return Encoder(transformers.GPT2Model(transformers.GPT2Config(use_cache=False)))


def llama_model(use_cache: bool) -> torch.nn.Module:
    """Return a LLaMA-like decoder with 6 layers, RMSNorm, rotary embedding, SwiGLU, 12 query heads and 4 key heads."""
    config = transformers.LlamaConfig(
        hidden_size=768, intermediate_size=2048, num_hidden_layers=6, num_attention_heads=12, num_key_value_heads=4,
        use_cache=use_cache,
    )  # fmt: skip
    return transformers.LlamaModel(config)


def llama() -> torch.nn.Module:
    """Return the decoder of `llama_model` without a cache."""
    return Encoder(llama_model(use_cache=False))


class Decoder(torch.nn.Module):
    """Module of a decoder with a key-value cache.

    It maps tokens, attention mask and past keys and values to hidden states and the keys and values of all tokens. Keys
    and values are separate tensors in the order key of layer 0, value of layer 0, key of layer 1, …, each float32
    [batch, heads, tokens, 64].
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
    """Return GPT-2 with 12 layers and a cache, without its vocabulary head."""
    return Decoder(transformers.GPT2Model(transformers.GPT2Config()))


def llama_cache() -> torch.nn.Module:
    """Return the decoder of `llama_model` with a cache."""
    return Decoder(llama_model(use_cache=True))


class Classifier(torch.nn.Module):
    """Module of ViT that maps images, float32 [batch, 3, 224, 224], to logits, float32 [batch, 1000]."""

    def __init__(self, classifier: torch.nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        (images,) = inputs
        return self.classifier(pixel_values=images).logits


def vit_base() -> torch.nn.Module:
    """Return ViT-Base with patches of 16×16 pixels."""
    return Classifier(transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=1000)))


class EncoderDecoder(torch.nn.Module):
    """Module of an encoder-decoder without a cache.

    It maps source tokens, source mask and target tokens to the decoder's and the encoder's hidden states.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, mask, target = inputs
        given = self.model(input_ids=tokens, attention_mask=mask, decoder_input_ids=target, use_cache=False)
        return given.last_hidden_state, given.encoder_last_hidden_state


def bart() -> torch.nn.Module:
    """Return BART-Base with 6 encoder layers and 6 decoder layers, without its vocabulary head."""
    config = transformers.BartConfig(
        d_model=768, encoder_layers=6, decoder_layers=6, encoder_attention_heads=12, decoder_attention_heads=12,
        encoder_ffn_dim=3072, decoder_ffn_dim=3072,
    )  # fmt: skip
    return EncoderDecoder(transformers.BartModel(config))


def t5_small() -> torch.nn.Module:
    """Return T5-Small with transformers' defaults, without its vocabulary head."""
    return EncoderDecoder(transformers.T5Model(transformers.T5Config()))


class Speech(torch.nn.Module):
    """Module of a speech encoder that maps its only input, spectra or samples, to hidden states."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        (sound,) = inputs
        return self.encoder(sound).last_hidden_state


def whisper_tiny() -> torch.nn.Module:
    """Return the encoder of Whisper-Tiny.

    It maps spectra of 30 s, float32 [batch, 80, 3000], to hidden states, float32 [batch, 1500, 384].
    """
    return Speech(transformers.WhisperModel(transformers.WhisperConfig()).encoder)


def wav2vec2_base() -> torch.nn.Module:
    """Return wav2vec 2.0 Base.

    It maps sound, float32 [batch, samples], to hidden states, float32 [batch, frames, 768].
    """
    return Speech(transformers.Wav2Vec2Model(transformers.Wav2Vec2Config()))


class Residual(torch.nn.Module):
    """Residual block with two normalised convolutions; a projection of the time features is added between them.

    It maps an image, float32 [batch, channels, height, width], and time features, float32 [batch, time], to an image
    with `out` channels.
    """

    def __init__(self, channels: int, out: int, time: int) -> None:
        super().__init__()
        self.first = torch.nn.Sequential(
            torch.nn.GroupNorm(32, channels), torch.nn.SiLU(), torch.nn.Conv2d(channels, out, 3, padding=1)
        )
        self.time = torch.nn.Sequential(torch.nn.SiLU(), torch.nn.Linear(time, out))
        self.second = torch.nn.Sequential(
            torch.nn.GroupNorm(32, out), torch.nn.SiLU(), torch.nn.Conv2d(out, out, 3, padding=1)
        )
        self.around = torch.nn.Conv2d(channels, out, 1) if channels != out else torch.nn.Identity()

    def forward(self, image: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        inner = self.first(image) + self.time(time)[:, :, None, None]
        return self.second(inner) + self.around(image)


class PixelAttention(torch.nn.Module):
    """Residual self-attention over an image, float32 [batch, channels, height, width]; each pixel is a token."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = torch.nn.GroupNorm(32, channels)
        self.query_key_value = torch.nn.Linear(channels, 3 * channels)
        self.out = torch.nn.Linear(channels, channels)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = image.shape
        pixels = self.norm(image).flatten(2).transpose(1, 2)  # [batch, height*width, channels]
        parts = self.query_key_value(pixels).view(batch, height * width, 3, self.heads, channels // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # each [batch, heads, height*width, channels/heads]
        mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        mixed = self.out(mixed.transpose(1, 2).reshape(batch, height * width, channels))
        return image + mixed.transpose(1, 2).reshape(batch, channels, height, width)


class UNet(torch.nn.Module):
    """Denoising U-Net that maps an image and its timestep to the predicted noise.

    Image and noise are float32 [batch, 4, height, width], and the timesteps are float32 [batch]. Height and width must
    be multiples of 8.
    """

    WIDTHS = (64, 128, 256, 512)  # number of channels at full, half, quarter and eighth resolution
    TIME = 256  # number of features of a timestep

    def __init__(self) -> None:
        super().__init__()
        self.time = torch.nn.Sequential(
            torch.nn.Linear(64, self.TIME), torch.nn.SiLU(), torch.nn.Linear(self.TIME, self.TIME)
        )
        self.enter = torch.nn.Conv2d(4, self.WIDTHS[0], 3, padding=1)
        self.down, self.shrink = torch.nn.ModuleList(), torch.nn.ModuleList()
        self.up, self.grow = torch.nn.ModuleList(), torch.nn.ModuleList()
        for fine, coarse in zip(self.WIDTHS[:-1], self.WIDTHS[1:], strict=True):
            self.down.append(Residual(fine, fine, self.TIME))
            self.shrink.append(torch.nn.Conv2d(fine, coarse, 3, stride=2, padding=1))
            self.grow.append(torch.nn.Conv2d(coarse, fine, 3, padding=1))
            self.up.append(Residual(2 * fine, fine, self.TIME))
        deepest = self.WIDTHS[-1]
        self.before, self.after = Residual(deepest, deepest, self.TIME), Residual(deepest, deepest, self.TIME)
        self.attention = PixelAttention(deepest, heads=8)
        self.leave = torch.nn.Sequential(
            torch.nn.GroupNorm(32, self.WIDTHS[0]), torch.nn.SiLU(), torch.nn.Conv2d(self.WIDTHS[0], 4, 3, padding=1)
        )

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        image, timestep = inputs
        frequencies = torch.exp(-torch.arange(32) * (9.21 / 32))  # 1 to 1/10,000
        angles = timestep[:, None] * frequencies
        time = self.time(torch.cat([angles.cos(), angles.sin()], dim=1))
        image = self.enter(image)
        skipped = []
        for down, shrink in zip(self.down, self.shrink, strict=True):
            image = down(image, time)
            skipped.append(image)
            image = shrink(image)
        image = self.after(self.attention(self.before(image, time)), time)
        for up, grow, skip in zip(reversed(self.up), reversed(self.grow), reversed(skipped), strict=True):
            image = grow(torch.nn.functional.interpolate(image, scale_factor=2.0))
            image = up(torch.cat([image, skip], dim=1), time)
        return self.leave(image)


def unet() -> torch.nn.Module:
    """Return a `UNet` with random weights."""
    return UNet()


class Detector(torch.nn.Module):
    """Anchor-free one-stage object detector without non-maximum suppression.

    It maps images, float32 [batch, 3, height, width], to boxes, float32 [batch, cells, 4], and class scores, float32
    [batch, cells, 80]. A box is (left, top, right, bottom) in pixels. The cells belong to three grids.
    """

    STRIDES = (8, 16, 32)  # distance in pixels between neighbouring cells of each grid
    FEATURES, CLASSES = 128, 80

    def __init__(self) -> None:
        super().__init__()
        config = transformers.ResNetConfig(
            layer_type="basic", depths=(2, 2, 2, 2), hidden_sizes=(64, 128, 256, 512),
            out_features=["stage2", "stage3", "stage4"],
        )  # fmt: skip
        self.backbone = transformers.ResNetBackbone(config)
        self.lateral = torch.nn.ModuleList(torch.nn.Conv2d(width, self.FEATURES, 1) for width in (128, 256, 512))
        self.classes = self.head(self.CLASSES)
        self.sides = self.head(4)

    def head(self, out: int) -> torch.nn.Module:
        """Return two convolutions with `out` output channels, which are applied to every grid."""
        return torch.nn.Sequential(
            torch.nn.Conv2d(self.FEATURES, self.FEATURES, 3, padding=1), torch.nn.ReLU(),
            torch.nn.Conv2d(self.FEATURES, out, 3, padding=1),
        )  # fmt: skip

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (images,) = inputs
        laterals = [lateral(level) for lateral, level in zip(self.lateral, self.maps(images), strict=True)]
        boxes, scores, above = [], [], None
        for level, stride in zip(reversed(laterals), reversed(self.STRIDES), strict=True):
            if above is not None:
                level = level + torch.nn.functional.interpolate(above, size=level.shape[-2:])
            above = level
            scores.append(self.classes(level).flatten(2).transpose(1, 2).sigmoid())
            boxes.append(self.boxes(level, stride))
        return torch.cat(boxes, dim=1), torch.cat(scores, dim=1)

    def maps(self, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return one feature map of the backbone for each of STRIDES, in this order."""
        return self.backbone(images).feature_maps

    def boxes(self, level: torch.Tensor, stride: int) -> torch.Tensor:
        """Return the box of every cell of one grid, in pixels, float32 [batch, cells, 4].

        Args:
            level: features of the grid, float32 [batch, FEATURES, rows, columns].
            stride: distance in pixels between neighbouring cells.
        """
        height, width = level.shape[-2:]
        rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        centres = (torch.stack([columns, rows], dim=-1).reshape(-1, 2) + 0.5) * stride  # [cells, 2]
        sides = torch.nn.functional.softplus(self.sides(level)).flatten(2).transpose(1, 2) * stride
        return torch.cat([centres - sides[..., :2], centres + sides[..., 2:]], dim=-1)


def detector() -> torch.nn.Module:
    """Return a `Detector` with a ResNet-18 as its backbone."""
    return Detector()
