"""The train step, the devices it runs on, and the loop around it."""
