"""A stand-in for the Hugging Face Hub, as far as a loader of datasets speaks with it, on two free ports.

    with HubServer() as server:
        server.make_bucket("org/name")                 # a dataset's repository
        server.put("org/name", "data/0.parquet", b"…") # a commit on `main`
        server.storage_options()                       # for headrace
        server.environment()                           # HF_ENDPOINT and HF_TOKEN

| request | answer |
| --- | --- |
| `GET /api/datasets/{id}`, `.../revision/{rev}` | the commit, with the names of its files |
| `GET /api/datasets/{id}/tree/{rev}/{path}` | files and folders in pages that `Link` leads through |
| `GET` or `HEAD /datasets/{id}/resolve/{rev}/{path}` | where it lies: small text on this port, else the other |

Large files lie on the second port, which stands for the content network: a signed URL that expires, a tag that looks
like the file's hash and is none, and a refusal of whoever sends it an `Authorization` header. Errors have the Hub's
statuses, `X-Error-Code` and `X-Error-Message`. Only the standard library.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import urllib.parse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tools.http_server import check_signature, signed
from tools.serving import HOST, Entity, Handler, HttpService, StoreServer, quoted

__all__ = ["HubServer"]

SECRET = "the content network's"
TEXT = (".gitattributes", ".json", ".md", ".txt", ".yaml")  # What the Hub keeps in Git itself.
BRANCH = "main"


class HubServer(StoreServer):
    """A running server; a context manager.

    Args:
        token: A token that may read everything. Others have to be added to `tokens`.
        page: The most entries in a page of a listing.
        link_seconds: How long the URL of a large file holds.
    """

    def __init__(self, token: str = "hf_headrace0123456789", *, page: int = 1000, link_seconds: float = 3600) -> None:
        self.token = token
        self.page = page
        self.link_seconds = link_seconds
        self.tokens: dict[str, set[str] | None] = {token: None}
        """Tokens, each with the restricted repositories that it opens; None for all."""
        self.leaks: list[str] = []
        """Requests to the content network that had an `Authorization` header."""
        self.content_endpoint: str | None = None
        """Where redirects lead, if not to the content network itself: a proxy before it."""
        self._repositories: dict[str, _Repository] = {}
        self._blobs: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._services: list[HttpService] = []

    def url(self, bucket: str, path: str = "", endpoint: str | None = None, revision: str | None = None) -> str:
        return f"hf://datasets/{bucket}{f'@{revision}' if revision else ''}/{path}"

    def storage_options(self, endpoint: str | None = None) -> dict[str, str]:
        return {"endpoint": endpoint or self.endpoint, "token": self.token}

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        return {"HF_ENDPOINT": endpoint or self.endpoint, "HF_TOKEN": self.token}

    def start(self) -> None:
        self._services = [HttpService(_Hub, self), HttpService(_Content, self)]
        self.port, self.content_port = (service.port for service in self._services)
        for service in self._services:
            service.start()

    def stop(self) -> None:
        for service in self._services:
            service.stop()
        self._services = []

    def make_bucket(self, bucket: str, access: Literal["public", "gated", "private"] = "public") -> None:
        """Makes an empty repository.

        Args:
            bucket: Its name: `org/name`.
            access: Who may read it: everybody, with a token that `tokens` opens it to, or the same and nobody else is
                to know that it exists.
        """
        with self._lock:
            self._repositories[bucket] = _Repository(bucket, access)
        self._commit(bucket, {})

    def put(self, bucket: str, key: str, body: bytes) -> None:
        self._commit(bucket, {key: body})

    def delete(self, bucket: str, key: str) -> None:
        self._commit(bucket, {key: None})

    def put_folder(self, bucket: str, folder: str | os.PathLike[str], prefix: str = "") -> None:
        root = Path(folder)
        paths = [path for path in sorted(root.rglob("*")) if path.is_file()]
        self._commit(bucket, {prefix + path.relative_to(root).as_posix(): path.read_bytes() for path in paths})

    def branch(self, bucket: str, name: str) -> None:
        """Names the newest commit: a branch or a tag that stays where it is."""
        with self._lock:
            repository = self._repositories[bucket]
            repository.revisions[name] = repository.revisions[BRANCH]

    def commit(self, bucket: str, revision: str = BRANCH) -> str:
        """The commit of a revision: 40 hexadecimal digits."""
        with self._lock:
            return self._repositories[bucket].revisions[revision]

    def _commit(self, bucket: str, changes: dict[str, bytes | None]) -> None:
        with self._lock:
            repository = self._repositories[bucket]
            files = dict(repository.commits.get(repository.revisions.get(BRANCH, ""), {}))
            for path, body in changes.items():
                if body is None:
                    del files[path]
                else:
                    files[path] = hashlib.sha256(body).hexdigest()
                    self._blobs[files[path]] = body
            told = json.dumps([bucket, len(repository.commits), files], sort_keys=True)
            commit = hashlib.sha1(told.encode(), usedforsecurity=False).hexdigest()
            repository.commits[commit] = dict(sorted(files.items()))
            repository.revisions[BRANCH] = commit

    # What its handlers ask.

    def find(self, name: str, token: str | None) -> _Repository:
        """A repository that a token may know of, or the Hub's refusal."""
        if token is not None and token not in self.tokens:
            raise _Refusal(401, "", "Invalid credentials in Authorization header")
        with self._lock:
            repository = self._repositories.get(name)
        if repository is None or (repository.access == "private" and not self._opens(token, name)):
            # Whoever is not logged in is not told whether there is one.
            raise _Refusal(401 if token is None else 404, "RepoNotFound", "Repository not found")
        return repository

    def check_access(self, repository: _Repository, token: str | None) -> None:
        """Refuses files of a gated repository as the Hub does."""
        name = repository.name
        if repository.access == "public" or self._opens(token, name):
            return
        told = f"Access to dataset {name} is restricted"
        if token is None:
            told += ". You must have access to it and be authenticated to access it. Please log in."
            raise _Refusal(401, "GatedRepo", told)
        told += (
            f" and you are not in the authorized list. Visit https://huggingface.co/datasets/{name} to ask for access."
        )
        raise _Refusal(403, "GatedRepo", told)

    def _opens(self, token: str | None, name: str) -> bool:
        if token is None or token not in self.tokens:
            return False
        opened = self.tokens[token]
        return opened is None or name in opened

    def blob(self, digest: str) -> bytes | None:
        """Content by its SHA-256."""
        with self._lock:
            return self._blobs.get(digest)


