"""The commands, one file each: `add_arguments(parser)` says what can be typed, `run(arguments)` does it."""
