"""S3, and what speaks its language: every range is asked for with a version id, or under the condition of one ETag.

Guarantees: a range of an object that was replaced meanwhile is an error; an object is made only where there is none
(If-None-Match), also when it is uploaded in parts; parts that a dead process left can be given up.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dpmerge.remote.remote_path import RemotePath
from dpmerge.remote.stores import ObjectState, Store, only_our_words

PART, MOST_PARTS = 2**24, 9_000
"""Bytes of a part, and how many there may be (S3 takes 10,000)."""


class S3Store(Store):
    """By s3fs, whose credentials, region and endpoint are those of the AWS libraries (AWS_…, profiles)."""

    creates = True

    def state(self, path: RemotePath) -> ObjectState:
        found = super().state(path)
        name, _, value = found.identity.partition(";")[0].partition("=")
        # In a bucket without versions an object is known by its ETag alone.
        pin = (("VersionId", value),) if name == "VersionId" else (("IfMatch", value),)
        return ObjectState(size=found.size, identity=found.identity, pin=pin)

    def read(self, path: RemotePath, state: ObjectState, start: int, end: int) -> bytes:
        from fsspec.asyn import sync

        bucket, _, key = path.key.partition("/")
        wanted = {"Bucket": bucket, "Key": key, "Range": f"bytes={start}-{end - 1}", **dict(state.pin)}
        with only_our_words(path):
            content: bytes = sync(self.system.loop, _got, self.system, wanted)
        if len(content) != end - start:
            raise OSError(errno.ESTALE, "was changed while it was read", str(path))
        return content

    def create(self, path: RemotePath, content: bytes) -> None:
        with _only_where_there_is_none(path):
            super().create(path, content)

    def upload(self, file: Path, path: RemotePath, progress: Callable[[int], object]) -> None:
        with _only_where_there_is_none(path):
            super().upload(file, path, progress)

    def parts(self, size: int) -> Mapping[str, int]:
        return {"chunksize": max(PART, -(-size // MOST_PARTS)), "max_concurrency": 2}

    def drop_unfinished(self, path: RemotePath) -> None:
        bucket, _, key = path.key.partition("/")
        with only_our_words(path):
            for each in self.system.list_multipart_uploads(bucket):
                if str(each["Key"]).startswith(f"{key.rstrip('/')}/"):
                    self.system.call_s3(
                        "abort_multipart_upload", Bucket=bucket, Key=each["Key"], UploadId=each["UploadId"]
                    )


@contextmanager
def _only_where_there_is_none(path: RemotePath) -> Iterator[None]:
    """Not every server says which condition failed; here there is one."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        raise FileExistsError(errno.EEXIST, "is there already", str(path)) from None


async def _got(system: Any, wanted: dict[str, str]) -> bytes:
    answer = await system._call_s3("get_object", **wanted)
    async with answer["Body"] as body:
        return bytes(await body.read())
