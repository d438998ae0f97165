"""Conversations: read from files and requests, written by a model's chat template, and as questions to a model that translates.

`messages` reads them, `chat` writes them by a template. `form` has the forms in which a model is asked for translations;
`asking` is that of a chat model, by the message of `translation_prompt`.
"""
