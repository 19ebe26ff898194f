"""Coverage-guided fuzzing of every parser in Python that reads files or messages of others: `make fuzz`."""
