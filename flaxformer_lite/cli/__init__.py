"""The command line.

`main.py` has the table of commands and the frame around each; `commands/` has one file a command, and `task.py` for all tasks.
`options.py` has the options that several share, and makes values with types of what argparse returns: no other file reads that.
`input_lines.py` reads the lines a command answers, `answering.py` prints the answers.
"""
