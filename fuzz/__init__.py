"""Fuzzing of everything that reads files a stranger may have written."""
