"""Releasing: charged and drawn in one transaction, then merged, certified and recorded; finished after a crash."""
