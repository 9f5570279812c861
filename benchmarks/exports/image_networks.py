"""PyTorch networks of the corpus for images and volumes, with random weights.

They make, enlarge, cut or read images. Each docstring names the paper or the public implementation that the network
follows. `networks.py` has the denoising U-Net, the detector with a ResNet, and all transformers.
"""

import torch
import torchvision
import transformers
from torch import nn
from torch.nn import functional


def twice_as_large(image: torch.Tensor) -> torch.Tensor:
    return functional.interpolate(image, scale_factor=2.0, mode="nearest")


# -- super-resolution --------------------------------------------------------------------------------


class DenseBlock(nn.Module):
    """Five convolutions that read the block's input and all earlier results; 0.2 of the last result is added."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(channels + k * growth, growth if k < 4 else channels, 3, padding=1) for k in range(5)
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        made = [image]
        for k, convolution in enumerate(self.convolutions):
            result = convolution(torch.cat(made, dim=1))
            made.append(functional.leaky_relu(result, 0.2) if k < 4 else result)
        return image + 0.2 * made[-1]


class DenseBlocks(nn.Module):
    """Three dense blocks; 0.2 of their result is added to the input."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(DenseBlock(channels, growth) for _ in range(3)))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return image + 0.2 * self.blocks(image)


class SuperResolution(nn.Module):
    """RRDBNet (ESRGAN, Wang et al. 2018): images [batch, 3, h, w] → [batch, 3, 4h, 4w]."""

    def __init__(self, channels: int, growth: int, blocks: int) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, channels, 3, padding=1)
        self.body = nn.Sequential(
            *(DenseBlocks(channels, growth) for _ in range(blocks)), nn.Conv2d(channels, channels, 3, padding=1)
        )
        self.grow = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.fine = nn.Conv2d(channels, channels, 3, padding=1)
        self.leave = nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        image = self.enter(image)
        image = image + self.body(image)
        for grow in self.grow:
            image = functional.leaky_relu(grow(twice_as_large(image)), 0.2)
        return self.leave(functional.leaky_relu(self.fine(image), 0.2))


def super_resolution() -> nn.Module:
    """Return RRDBNet with six blocks, the size of Real-ESRGAN's model for drawings."""
    return SuperResolution(channels=64, growth=32, blocks=6)


# -- generators --------------------------------------------------------------------------------------


class PixelNorm(nn.Module):
    """Division of each place by the root mean square of its channels."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return image * torch.rsqrt(image.square().mean(dim=1, keepdim=True) + 1e-8)


class Generator(nn.Module):
    """Generator of a progressively grown GAN (Karras et al. 2018): latents [batch, 512] → [batch, 3, 128, 128]."""

    WIDTHS = (512, 512, 512, 256, 128, 64)  # number of channels at 4 × 4, 8 × 8, …, 128 × 128

    def __init__(self) -> None:
        super().__init__()
        self.norm = PixelNorm()
        self.enter = nn.Linear(512, self.WIDTHS[0] * 16)
        self.levels = nn.ModuleList()
        for given, made in zip(self.WIDTHS[:-1], self.WIDTHS[1:], strict=True):
            layers: list[nn.Module] = []
            for channels in (given, made):
                layers += [nn.Conv2d(channels, made, 3, padding=1), nn.LeakyReLU(0.2), PixelNorm()]
            self.levels.append(nn.Sequential(*layers))
        self.leave = nn.Conv2d(self.WIDTHS[-1], 3, 1)

    def forward(self, latent: torch.Tensor) -> torch.Tensor:
        image = self.norm(functional.leaky_relu(self.enter(self.norm(latent)).unflatten(1, (-1, 4, 4)), 0.2))
        for level in self.levels:
            image = level(twice_as_large(image))
        return self.leave(image)


def generator() -> nn.Module:
    """Return a `Generator` with random weights."""
    return Generator()


class NormedResidual(nn.Module):
    """Residual block of GroupNorm, SiLU and 3 × 3 convolution, twice."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width in (channels, out):
            layers += [nn.GroupNorm(32, width, eps=1e-6), nn.SiLU(), nn.Conv2d(width, out, 3, padding=1)]
        self.layers = nn.Sequential(*layers)
        self.around = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.around(image) + self.layers(image)


