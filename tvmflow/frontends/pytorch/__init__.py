"""Import PyTorch models through torch.export."""
