"""The command line.

`main.py` has the table of commands and the frame around each; `commands/` has one file a command. `input_lines.py` reads the lines
a command answers, `answering.py` prints the answers, `options.py` adds options that are settings of decoding.
"""
