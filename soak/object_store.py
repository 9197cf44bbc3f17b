"""An S3 server on loopback, whose requests are seen and can be made to fail: for tests and the soak.

It is moto's, in a process of its own, so that whoever is killed leaves it standing.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dpmerge.remote.remote_path import RemotePath, location
from dpmerge.remote.stores import store_of

ACCESS_KEY = "AKIAEXAMPLEEXAMPLE00"
SECRET_KEY = "never/write/this/secret/key/anywhere+0123"  # noqa: S105  (of a server that lives for a test)


@dataclass(frozen=True)
class ObjectStore:
    """A server, and what it saw: `gate` is a folder through which its requests are counted, held and broken."""

    address: str
    gate: Path

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_ENDPOINT_URL": self.address,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def bucket(self, name: str, *, versions: bool = False) -> RemotePath:
        """A new bucket."""
        path = location(f"s3://{name}/")
        assert isinstance(path, RemotePath)
        system = store_of(path).system
        system.call_s3("create_bucket", Bucket=name)
        if versions:
            system.call_s3("put_bucket_versioning", Bucket=name, VersioningConfiguration={"Status": "Enabled"})
        return path

    def requests(self) -> list[dict[str, object]]:
        """What was asked since `forget`: method, path, and how many bytes were answered."""
        log = self.gate / "requests"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def forget(self) -> None:
        (self.gate / "requests").unlink(missing_ok=True)

    def bytes_read(self) -> int:
        """Of objects."""
        return sum(int(str(each["sent"])) for each in self.requests() if each["method"] == "GET" and each["object"])

    def fail(self, **wanted: object) -> None:
        """Requests of this `method` whose path has `part` are answered with `status`, after `skip` of them."""
        (self.gate / "fail.new").write_text(json.dumps({"skip": 0, "status": 500, **wanted}))
        (self.gate / "fail.new").replace(self.gate / "fail")

    def mend(self) -> None:
        (self.gate / "fail").unlink(missing_ok=True)


@contextmanager
def object_store(folder: Path) -> Iterator[ObjectStore]:
    """A server for as long as it is needed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "soak.object_store_server", str(port), str(folder)]
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603
    try:
        store = ObjectStore(f"http://127.0.0.1:{port}", folder)
        _wait_for(store.address, process)
        yield store
    finally:
        process.kill()
        process.wait()


def _wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(f"{address}/moto-api/", timeout=5).close()  # noqa: S310
        except OSError:
            if process.poll() is not None or time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return


def upload_folder(folder: Path, to: RemotePath) -> None:
    """Every file of a folder, as objects beneath a prefix."""
    store = store_of(to)
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        store.upload(file, to / str(file.relative_to(folder)), lambda _: None)


def downloaded(prefix: RemotePath) -> Mapping[str, bytes]:
    """Every object beneath a prefix."""
    store = store_of(prefix)
    return {name: store.system.cat_file((prefix / name).key) for name in store.files(prefix)}
