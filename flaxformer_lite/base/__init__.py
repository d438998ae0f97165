"""Messages, atomic and remote files, bounds of settings, hardware, shipped configs: every room may use them.

`console.py` prints, `atomic_files.py` writes files that are whole or absent, `remote_files.py` reads those of object stores.
`bounds.py` has the types of settings with a legal range, `tree_paths.py` the paths of parameters.
"""
