"""Networks from observations to features."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from sf.config import ModelConfig
from sf.config.convolutions import CONVOLUTIONS, RESNET_CHANNELS
from sf.errors import ConfigError
from sf.nets.activations import ACTIVATIONS
from sf.nets.dtype import float32_by_default
from sf.nets.flat import named_variables
from sf.nets.initialization import orthogonal
from sf.nets.seeding import seeded
from sf.plugins import ENCODERS, blamed_on
from sf.plugins.settings import settings_for

HIDDEN_GAIN = math.sqrt(2)


def linear(num_inputs: int, num_outputs: int, gain: float = HIDDEN_GAIN) -> nn.Linear:
    """A linear layer with orthogonal weights and zero bias, as in the PPO code of OpenAI Baselines."""
    layer = nn.Linear(num_inputs, num_outputs)
    _initialize(layer, gain)
    return layer


def _initialize(layer: nn.Linear | nn.Conv2d, gain: float) -> None:
    assert layer.bias is not None, "every layer has a bias"
    orthogonal(layer.weight, layer.bias, gain)


class Mlp(nn.Module):
    """Linear layers, each followed by the nonlinearity."""

    def __init__(self, num_inputs: int, sizes: Sequence[int], nonlinearity: str) -> None:
        super().__init__()
        all_sizes = (num_inputs, *sizes)
        layers = [linear(*pair) for pair in zip(all_sizes, sizes, strict=False)]
        self.layers = nn.ModuleList(layers)
        self.num_features = all_sizes[-1]
        self.nonlinearity, self.activation = nonlinearity, ACTIVATIONS[nonlinearity]
        self._parameters_of_layers = tuple((layer.weight, layer.bias) for layer in layers)

    def forward(self, x: Tensor) -> Tensor:
        """[B, num_inputs] to [B, num_features]."""
        for weight, bias in self._parameters_of_layers:
            x = self.activation(functional.linear(x, weight, bias))
        return x


class NormalizedMlp(Mlp):
    """The same with layer normalization before each nonlinearity (Ba et al. 2016, arXiv:1607.06450)."""

    def __init__(self, num_inputs: int, sizes: Sequence[int], nonlinearity: str) -> None:
        super().__init__(num_inputs, sizes, nonlinearity)
        self.norms = nn.ModuleList(nn.LayerNorm(size) for size in sizes)

    def forward(self, x: Tensor) -> Tensor:
        """[B, num_inputs] to [B, num_features]."""
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = self.activation(norm(layer(x)))
        return x


def make_mlp(num_inputs: int, sizes: Sequence[int], config: ModelConfig) -> Mlp:
    """Linear layers of these sizes."""
    return (NormalizedMlp if config.layer_norm else Mlp)(num_inputs, sizes, config.nonlinearity)


class ConvNet(nn.Module):
    """Convolutions, each followed by the nonlinearity."""

    def __init__(self, channels: int, config: ModelConfig) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList()
        for filters, kernel, stride in CONVOLUTIONS[config.encoder_conv_architecture]:
            self.convolutions.append(_convolution(channels, filters, kernel, stride))
            channels = filters
        # A convolution does not need its result again, so it can be written over, which saves a pass over new memory.
        self._activation = torch.relu_ if config.nonlinearity == "relu" else ACTIVATIONS[config.nonlinearity]

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, height, width] to [B, filters, smaller height, smaller width]."""
        for convolution in self.convolutions:
            x = self._activation(convolution(x))
        return x


class ResNet(nn.Module):
    """The deep residual network of IMPALA (Espeholt et al. 2018, arXiv:1802.01561, figure 3)."""

    def __init__(self, channels: int, config: ModelConfig) -> None:
        super().__init__()
        self.entries = nn.ModuleList()
        self.blocks = nn.ModuleList()
        for filters in RESNET_CHANNELS:
            self.entries.append(_convolution(channels, filters, 3, 1, padding=1))
            layers = [_convolution(filters, filters, 3, 1, padding=1) for _ in range(4)]
            self.blocks.append(nn.ModuleList(layers))
            channels = filters
        self._activation = ACTIVATIONS[config.nonlinearity]

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, height, width] to [B, 32, height / 8, width / 8]."""
        activation = self._activation
        for entry, block in zip(self.entries, self.blocks, strict=True):
            assert isinstance(block, nn.ModuleList)
            x = functional.max_pool2d(entry(x), 3, stride=2, padding=1)
            first, second, third, fourth = block
            x = x + second(activation(first(activation(x))))
            x = x + fourth(activation(third(activation(x))))
        return activation(x)


def _convolution(channels: int, filters: int, kernel: int, stride: int, padding: int = 0) -> nn.Conv2d:
    layer = nn.Conv2d(channels, filters, kernel, stride, padding)
    _initialize(layer, HIDDEN_GAIN)
    return layer


class ImageEncoder(nn.Module):
    """Convolutions and then linear layers, each followed by the nonlinearity."""

    def __init__(self, shape: tuple[int, ...], config: ModelConfig) -> None:
        super().__init__()
        kind = ResNet if config.encoder_conv_architecture == "resnet_impala" else ConvNet
        self.convnet = kind(shape[0], config)
        with torch.no_grad():
            size = self.convnet(torch.zeros(1, *shape)).numel()
        self.mlp = make_mlp(size, config.encoder_conv_mlp_layers, config)
        self.num_features = self.mlp.num_features

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, height, width] to [B, num_features]."""
        features: Tensor = self.mlp(self.convnet(x).flatten(1))
        return features