class ImageAttention(nn.Module):
    """Residual self-attention of one head over the places of an image."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, channels, eps=1e-6)
        self.query, self.key, self.value, self.out = (nn.Linear(channels, channels) for _ in range(4))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        places = self.norm(image).flatten(2).transpose(1, 2)
        parts = (layer(places).unsqueeze(1) for layer in (self.query, self.key, self.value))  # of one head
        made = self.out(functional.scaled_dot_product_attention(*parts).squeeze(1))
        return image + made.transpose(1, 2).reshape(image.shape)


class VaeDecoder(nn.Module):
    """Decoder of a latent diffusion model (Rombach et al. 2022), as in diffusers.

    It maps latents, float32 [batch, 4, h, w], to images, float32 [batch, 3, 8h, 8w].
    """

    WIDTHS = (512, 512, 256, 128)  # number of channels of each level, the coarsest first

    def __init__(self) -> None:
        super().__init__()
        width = self.WIDTHS[0]
        self.enter = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Conv2d(4, width, 3, padding=1))
        self.middle = nn.Sequential(NormedResidual(width, width), ImageAttention(width), NormedResidual(width, width))
        self.levels, self.grow = nn.ModuleList(), nn.ModuleList()
        for made in self.WIDTHS:
            self.levels.append(nn.Sequential(*(NormedResidual(made if k else width, made) for k in range(3))))
            self.grow.append(nn.Conv2d(made, made, 3, padding=1) if made != self.WIDTHS[-1] else nn.Identity())
            width = made
        self.leave = nn.Sequential(nn.GroupNorm(32, width, eps=1e-6), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, latent: torch.Tensor) -> torch.Tensor:
        image = self.middle(self.enter(latent))
        for level, grow in zip(self.levels, self.grow, strict=True):
            image = level(image)
            if not isinstance(grow, nn.Identity):
                image = grow(twice_as_large(image))
        return self.leave(image)


def vae_decoder() -> nn.Module:
    """Return a `VaeDecoder` with random weights."""
    return VaeDecoder()


# -- U-Nets ------------------------------------------------------------------------------------------


class PlainUNet(nn.Module):
    """U-Net of two or three dimensions (Ronneberger et al. 2015; Çiçek et al. 2016), with batch normalisation."""

    def __init__(self, dimensions: int, channels: int, widths: tuple[int, ...], classes: int) -> None:
        """Make the layers.

        Args:
            dimensions: 2 for images, 3 for volumes.
            channels: number of channels of the input.
            widths: number of channels of each level, the finest first.
            classes: number of channels of the output.
        """
        super().__init__()
        convolution, norm, transposed, self.pool = {
            2: (nn.Conv2d, nn.BatchNorm2d, nn.ConvTranspose2d, nn.MaxPool2d(2)),
            3: (nn.Conv3d, nn.BatchNorm3d, nn.ConvTranspose3d, nn.MaxPool3d(2)),
        }[dimensions]

        def twice(given: int, made: int) -> nn.Module:
            layers: list[nn.Module] = []
            for width in (given, made):
                layers += [convolution(width, made, 3, padding=1, bias=False), norm(made), nn.ReLU()]
            return nn.Sequential(*layers)

        self.down = nn.ModuleList(
            twice(given, made) for given, made in zip((channels, *widths[:-1]), widths, strict=True)
        )
        self.grow, self.up = nn.ModuleList(), nn.ModuleList()
        for fine, coarse in zip(reversed(widths[:-1]), reversed(widths[1:]), strict=True):
            self.grow.append(transposed(coarse, fine, 2, stride=2))
            self.up.append(twice(2 * fine, fine))
        self.leave = convolution(widths[0], classes, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        skipped = []
        for level, down in enumerate(self.down):
            image = down(self.pool(image) if level else image)
            skipped.append(image)
        for grow, up, skip in zip(self.grow, self.up, reversed(skipped[:-1]), strict=True):
            image = up(torch.cat([skip, grow(image)], dim=1))
        return self.leave(image)


def unet_2d() -> nn.Module:
    """Return a U-Net of five levels with 64 to 1024 channels, which reads RGB images."""
    return PlainUNet(2, 3, (64, 128, 256, 512, 1024), classes=2)


def unet_3d() -> nn.Module:
    """Return a U-Net of four levels with 32 to 256 channels, which reads volumes of one channel."""
    return PlainUNet(3, 1, (32, 64, 128, 256), classes=3)


# -- networks that read images -----------------------------------------------------------------------


class Segmentation(nn.Module):
    """SegFormer-B0 (Xie et al. 2021) whose logits are enlarged to the size of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.model = transformers.SegformerForSemanticSegmentation(transformers.SegformerConfig(num_labels=150))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits = self.model(pixel_values=images).logits
        return functional.interpolate(logits, size=images.shape[-2:], mode="bilinear", align_corners=False)


