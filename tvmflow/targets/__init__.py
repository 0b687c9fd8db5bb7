"""What a target is, resolved for this machine."""
