"""The same numbers computed in several ways: what is compared in the tables of operators."""

import math

import torch
from torch import Tensor


def pairwise_by_loops(first: Tensor, second: Tensor) -> Tensor:
    """Return the Euclidean distances [N, M] of points [N, D] and [M, D], one pair at a time."""
    distances = torch.empty(len(first), len(second))
    for row in range(len(first)):
        for column in range(len(second)):
            distances[row, column] = (first[row] - second[column]).square().sum().sqrt()
    return distances


def pairwise_by_broadcasting(first: Tensor, second: Tensor) -> Tensor:
    """Return the same from one difference [N, M, D]."""
    return (first[:, None] - second[None]).square().sum(dim=2).sqrt()


def square_chain(x: Tensor) -> Tensor:
    """Return x squared ten times over: ten element-wise operations, the published chain."""
    for _ in range(10):
        x = x * x
    return x


def gelu_chain(x: Tensor) -> Tensor:
    """Return GELU in its tanh form (Hendrycks and Gimpel 2016, arXiv 1606.08415): nine element-wise operations."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))