class Encoder(nn.Module):
    """Networks for parts of the observation, their features side by side.

    Each image has a convolutional network. All vectors together have one MLP, or with `encoder_per_key` one each.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], config: ModelConfig) -> None:
        super().__init__()
        images = {name: ImageEncoder(shape, config) for name, shape in shapes.items() if len(shape) == 3}
        vectors = tuple(name for name, shape in shapes.items() if len(shape) == 1)
        groups = [(name,) for name in vectors] if config.encoder_per_key else [vectors] if vectors else []
        sizes = [sum(shapes[name][0] for name in group) for group in groups]
        mlps = [make_mlp(size, config.encoder_mlp_layers, config) for size in sizes]
        if config.encoder_per_key:
            self.mlp_per_key = nn.ModuleList(mlps)
        else:
            self.mlp = mlps[0] if mlps else None
        self.image_encoders = nn.ModuleList(images.values())
        self.num_features = sum(mlp.num_features for mlp in mlps) + sum(cnn.num_features for cnn in images.values())
        self._encode_images = tuple((name, encoder.forward) for name, encoder in images.items())
        self._encode_vectors = tuple((group, mlp.forward) for group, mlp in zip(groups, mlps, strict=True))

    def forward(self, observations: Mapping[str, Tensor]) -> Tensor:
        """Prepared leaves, [B, size] or [B, channels, height, width], to [B, num_features]."""
        features = [encode(observations[name]) for name, encode in self._encode_images]
        for names, encode in self._encode_vectors:
            vectors = [observations[name] for name in names]
            features.append(encode(vectors[0] if len(vectors) == 1 else torch.cat(vectors, -1)))
        return features[0] if len(features) == 1 else torch.cat(features, -1)


def make_encoder(shapes: Mapping[str, tuple[int, ...]], config: ModelConfig) -> tuple[nn.Module, int]:
    """The encoder that the configuration names, and the number of its features.

    Raises:
        ConfigError: it is not registered, raises an exception, or does not fit into a policy.
    """
    if config.encoder == ENCODERS.default:
        encoder = Encoder(shapes, config)
        return encoder, encoder.num_features
    name = config.encoder
    make = ENCODERS.find(name)
    settings = settings_for("encoder", name, make, config.encoder_kwargs, num_given=2)
    # Its module may have chosen another default dtype when it was imported.
    with blamed_on(f"encoder={name}", "its construction"), float32_by_default():
        module = make(dict(shapes), config, **settings)
    if not isinstance(module, nn.Module):
        raise ConfigError([f"encoder={name} made a {type(module).__name__}, expected a torch.nn.Module. Return one."])
    module.to(torch.get_default_device()).eval()  # parts that were not made there; policies train in this mode too
    other = [
        f"{key} ({variable.dtype})" for key, variable in named_variables(module) if variable.dtype != torch.float32
    ]
    if other:
        raise ConfigError(
            [
                f"encoder={name} holds {', '.join(other)}, expected float32 only. Convert it with .float(), and take "
                "LayerNorm or GroupNorm instead of BatchNorm, which counts in int64."
            ]
        )
    with torch.no_grad(), blamed_on(f"encoder={name}", "forward"):
        features = module({key: torch.zeros(2, *shape, dtype=torch.float32) for key, shape in shapes.items()})
    if not (
        isinstance(features, Tensor) and features.dim() == 2 and (len(features), features.dtype) == (2, torch.float32)
    ):
        found = f"{features.dtype}{list(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
        raise ConfigError(
            [f"encoder={name} turned 2 observations into {found}, expected features torch.float32[2, n]."]
        )
    _expect_function_of_a_row(module, name, shapes)
    return module, features.shape[1]


@torch.no_grad()
def _expect_function_of_a_row(module: nn.Module, name: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Features of a row must be the same in training, where other rows are beside it, and after other calls.

    Raises:
        ConfigError: they are not.
    """
    device = torch.get_default_device()
    with seeded(0, device):
        rows = {key: torch.randint(2, (3, *shape)).float() for key, shape in shapes.items()}

    def features(seed: int, start: int = 0) -> Tensor:
        with seeded(seed, device), blamed_on(f"encoder={name}", "forward"):
            found: Tensor = module({key: leaf[start:] for key, leaf in rows.items()})
        return found

    first, again = features(1), features(1)
    is_random = not _are_alike(first, features(2))  # as in noisy networks
    alone = features(1, start=2)
    if not _are_alike(first, again):
        why = (
            "the same observations got other features in a second call, so it keeps something from call to call, or "
            "draws random numbers without torch"
        )
    elif not is_random and not _are_alike(first[2:], alone):
        why = "an observation got other features with others beside it than alone"
    else:
        return
    raise ConfigError(
        [
            f"encoder={name}: {why}. Training calls it with other rows than acting, so it must compute each row from "
            "that row alone. For a memory use --use_rnn=True; for statistics of rows take LayerNorm."
        ]
    )


def _are_alike(one: Tensor, other: Tensor) -> bool:
    if not one.numel():
        return True
    return torch.allclose(one, other, rtol=1e-3, atol=1e-4 * max(1.0, float(one.abs().max())), equal_nan=True)
