"""What makes a network the same network."""

from __future__ import annotations

import hashlib
from itertools import chain

import torch
from torch import nn


def add_network(digest: hashlib._Hash, network: nn.Module) -> None:
    """Make `digest` depend on every module with its options and on every weight."""
    digest.update(repr(network).encode())
    # Not the state dict: it leaves out the buffers that are not saved.
    for name, tensor in chain(network.named_parameters(), network.named_buffers()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
