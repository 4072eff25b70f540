"""A ResNet that stops as soon as it is sure: its last block is applied again and again, the answer read off each turn.

Adaptive computation as in BranchyNet (Teerapittayanon et al. 2016, arXiv 1709.01686), with one block whose weights all
turns share (Jastrzebski et al. 2018, arXiv 1710.04773, section 5). How many turns an image takes depends on its pixels,
which a trace cannot hold: `--compile script` keeps the loop, `--compile mixed` keeps it and traces what lies inside.
"""

import torch
from torch import Tensor, nn

MOST_TURNS = 4
CONFIDENCE = 0.95
NUM_GROUPS = 8


class GroupNorm(nn.GroupNorm):
    """torch's, without the look at the batch size in Python that a trace would freeze."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name that it has in torch
        """[N, C, H, W] -> the same shape."""
        return torch.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


class SharedBlock(nn.Module):
    """A residual block that may follow itself: group norm (arXiv 1803.08494) has no statistics that turns would mix."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, kernel_size=3, padding=1, bias=False)
        self.norm1 = GroupNorm(NUM_GROUPS, width)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, kernel_size=3, padding=1, bias=False)
        self.norm2 = GroupNorm(NUM_GROUPS, width)
        self.relu2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """[N, width, H, W] -> the same shape."""
        y = self.relu1(self.norm1(self.conv1(x)))
        return self.relu2(x + self.norm2(self.conv2(y)))  # type: ignore[no-any-return]


class Exit(nn.Module):
    """The mean over all positions and one linear layer."""

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.linear = nn.Linear(num_features, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> logits float32 [N, num_classes]."""
        return self.linear(torch.flatten(self.pool(x), 1))  # type: ignore[no-any-return]


class EarlyExitResNet(nn.Module):
    """A body that every image goes through, then the shared block, until the exit is sure or the turns are used up.

    In eval mode each image leaves by itself, so its answer does not depend on its batch-mates.
    """

    def __init__(self, body: nn.Module, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.body = body
        self.block: nn.Module = SharedBlock(num_features)
        self.exit: nn.Module = Exit(num_features, num_classes)
        self.most_turns = MOST_TURNS
        self.confidence = CONFIDENCE

    def forward(self, x: Tensor) -> Tensor:
        """Normalised float32 [N, C, H, W] -> logits float32 [N, num_classes]."""
        x = self.body(x)
        logits: Tensor = self.exit(x)
        if self.training:
            # The images of a shuffled batch take the exits in turn: one cross entropy of them is, in expectation, the
            # mean over all exits' that BranchyNet minimises.
            number = torch.arange(logits.size(0), device=logits.device) % (self.most_turns + 1)
            for turn in range(self.most_turns):
                x = self.block(x)
                logits = torch.where((number > turn).unsqueeze(1), self.exit(x), logits)
            return logits
        waiting = torch.arange(logits.size(0), device=logits.device)
        latest: Tensor = logits
        turn = 0
        while turn < self.most_turns:
            unsure = torch.softmax(latest, dim=1).amax(dim=1) < self.confidence
            if not bool(unsure.any()):
                break
            waiting = waiting[unsure]
            x = self.block(x[unsure])
            latest = self.exit(x)
            logits = logits.index_copy(0, waiting, latest)
            turn += 1
        return logits


def straight_parts(network: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Return the parts without control flow, which may be traced, with an input for each; "" is the whole network.

    `x` is what the network takes, normalised float32 [N, C, H, W].
    """
    if not isinstance(network, EarlyExitResNet):
        return {"": x}
    features = network.body(x)
    return {"body": x, "block": features, "exit": features}
