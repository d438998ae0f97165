"""Folders of Hugging Face: related families a file, and the code that all families share.

`families.py` lists the families; each is a `Family` (`family.py`): a table of options and a table of weights. Beside the model:
`decoding.py` (how it generates), `sentence.py` (sentence embeddings), `tokenizer_files.py` (tokenizers, in), `tokenizer_export.py`
(out), `card.py` (the model card).
"""
