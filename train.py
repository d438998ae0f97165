"""Trains the experiment of a config file: `python train.py CONFIG …` is `python -m flaxformer_lite train CONFIG …`."""

import sys

from flaxformer_lite.cli.process import program

if __name__ == "__main__":
    program(["train", *sys.argv[1:]])
