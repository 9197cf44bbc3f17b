"""Where independent work is done: threads, processes, Ray, Dask, or any `concurrent.futures.Executor`."""

from dpmerge.executors.named_executors import open_executor

__all__ = ["open_executor"]
