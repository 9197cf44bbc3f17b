"""Where independent work is done: threads, processes, Ray, Dask, or any `concurrent.futures.Executor`."""
