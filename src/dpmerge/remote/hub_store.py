"""The Hugging Face hub: a branch is resolved to its commit once, and everything is read of that commit.

Guarantees: what a portfolio is read from is one commit, which never changes; its URL names it from then on.
Refuses: to publish there, for a commit of some files would be half of a release.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dpmerge.remote.remote_path import RemotePath
from dpmerge.remote.stores import ObjectState, Store, only_our_words

_COMMIT = re.compile(r"[0-9a-f]{40}")


class HubStore(Store):
    """By huggingface_hub, whose token and endpoint are those of its environment (HF_TOKEN, HF_ENDPOINT)."""

    def options(self) -> Mapping[str, Any]:
        return {"endpoint": os.environ.get("HF_ENDPOINT")}

    def pinned(self, path: RemotePath) -> RemotePath:
        where = self._resolved(path)
        if where is None or _COMMIT.fullmatch(where.revision):
            return path
        with only_our_words(path):
            commit = self.system._api.repo_info(where.repo_id, repo_type=where.repo_type, revision=where.revision).sha
            kind = {"dataset": "datasets/", "space": "spaces/"}.get(where.repo_type, "")
        return RemotePath(f"hf://{kind}{where.repo_id}@{commit}/{where.path_in_repo}")

    def forget(self) -> None:
        """Commits do not change; which of them a branch is now is asked every time."""

    def info(self, path: RemotePath) -> Mapping[str, Any]:
        return super().info(self.pinned(path))

    def entries(self, path: RemotePath) -> Iterator[tuple[str, str]]:
        return super().entries(self.pinned(path))

    def files(self, path: RemotePath) -> dict[str, int]:
        return super().files(self.pinned(path))

    def state(self, path: RemotePath) -> ObjectState:
        place = self.pinned(path)
        found = self.info(place)
        blob = found.get("lfs") or {}
        digest = (blob.get("sha256") if isinstance(blob, dict) else getattr(blob, "sha256", None)) or found.get(
            "blob_id"
        )
        if found.get("type") != "file" or not digest:
            return super().state(place)
        return ObjectState(size=int(found["size"]), identity=f"hf:{digest}", pin=(("path", place.key),))

    def read(self, path: RemotePath, state: ObjectState, start: int, end: int) -> bytes:
        place = dict(state.pin).get("path", path.key)
        with only_our_words(path):
            return bytes(self.system.cat_file(place, start=start, end=end, cache_type="none"))

    def _resolved(self, path: RemotePath) -> Any:
        with only_our_words(path):
            found = self.system.resolve_path(path.key)
        return found if hasattr(found, "repo_id") else None  # a bucket of the hub has no commits
