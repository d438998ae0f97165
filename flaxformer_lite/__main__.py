"""`python -m flaxformer_lite COMMAND …`: the commands."""

from flaxformer_lite.cli.process import program

program()
