"""The paper's experiments and ours, each one command, beside what is proved (extras `torch` and `report`)."""
