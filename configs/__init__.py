"""One experiment a file: `get_config()` returns its `Config`."""
