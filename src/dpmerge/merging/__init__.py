"""Merging: the model of a recipe, streamed from safetensors to safetensors, and staged so that it appears whole."""
