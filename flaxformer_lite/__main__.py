"""`python -m flaxformer_lite COMMAND …`: the commands where the script `flaxformer-lite` is not on the PATH."""

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # before the other imports: Ctrl-C in one of them prints no traceback

from flaxformer_lite.cli.process import program

program()