@dataclass
class _Repository:
    name: str
    access: str
    revisions: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, str]] = field(default_factory=dict)
    """Each commit's files: path and SHA-256 of the content."""

    def at(self, revision: str) -> tuple[str, dict[str, str]]:
        """The commit of a revision and its files."""
        commit = self.revisions.get(revision, revision)
        if commit not in self.commits:
            raise _Refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit, self.commits[commit]


class _Refusal(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


class _Hub(Handler):
    def handle_any(self) -> None:
        self.body()
        parts = urllib.parse.urlsplit(self.path)
        # Names may hold encoded slashes, so that they are told apart before they are decoded.
        path = [urllib.parse.unquote(part) for part in parts.path.strip("/").split("/")]
        query = dict(urllib.parse.parse_qsl(parts.query))
        try:
            match path:
                case ["api", "datasets", org, name]:
                    self._show(f"{org}/{name}", BRANCH)
                case ["api", "datasets", org, name, "revision", revision]:
                    self._show(f"{org}/{name}", revision)
                case ["api", "datasets", org, name, "tree", revision, *below]:
                    self._list(f"{org}/{name}", revision, "/".join(below), query)
                case ["datasets", org, name, "resolve", revision, *below]:
                    self._resolve(f"{org}/{name}", revision, "/".join(below))
                case ["api", "resolve-cache", "datasets", org, name, commit, *below]:
                    self._send_text(f"{org}/{name}", commit, "/".join(below))
                case _:
                    raise _Refusal(404, "", "Sorry, we can't find the page you are looking for.")
        except _Refusal as refusal:
            # Headers hold no other letters.
            headers = [("X-Error-Message", refusal.message.encode("ascii", "replace").decode())]
            if refusal.code:
                headers.append(("X-Error-Code", refusal.code))
            self._json({"error": refusal.message}, refusal.status, headers)

    @property
    def _hub(self) -> HubServer:
        return self.server.owner

    def _token(self) -> str | None:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None

    def _json(self, value: Any, status: int = 200, headers: list[tuple[str, str]] | None = None) -> None:
        headers = [("Content-Type", "application/json; charset=utf-8"), *(headers or [])]
        self.answer(status, headers, json.dumps(value).encode())

    def _show(self, name: str, revision: str) -> None:
        repository = self._hub.find(name, self._token())
        commit, files = repository.at(revision)
        self._json(
            {
                "id": name,
                "sha": commit,
                "private": repository.access == "private",
                "gated": "auto" if repository.access == "gated" else False,
                "siblings": [{"rfilename": path} for path in files],
            }
        )

    def _list(self, name: str, revision: str, folder: str, query: dict[str, str]) -> None:
        _, files = self._hub.find(name, self._token()).at(revision)
        entries = self._entries(files, folder, recursive=query.get("recursive", "").lower() in ("true", "1"))
        if folder and not entries:
            raise _Refusal(404, "EntryNotFound", f"{folder} does not exist on {revision!r}")
        first = int(query.get("cursor") or 0)
        last = first + min(int(query.get("limit") or self._hub.page), self._hub.page)
        headers = []
        if last < len(entries):
            again = urllib.parse.urlencode({**query, "cursor": last})
            path = urllib.parse.urlsplit(self.path).path
            headers.append(("Link", f'<http://{self.headers["Host"]}{path}?{again}>; rel="next"'))
        self._json(entries[first:last], headers=headers)

    def _entries(self, files: dict[str, str], folder: str, *, recursive: bool) -> list[dict[str, Any]]:
        """What a listing shows of a folder: folders before what is in them."""
        inside = f"{folder}/" if folder else ""
        found: dict[str, dict[str, Any]] = {}
        for path, digest in files.items():
            if not path.startswith(inside):
                continue
            parts = path[len(inside) :].split("/")
            for depth in range(1, len(parts)):
                above = inside + "/".join(parts[:depth])
                if recursive or depth == 1:
                    found[above] = {"type": "directory", "oid": _git_name(above.encode()), "size": 0, "path": above}
            if recursive or len(parts) == 1:
                content = self._hub.blob(digest) or b""
                found[path] = {"type": "file", "oid": _git_name(content), "size": len(content), "path": path}
                if not path.endswith(TEXT):
                    found[path]["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 134}
        return list(found.values())

    def _resolve(self, name: str, revision: str, path: str) -> None:
        commit, digest, content = self._find(name, revision, path)
        headers = [("X-Repo-Commit", commit)]
        if path.endswith(TEXT):
            here = f"/api/resolve-cache/datasets/{name}/{commit}/{quoted(path)}?etag=%22{_git_name(content)}%22"
            self.answer(307, [*headers, ("Location", here)], b"Temporary Redirect. Redirecting")
            return
        hub = self._hub
        there = f"{hub.content_endpoint or f'http://{HOST}:{hub.content_port}'}/{quoted(name)}/{digest}"
        headers += [("X-Linked-Size", str(len(content))), ("X-Linked-Etag", f'"{digest}"')]
        # As the Hub's own, this answer's tag is the file's too, and its length is not.
        headers += [("ETag", f'"{digest}"'), ("Location", signed(there, SECRET, hub.link_seconds))]
        self.answer(302, headers, b"Found. Redirecting")

    def _send_text(self, name: str, revision: str, path: str) -> None:
        commit, _, content = self._find(name, revision, path)
        self.answer_entity(Entity.of(content, f'"{_git_name(content)}"'), [("X-Repo-Commit", commit)])

    def _find(self, name: str, revision: str, path: str) -> tuple[str, str, bytes]:
        """The commit, SHA-256 and content of a file that may be read."""
        hub, token = self._hub, self._token()
        repository = hub.find(name, token)
        hub.check_access(repository, token)
        commit, files = repository.at(revision)
        content = hub.blob(files[path]) if path in files else None
        if content is None:
            raise _Refusal(404, "EntryNotFound", "Entry not found")
        return commit, files[path], content


def _git_name(content: bytes) -> str:
    """How Git calls a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


class _Content(Handler):
    def handle_any(self) -> None:
        hub: HubServer = self.server.owner
        self.body()
        if "Authorization" in self.headers:
            hub.leaks.append(self.path)
            self.answer(400, content=b"only one way to prove who asks is allowed")
            return
        fault = check_signature(self.path, SECRET)
        if fault is not None:
            self.answer(403, content=fault.encode())
            return
        digest = urllib.parse.urlsplit(self.path).path.rpartition("/")[2]
        content = hub.blob(digest)
        if content is None:
            self.answer(404)
        else:
            tag = hashlib.sha256(digest.encode()).hexdigest()
            self.answer_entity(Entity.of(content, f'"{tag}"'))
