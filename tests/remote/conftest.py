"""An S3 server and a stub of the hub, on loopback; portfolios in them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from s3fs import S3FileSystem
from soak.kills import write_models
from soak.object_store import ObjectStore, upload_folder
from soak.object_store import object_store as started

from dpmerge.remote.remote_path import RemotePath
from remote.hub_stub import HubStub, hub_stub


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with started(tmp_path_factory.mktemp("gate")) as store:
        yield store


@pytest.fixture
def object_store(s3_server: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ObjectStore]:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DPMERGE_HOME", str(tmp_path / "private"))
    S3FileSystem.clear_instance_cache()  # one that was made in another environment
    s3_server.forget()
    yield s3_server
    s3_server.mend()


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs of two checkpoints, on disk: each of 8 tensors of 12,500 values, 0.4 MB."""
    return write_models(tmp_path_factory.mktemp("models") / "portfolio", values=12_500)


@pytest.fixture
def bucket(object_store: ObjectStore) -> RemotePath:
    return object_store.bucket(f"models-{secrets.token_hex(4)}")


@pytest.fixture
def portfolio_url(bucket: RemotePath, models: Path, object_store: ObjectStore) -> str:
    upload_folder(models, bucket / "portfolio")
    object_store.forget()
    return str(bucket / "portfolio")


@pytest.fixture
def hub(tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubStub]:
    with hub_stub("lab/portfolio", models) as stub:
        monkeypatch.setenv("HF_ENDPOINT", stub.address)
        monkeypatch.setenv("DPMERGE_HOME", str(tmp_path / "private"))
        yield stub
