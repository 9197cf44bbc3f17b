"""The paper's experiments and ours, and the audit's scenarios: `python -m reproduction`, from the repository's folder.

Not part of what is installed; it needs the extras `torch` and `report`.
"""
