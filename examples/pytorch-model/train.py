"""Train the network on scikit-learn's digits and write reader.safetensors."""

from __future__ import annotations

import argparse

import torch
from network import build
from safetensors.torch import save_file
from sklearn.datasets import load_digits


def main() -> None:
    """Write the weights into the current folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    epochs = parser.parse_args().epochs
    torch.manual_seed(0)
    data = load_digits()
    # The last 600 images are left out. tvmflow splits the data set at random, so some of its evaluation set is seen
    # here.
    x = torch.tensor(data.images[:-600] * 0.0625, dtype=torch.float32)[:, None]
    y = torch.tensor(data.target[:-600])
    network = build()
    optimizer = torch.optim.Adam(network.parameters(), 2e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(x[batch]), y[batch]).backward()
            optimizer.step()
    save_file(network.state_dict(), "reader.safetensors")


if __name__ == "__main__":
    main()
