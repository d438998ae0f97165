"""Texts: files and tables of them, what a word is, and the form in which texts are compared.

`files` reads text files and streams of lines, `tables` those with columns, `json_objects` those with JSON. `words` says what a word
is, `normal_form` when two texts are equal, `terms` which words a translation needs.
"""
