"""A small Hugging Face Hub on this machine: the endpoints that the real client asks when it fetches a snapshot."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

Files = dict[str, bytes]


class Hub:
    """Repositories by name, each a history of commits.

    Attributes:
        url: what `HF_ENDPOINT` is to be.
        refs: repository -> branch, tag or commit -> commit.
        commits: commit -> files.
        gated: repositories that show their listing and refuse their files.
        broken: files whose transfer stops half-way.
        requests: method and path of everything that was asked, in order.
    """

    def __init__(self) -> None:
        self.refs: dict[str, dict[str, str]] = {}
        self.commits: dict[str, Files] = {}
        self.gated: set[str] = set()
        self.broken: set[str] = set()
        self.requests: list[str] = []
        self.url = ""

    def put(self, name: str, files: Files | Path, revision: str = "main") -> str:
        """Makes `files`, or a folder's files, the state of a revision; returns its commit."""
        if isinstance(files, Path):
            files = {file.name: file.read_bytes() for file in files.iterdir()}
        listing = "".join(f"{path} {hashlib.sha256(data).hexdigest()}\n" for path, data in sorted(files.items()))
        commit = hashlib.sha1(f"{name}\n{listing}".encode()).hexdigest()
        self.commits[commit] = dict(files)
        self.refs.setdefault(name, {}).update({revision: commit, commit: commit})
        return commit

    def answer(self, path: str) -> tuple[HTTPStatus, dict[str, str], bytes]:
        """Status, headers and body of one request."""
        parts = unquote(path).strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            parts = parts[2:]
        owner, name, verb, revision = (*parts, "revision", "main")[:4] if len(parts) > 1 else ("", "", "", "")
        repo = f"{owner}/{name}"
        if repo not in self.refs:
            return _refusal(HTTPStatus.UNAUTHORIZED, "RepoNotFound")
        commit = self.refs[repo].get(revision)
        if commit is None:
            return _refusal(HTTPStatus.NOT_FOUND, "RevisionNotFound")
        files = self.commits[commit]
        if verb == "revision":
            siblings = [{"rfilename": file} for file in files]
            return _json({"id": repo, "sha": commit, "private": False, "siblings": siblings})
        if verb == "tree":
            return _json([_entry(file, data) for file, data in files.items()])
        if repo in self.gated:
            return _refusal(HTTPStatus.FORBIDDEN, "GatedRepo")
        data = files.get("/".join(parts[4:]))
        if data is None:
            return _refusal(HTTPStatus.NOT_FOUND, "EntryNotFound")
        digest = hashlib.sha256(data).hexdigest()
        return HTTPStatus.OK, {"X-Repo-Commit": commit, "ETag": f'"{digest}"', "Accept-Ranges": "bytes"}, data


def _refusal(status: HTTPStatus, code: str) -> tuple[HTTPStatus, dict[str, str], bytes]:
    return status, {"X-Error-Code": code, "X-Error-Message": code}, b""


def _json(value: object) -> tuple[HTTPStatus, dict[str, str], bytes]:
    return HTTPStatus.OK, {"Content-Type": "application/json"}, json.dumps(value).encode()


def _entry(path: str, data: bytes) -> dict[str, object]:
    entry: dict[str, object] = {
        "type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest(),
    }  # fmt: skip
    if path.endswith(".safetensors"):
        entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
    return entry


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_HEAD(self) -> None:
        self._respond(with_body=False)

    def do_GET(self) -> None:
        self._respond(with_body=True)

    def _respond(self, with_body: bool) -> None:
        path = urlsplit(self.path).path
        self.hub.requests.append(f"{self.command} {path}")
        status, headers, body = self.hub.answer(path)
        span = self.headers.get("Range")
        if status is HTTPStatus.OK and span:
            first, _, last = span.removeprefix("bytes=").partition("-")
            start, stop = int(first), int(last or len(body) - 1)
            headers |= {"Content-Range": f"bytes {start}-{stop}/{len(body)}"}
            status, body = HTTPStatus.PARTIAL_CONTENT, body[start : stop + 1]
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if with_body and path.rsplit("/", 1)[-1] in self.hub.broken:
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        elif with_body:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub that answers while the context lasts."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
