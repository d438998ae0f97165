"""Readers and writers of files: texts, tables, tokenizers, chats, sources of data, stores of tokens; scores of texts."""
