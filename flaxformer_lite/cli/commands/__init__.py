"""The commands, one file each: `add_arguments(parser)` declares the arguments, `run(arguments)` runs the command."""
