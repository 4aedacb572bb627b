"""Networks from observations to features."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from sf.config import ModelConfig
from sf.policy.activations import ACTIVATIONS
from sf.policy.inputs import Inputs, NetworkInput

CONVOLUTIONS = {
    # filters, side of the kernel, stride
    "convnet_simple": ((32, 8, 4), (64, 4, 2), (128, 3, 2)),
    "convnet_atari": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),
}

HIDDEN_GAIN = math.sqrt(2)


def linear(num_inputs: int, num_outputs: int, gain: float = HIDDEN_GAIN) -> nn.Linear:
    """A linear layer with orthogonal weights and zero bias, as in the PPO code of OpenAI Baselines."""
    layer = nn.Linear(num_inputs, num_outputs)
    _initialize(layer, gain)
    return layer


def _initialize(layer: nn.Linear | nn.Conv2d, gain: float) -> None:
    nn.init.orthogonal_(layer.weight, gain)
    assert layer.bias is not None, "every layer has a bias"
    nn.init.zeros_(layer.bias)


class Mlp(nn.Module):
    """Linear layers, each followed by the nonlinearity."""

    def __init__(self, num_inputs: int, sizes: Sequence[int], nonlinearity: str) -> None:
        super().__init__()
        all_sizes = (num_inputs, *sizes)
        layers = [linear(*pair) for pair in zip(all_sizes, sizes, strict=False)]
        self.layers = nn.ModuleList(layers)
        self.num_features = all_sizes[-1]
        self._activation = ACTIVATIONS[nonlinearity]
        self._parameters_of_layers = tuple((layer.weight, layer.bias) for layer in layers)

    def forward(self, x: Tensor) -> Tensor:
        """[B, num_inputs] to [B, num_features]."""
        for weight, bias in self._parameters_of_layers:
            x = self._activation(functional.linear(x, weight, bias))
        return x


class ConvNet(nn.Module):
    """Convolutions and then linear layers, each followed by the nonlinearity."""

    def __init__(self, image_shape: tuple[int, int, int], config: ModelConfig) -> None:
        super().__init__()
        channels, height, width = image_shape
        self.convolutions = nn.ModuleList()
        for filters, kernel, stride in CONVOLUTIONS[config.encoder_conv_architecture]:
            convolution = nn.Conv2d(channels, filters, kernel, stride)
            _initialize(convolution, HIDDEN_GAIN)
            self.convolutions.append(convolution)
            channels, height, width = filters, (height - kernel) // stride + 1, (width - kernel) // stride + 1
        self.mlp = Mlp(channels * height * width, config.encoder_conv_mlp_layers, config.nonlinearity)
        self.num_features = self.mlp.num_features
        self._activation = ACTIVATIONS[config.nonlinearity]

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, height, width] to [B, num_features]."""
        for convolution in self.convolutions:
            x = self._activation(convolution(x))
        features: Tensor = self.mlp(x.flatten(1))
        return features


class Encoder(nn.Module):
    """One MLP for the vector, one convolutional network for each image, their features side by side."""

    def __init__(self, inputs: Inputs, config: ModelConfig) -> None:
        super().__init__()
        size = inputs.vector_size
        self.mlp = Mlp(size, config.encoder_mlp_layers, config.nonlinearity) if size else None
        convnets = [ConvNet(shape, config) for shape in inputs.image_shapes]
        self.convnets = nn.ModuleList(convnets)
        self.num_features = sum(convnet.num_features for convnet in convnets)
        if self.mlp is not None:
            self.num_features += self.mlp.num_features
        self._encode_vector = None if self.mlp is None else self.mlp.forward
        self._encode_images = tuple(convnet.forward for convnet in convnets)

    def forward(self, x: NetworkInput) -> Tensor:
        """[B, num_features]."""
        features = [encode(image) for encode, image in zip(self._encode_images, x.images, strict=True)]
        if self._encode_vector is not None and x.vector is not None:
            features.append(self._encode_vector(x.vector))
        return features[0] if len(features) == 1 else torch.cat(features, -1)
