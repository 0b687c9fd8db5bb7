"""Train a small network from a seed: the `train:` weights source."""

from __future__ import annotations

import contextlib
from typing import Any

from tvmflow.sources.data.datasets import Samples
from tvmflow.support.progress import Progress


def train(network: Any, samples: Samples, training: dict[str, Any], progress: Progress) -> None:
    """Train a torch module, or a Keras model on the torch backend, in place: Adam, cosine schedule, cross entropy.

    Uses one thread, so that the seed determines every bit of the result on one kind of machine.
    """
    import torch

    from tvmflow.sources.networks.without_dynamo import optimizers_without_dynamo

    assert samples.y is not None and samples.y.ndim == 1
    torch.manual_seed(training["seed"])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    is_keras = hasattr(network, "trainable_variables")
    x, y = torch.from_numpy(samples.x), torch.from_numpy(samples.y)
    network.train()
    with contextlib.nullcontext() if is_keras else optimizers_without_dynamo():
        optimizer = torch.optim.Adam(network.parameters(), lr=training["learning_rate"])
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, training["epochs"])
        for epoch in range(training["epochs"]):
            for batch in torch.randperm(len(x)).split(training["batch_size"]):
                if len(batch) < 2:
                    continue  # a batch norm needs two samples
                optimizer.zero_grad()
                logits = network(x[batch], training=True) if is_keras else network(x[batch])
                torch.nn.functional.cross_entropy(logits, y[batch]).backward()
                optimizer.step()
            schedule.step()
            progress("training", epoch + 1, training["epochs"])
    network.eval()
    torch.set_num_threads(threads)
