"""PyTorch networks of the corpus for sound, with random weights.

`networks.py` has wav2vec 2.0 and the encoder of Whisper.
"""

import torch
import transformers
from torch import nn
from torch.nn import functional


def vocoder() -> nn.Module:
    """Return HiFi-GAN V1 (Kong et al. 2020): spectra, float32 [batch, frames, 80], → sound [batch, 256 · frames]."""
    config = transformers.SpeechT5HifiGanConfig(
        model_in_dim=80, sampling_rate=22_050, upsample_initial_channel=512, upsample_rates=[8, 8, 2, 2],
        upsample_kernel_sizes=[16, 16, 4, 4], resblock_kernel_sizes=[3, 7, 11],
        resblock_dilation_sizes=[[1, 3, 5]] * 3, normalize_before=False,
    )  # fmt: skip
    return transformers.SpeechT5HifiGan(config)


# -- Conformer ---------------------------------------------------------------------------------------


class ConvolutionModule(nn.Module):
    """Gated pointwise convolution, depthwise convolution, BatchNorm, SiLU and pointwise convolution."""

    def __init__(self, features: int, kernel: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.layers = nn.Sequential(
            nn.Conv1d(features, 2 * features, 1), nn.GLU(dim=1),
            nn.Conv1d(features, features, kernel, padding=kernel // 2, groups=features),
            nn.BatchNorm1d(features), nn.SiLU(), nn.Conv1d(features, features, 1),
        )  # fmt: skip

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        return self.layers(self.norm(places).transpose(1, 2)).transpose(1, 2)


class SelfAttention(nn.Module):
    """Self-attention over places, float32 [batch, places, features], behind a LayerNorm."""

    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.out = nn.LayerNorm(features), nn.Linear(features, features)
        self.query, self.key, self.value = (nn.Linear(features, features) for _ in range(3))

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        places = self.norm(places)
        parts = (
            layer(places).unflatten(2, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        return self.out(functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))


class ConformerLayer(nn.Module):
    """Layer of a Conformer (Gulati et al. 2020): half a feed-forward, attention, convolution, half a feed-forward."""

    def __init__(self, features: int, heads: int, kernel: int) -> None:
        super().__init__()
        self.first, self.last = (
            nn.Sequential(
                nn.LayerNorm(features), nn.Linear(features, 4 * features), nn.SiLU(), nn.Linear(4 * features, features)
            )
            for _ in range(2)
        )
        self.attention, self.convolution = SelfAttention(features, heads), ConvolutionModule(features, kernel)
        self.norm = nn.LayerNorm(features)

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        places = places + self.first(places) / 2
        places = places + self.attention(places)
        places = places + self.convolution(places)
        return self.norm(places + self.last(places) / 2)


class Conformer(nn.Module):
    """Conformer encoder: spectra, float32 [batch, frames, 80] → features [batch, frames / 4, FEATURES]."""

    FEATURES, HEADS, KERNEL, LAYERS = 256, 4, 31, 6

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Sequential(
            nn.Conv2d(1, self.FEATURES, 3, 2, 1), nn.ReLU(), nn.Conv2d(self.FEATURES, self.FEATURES, 3, 2, 1), nn.ReLU()
        )
        self.project = nn.Linear(20 * self.FEATURES, self.FEATURES)
        self.layers = nn.Sequential(
            *(ConformerLayer(self.FEATURES, self.HEADS, self.KERNEL) for _ in range(self.LAYERS))
        )

    def forward(self, spectra: torch.Tensor) -> torch.Tensor:
        places = self.enter(spectra.unsqueeze(1)).transpose(1, 2).flatten(2)  # [batch, frames / 4, 20 · FEATURES]
        return self.layers(self.project(places))


def conformer() -> nn.Module:
    """Return a `Conformer` with random weights."""
    return Conformer()


# -- separation of speakers --------------------------------------------------------------------------


class DilatedBlock(nn.Module):
    """Block of Conv-TasNet: pointwise, dilated depthwise and pointwise convolution, with residual and skip results."""

    def __init__(self, channels: int, inner: int, dilation: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(channels, inner, 1), nn.PReLU(), nn.GroupNorm(1, inner, eps=1e-8),
            nn.Conv1d(inner, inner, 3, padding=dilation, dilation=dilation, groups=inner),
            nn.PReLU(), nn.GroupNorm(1, inner, eps=1e-8),
        )  # fmt: skip
        self.residual, self.skip = nn.Conv1d(inner, channels, 1), nn.Conv1d(inner, channels, 1)

    def forward(self, sound: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inner = self.layers(sound)
        return sound + self.residual(inner), self.skip(inner)


class Separation(nn.Module):
    """Conv-TasNet (Luo and Mesgarani 2019): sound, float32 [batch, samples] → speakers [batch, 2, samples]."""

    FILTERS, CHANNELS, INNER, BLOCKS, REPEATS, SPEAKERS = 256, 128, 256, 8, 2, 2

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Conv1d(1, self.FILTERS, 16, stride=8, padding=4, bias=False)
        self.enter = nn.Sequential(nn.GroupNorm(1, self.FILTERS, eps=1e-8), nn.Conv1d(self.FILTERS, self.CHANNELS, 1))
        self.blocks = nn.ModuleList(
            DilatedBlock(self.CHANNELS, self.INNER, 2**k) for _ in range(self.REPEATS) for k in range(self.BLOCKS)
        )
        self.mask = nn.Sequential(nn.PReLU(), nn.Conv1d(self.CHANNELS, self.SPEAKERS * self.FILTERS, 1), nn.Sigmoid())
        self.decode = nn.ConvTranspose1d(self.FILTERS, 1, 16, stride=8, padding=4, bias=False)

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        frames = self.encode(sound.unsqueeze(1))
        inner, skipped = self.enter(frames), torch.zeros(())
        for block in self.blocks:
            inner, skip = block(inner)
            skipped = skipped + skip
        masked = self.mask(skipped).unflatten(1, (self.SPEAKERS, self.FILTERS)) * frames.unsqueeze(1)
        return self.decode(masked.flatten(0, 1)).unflatten(0, (-1, self.SPEAKERS)).squeeze(2)


def separation() -> nn.Module:
    """Return a `Separation` with random weights."""
    return Separation()
