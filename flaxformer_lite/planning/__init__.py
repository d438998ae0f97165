"""What a training step costs on a TPU slice, predicted by its compiler."""
