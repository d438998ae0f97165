"""`python -m flaxformer_lite COMMAND …`: the commands."""

from flaxformer_lite.cli.main import program

program()
