"""UTF-8 that another program read as Windows-1252."""

UNMAPPED = (0x81, 0x8D, 0x8F, 0x90, 0x9D)
"""The bytes that Windows-1252 lacks, which browsers and most programs leave as they are."""


def misread(text: str) -> str:
    return "".join(chr(byte) if byte in UNMAPPED else bytes([byte]).decode("cp1252") for byte in text.encode())
