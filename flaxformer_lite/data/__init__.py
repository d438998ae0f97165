"""Data: where examples come from, which of them make a batch, and how batches reach the devices."""
