"""miniature: a generated world with its retriever, tokenizer and tiny warm-started policies; minutes on one CPU."""
