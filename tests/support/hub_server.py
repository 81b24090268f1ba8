"""A local server that speaks the part of the Hugging Face Hub's protocol that vidc uses."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_RESOLVE = re.compile(r"/([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)")
_API = re.compile(r"/api/models/([\w.-]+/[\w.-]+)(?:/(\w+)/([^/?]+))?(?:/.*)?")


class Hub:
    """Repositories by name: the files of each branch, by path.

    Attributes:
        repositories: repository to branch to files.
        requests: method and path of each request, in order.
        read_only: True if every write is refused, as with a token that may only read.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, dict[str, bytes]]] = {}
        self.requests: list[str] = []
        self.read_only = False

    def add(self, repository: str, folder: Path, branch: str = "main") -> None:
        """Adds a folder's files as a branch."""
        files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }
        self.repositories.setdefault(repository, {"main": {}})[branch] = files

    def files(self, repository: str, revision: str) -> dict[str, bytes] | None:
        """Returns the files of a branch or commit; None if there is none."""
        branches = self.repositories.get(repository, {})
        for name, files in branches.items():
            if revision in (name, self.commit(repository, name)):
                return files
        return None

    def commit(self, repository: str, branch: str) -> str:
        """Returns the commit of a branch, a digest of its files."""
        files = self.repositories[repository][branch]
        listed = sorted((path, hashlib.sha1(data).hexdigest()) for path, data in files.items())
        return hashlib.sha1(json.dumps([repository, branch, listed]).encode()).hexdigest()

    def branch(self, repository: str, revision: str) -> str:
        """Returns the branch of a revision that exists."""
        branches = self.repositories[repository]
        return next(b for b in branches if revision in (b, self.commit(repository, b)))


@contextmanager
def serving(hub: Hub) -> Iterator[str]:
    """Serves a hub; yields its address."""

    class Handler(_Handler):
        pass

    Handler.hub = hub
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Writes nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self._path()
        if found := _RESOLVE.fullmatch(path):
            self._file(*found.groups())
        elif found := _API.fullmatch(path):
            self._info(found[1], found[3] or "main", tree=found[2] == "tree")
        else:
            self._refuse("EntryNotFound")

    def do_POST(self) -> None:
        path, body = self._path(), self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.hub.read_only:
            self._json({"error": "this token may not write"}, 403)
            return
        if path == "/api/repos/create":
            document = json.loads(body)
            name = "/".join(filter(None, (document.get("organization"), document["name"])))
            exists = name in self.hub.repositories
            self.hub.repositories.setdefault(name, {"main": {}})
            self._json({"url": f"http://{self.headers['Host']}/{name}"}, 409 if exists else 200)
            return
        found = _API.fullmatch(path)
        if found is None or found[1] not in self.hub.repositories:
            self._refuse("RepoNotFound")
        elif found[2] == "branch":
            self.hub.repositories[found[1]].setdefault(unquote(found[3]), {})
            self._json({})
        elif found[2] == "preupload":
            files = [
                {"path": each["path"], "uploadMode": "regular", "shouldIgnore": False}
                for each in json.loads(body)["files"]
            ]
            self._json({"files": files})
        elif found[2] == "commit":
            self._commit(found[1], found[3], body)
        else:
            self._refuse("EntryNotFound")

    def _path(self) -> str:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        return path

    def _commit(self, repository: str, branch: str, body: bytes) -> None:
        files = self.hub.repositories[repository][branch]
        for line in body.splitlines():
            entry = json.loads(line)
            if entry["key"] == "file":
                files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            elif entry["key"] == "deletedFile":
                del files[entry["value"]["path"]]
        commit = self.hub.commit(repository, branch)
        url = f"http://{self.headers['Host']}/{repository}/commit/{commit}"
        self._json({"success": True, "commitOid": commit, "commitUrl": url})

    def _info(self, repository: str, revision: str, *, tree: bool) -> None:
        files = self.hub.files(repository, revision)
        if repository not in self.hub.repositories:
            self._refuse("RepoNotFound")
        elif files is None:
            self._refuse("RevisionNotFound")
        elif tree:
            self._json(
                [
                    {"type": "file", "path": path, "size": len(data), "oid": _oid(data)}
                    for path, data in files.items()
                ]
            )
        else:
            commit = self.hub.commit(repository, self.hub.branch(repository, revision))
            siblings = [{"rfilename": path} for path in files]
            self._json({"id": repository, "sha": commit, "siblings": siblings, "tags": []})

    def _file(self, repository: str, revision: str, path: str) -> None:
        files = self.hub.files(repository, revision)
        if files is None or path not in files:
            self._refuse("EntryNotFound")
            return
        commit = self.hub.commit(repository, self.hub.branch(repository, revision))
        self._send(files[path], {"ETag": f'"{_oid(files[path])}"', "X-Repo-Commit": commit})

    def _refuse(self, code: str) -> None:
        self._send(b"", {"X-Error-Code": code, "X-Error-Message": "not found"}, 404)

    def _json(self, document: Any, status: int = 200) -> None:
        self._send(json.dumps(document).encode(), {"Content-Type": "application/json"}, status)

    def _send(self, body: bytes, headers: dict[str, str], status: int = 200) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _oid(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
