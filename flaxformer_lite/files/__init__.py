"""What comes from files and goes to files: texts, tables, tokenizers, chats, sources of data, stores of tokens; scores of texts."""
