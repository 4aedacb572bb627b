"""A Hub on this machine: the few endpoints that huggingface_hub uses to make, fill and download a repository."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_writes"


class Hub(ThreadingHTTPServer):
    """Keeps repositories in memory; tensors and films go through LFS, as at the real one."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        """Name to path to contents."""
        self.private: set[str] = set()
        self.objects: dict[str, bytes] = {}
        self.downloads: list[str] = []
        """Paths of files that were asked for."""
        self.status = 0
        """Status of every answer, if it is not 0."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def variables(self, token: str | None = TOKEN) -> dict[str, str]:
        """Those that send the client here. It reads them when it is imported."""
        variables = {"HF_ENDPOINT": self.address, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        return variables | ({} if token is None else {"HF_TOKEN": token})

    def sha(self, repo: str) -> str:
        """Hash of the newest commit."""
        contents = sorted((name, hashlib.sha1(data).hexdigest()) for name, data in self.repositories[repo].items())
        return hashlib.sha1(json.dumps(contents).encode()).hexdigest()


@contextmanager
def running_hub() -> Iterator[Hub]:
    """A Hub that answers until the end of the block."""
    with Hub() as hub:
        thread = threading.Thread(target=hub.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub, length = self.server, int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else self._read_chunks()
        path = self.path.partition("?")[0]
        allowed = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if hub.status:
            return self._send(hub.status, {"error": "maintenance"})
        if self.command == "PUT":
            hub.objects[path.rpartition("/")[2]] = body
            return self._send(200, {})
        if self.command == "POST" and not allowed:
            return self._send(401, {"error": "Invalid username or password."})
        if path == "/api/whoami-v2":
            return self._send(200, {"name": "user"}) if allowed else self._send(401, {"error": "Invalid token"})
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path == "/api/validate-yaml":
            return self._send(200, {"errors": [], "warnings": []})
        repo = "/".join(path.removeprefix("/api/models").split("/")[1:3]).removesuffix(".git")
        if repo not in hub.repositories or (repo in hub.private and not allowed):
            return self._send(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        if path.endswith("/preupload/main"):
            return self._choose_modes(json.loads(body)["files"])
        if path.endswith("/info/lfs/objects/batch"):
            return self._offer_places(json.loads(body)["objects"])
        if path.endswith("/commit/main"):
            return self._commit(repo, [json.loads(line) for line in body.splitlines()])
        if "/tree/" in path:
            return self._send(200, [_entry(name, data) for name, data in hub.repositories[repo].items()])
        if "/resolve/" in path:
            hub.downloads.append(path)
            return self._resolve(repo, path.split("/resolve/")[1].partition("/")[2])
        siblings = [{"rfilename": name} for name in hub.repositories[repo]]
        self._send(200, {"id": repo, "sha": hub.sha(repo), "private": repo in hub.private, "siblings": siblings})

    def _create(self, wanted: dict[str, Any]) -> None:
        repo = f"{wanted['organization']}/{wanted['name']}"
        url = f"{self.server.address}/{repo}"
        if repo in self.server.repositories:
            return self._send(409, {"error": "You already created this model repo", "url": url})
        self.server.repositories[repo] = {}
        if wanted.get("private") or wanted.get("visibility") == "private":
            self.server.private.add(repo)
        self._send(200, {"url": url, "name": repo, "id": repo})

    def _choose_modes(self, files: list[dict[str, Any]]) -> None:
        modes = [
            {"path": file["path"], "shouldIgnore": False, "uploadMode": "lfs" if _is_large(file["path"]) else "regular"}
            for file in files
        ]
        self._send(200, {"files": modes})

    def _offer_places(self, objects: list[dict[str, Any]]) -> None:
        offers = [one | {"actions": {"upload": {"href": f"{self.server.address}/lfs/{one['oid']}"}}} for one in objects]
        self._send(200, {"transfer": "basic", "objects": offers})

    def _commit(self, repo: str, lines: list[dict[str, Any]]) -> None:
        files = self.server.repositories[repo]
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.server.objects[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        sha = self.server.sha(repo)
        self._send(200, {"commitUrl": f"{self.server.address}/{repo}/commit/{sha}", "commitOid": sha})

    def _resolve(self, repo: str, name: str) -> None:
        data = self.server.repositories[repo][name]
        headers = {"X-Repo-Commit": self.server.sha(repo), "ETag": f'"{hashlib.sha1(data).hexdigest()}"'}
        self._send(200, data, headers)

    def _read_chunks(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return b""
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _send(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _is_large(name: str) -> bool:
    return name.endswith((".safetensors", ".mp4"))


def _entry(name: str, data: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
    if _is_large(name):
        entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
    return entry