def segformer_b0() -> nn.Module:
    """Return a `Segmentation` with random weights."""
    return Segmentation()


class TextReader(nn.Module):
    """CRNN (Shi et al. 2017): a line of text [batch, 1, 32, width] → logits of characters [batch, places, 37]."""

    LAYERS = (  # channels of each convolution, and the kernel of the pooling behind it
        (64, (2, 2)), (128, (2, 2)), (256, None), (256, (2, 1)), (512, None), (512, (2, 1)),
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        given = 1
        for made, pool in self.LAYERS:
            layers += [nn.Conv2d(given, made, 3, padding=1), nn.BatchNorm2d(made), nn.ReLU()]
            layers += [nn.MaxPool2d(pool)] if pool else []
            given = made
        self.layers = nn.Sequential(*layers, nn.Conv2d(given, given, (2, 1)), nn.BatchNorm2d(given), nn.ReLU())
        self.lstm = nn.LSTM(given, 256, num_layers=2, bidirectional=True, batch_first=True)
        self.leave = nn.Linear(512, 37)

    def forward(self, line: torch.Tensor) -> torch.Tensor:
        places, _ = self.lstm(self.layers(line).squeeze(2).transpose(1, 2))
        return self.leave(places)


def text_reader() -> nn.Module:
    """Return a `TextReader` with random weights."""
    return TextReader()


class Depth(nn.Module):
    """FastDepth (Wofk et al. 2019) on MobileNetV2: images [batch, 3, h, w] → depths [batch, 1, h, w]."""

    KEPT = {1: 16, 3: 24, 6: 32, 13: 96}  # layer of the encoder whose result is added later → its number of channels

    def __init__(self) -> None:
        super().__init__()
        self.encoder = torchvision.models.mobilenet_v2(weights=None).features
        self.levels = nn.ModuleList()
        given = 1280
        for made in (*reversed(self.KEPT.values()), 16):
            self.levels.append(nn.Sequential(
                nn.Conv2d(given, given, 5, padding=2, groups=given, bias=False), nn.BatchNorm2d(given), nn.ReLU(),
                nn.Conv2d(given, made, 1, bias=False), nn.BatchNorm2d(made), nn.ReLU(),
            ))  # fmt: skip
            given = made
        self.leave = nn.Conv2d(given, 1, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        kept = []
        for number, layer in enumerate(self.encoder):
            image = layer(image)
            if number in self.KEPT:
                kept.append(image)
        for level in self.levels:
            image = twice_as_large(level(image))
            image = image + kept.pop() if kept else image
        return self.leave(image)


def depth() -> nn.Module:
    """Return a `Depth` with random weights."""
    return Depth()


# -- YOLO --------------------------------------------------------------------------------------------


def normed(given: int, made: int, kernel: int = 1, stride: int = 1) -> nn.Module:
    """Return a convolution with batch normalisation and SiLU.

    Args:
        given, made: numbers of channels of input and output.
        kernel, stride: size of the kernel and stride in both directions.
    """
    convolution = nn.Conv2d(given, made, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(made), nn.SiLU())


class Split(nn.Module):
    """C2f of YOLOv8: bottlenecks on one half of the channels, whose results are all joined."""

    def __init__(self, given: int, made: int, blocks: int, is_residual: bool) -> None:
        super().__init__()
        half, self.is_residual = made // 2, is_residual
        self.enter = normed(given, made)
        self.blocks = nn.ModuleList(nn.Sequential(normed(half, half, 3), normed(half, half, 3)) for _ in range(blocks))
        self.leave = normed(half * (2 + blocks), made)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        parts = list(self.enter(image).chunk(2, dim=1))
        for block in self.blocks:
            parts.append(parts[-1] + block(parts[-1]) if self.is_residual else block(parts[-1]))
        return self.leave(torch.cat(parts, dim=1))


class Pools(nn.Module):
    """SPPF of YOLOv8: three poolings in a row, whose results are joined."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.enter, self.leave = normed(channels, channels // 2), normed(2 * channels, channels)
        self.pool = nn.MaxPool2d(5, stride=1, padding=2)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        parts = [self.enter(image)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        return self.leave(torch.cat(parts, dim=1))


class Yolo(nn.Module):
    """Detector like YOLOv8n: images [batch, 3, h, w] → boxes and scores [batch, 84, cells].

    A box is (x, y, width, height) in cells of its grid; each side is the mean of a distribution over 16 distances.
    """

    CLASSES, DISTANCES = 80, 16

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(normed(3, 16, 3, 2), normed(16, 32, 3, 2), Split(32, 32, 1, True))
        self.eighth = nn.Sequential(normed(32, 64, 3, 2), Split(64, 64, 2, True))
        self.sixteenth = nn.Sequential(normed(64, 128, 3, 2), Split(128, 128, 2, True))
        self.last = nn.Sequential(normed(128, 256, 3, 2), Split(256, 256, 1, True), Pools(256))
        self.up = nn.ModuleList([Split(256 + 128, 128, 1, False), Split(128 + 64, 64, 1, False)])
        self.shrink = nn.ModuleList([normed(64, 64, 3, 2), normed(128, 128, 3, 2)])
        self.down = nn.ModuleList([Split(64 + 128, 128, 1, False), Split(128 + 256, 256, 1, False)])
        sides, classes = 4 * self.DISTANCES, self.CLASSES
        self.sides = nn.ModuleList(
            nn.Sequential(normed(width, sides, 3), normed(sides, sides, 3), nn.Conv2d(sides, sides, 1))
            for width in (64, 128, 256)
        )
        self.scores = nn.ModuleList(
            nn.Sequential(normed(width, classes, 3), normed(classes, classes, 3), nn.Conv2d(classes, classes, 1))
            for width in (64, 128, 256)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        fine = self.eighth(self.stem(images))
        middle = self.sixteenth(fine)
        coarse = self.last(middle)
        middle = self.up[0](torch.cat([twice_as_large(coarse), middle], dim=1))
        levels = [self.up[1](torch.cat([twice_as_large(middle), fine], dim=1))]
        for shrink, down, other in zip(self.shrink, self.down, (middle, coarse), strict=True):
            levels.append(down(torch.cat([shrink(levels[-1]), other], dim=1)))
        found = [self.read(*one) for one in zip(levels, self.sides, self.scores, strict=True)]
        return torch.cat(found, dim=2)

    def read(self, level: torch.Tensor, sides: nn.Module, scores: nn.Module) -> torch.Tensor:
        """Return boxes and scores of all cells of one grid, float32 [batch, 84, cells].

        Args:
            level: features of the grid, float32 [batch, channels, rows, columns].
            sides, scores: the heads of this grid.
        """
        rows, columns = torch.meshgrid(*(torch.arange(size) + 0.5 for size in level.shape[-2:]), indexing="ij")
        centres = torch.stack([columns.flatten(), rows.flatten()])
        shares = sides(level).flatten(2).unflatten(1, (4, self.DISTANCES)).softmax(dim=2)
        before, behind = (shares * torch.arange(self.DISTANCES)[:, None]).sum(dim=2).chunk(2, dim=1)
        boxes = torch.cat([centres + (behind - before) / 2, before + behind], dim=1)
        return torch.cat([boxes, scores(level).flatten(2).sigmoid()], dim=1)


def yolo() -> nn.Module:
    """Return a `Yolo` with random weights."""
    return Yolo()
