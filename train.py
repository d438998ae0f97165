"""Trains the experiment of a config file: `python train.py CONFIG …` is `flaxformer-lite train CONFIG …`."""

import signal
import sys

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # before the other imports: Ctrl-C in one of them prints no traceback

from flaxformer_lite.cli.process import program

if __name__ == "__main__":
    program(["train", *sys.argv[1:]])
