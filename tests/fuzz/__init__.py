"""Coverage-guided fuzzing of all parsers in Python for external files and messages: `make fuzz`."""
