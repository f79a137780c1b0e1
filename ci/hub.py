"""A small Hugging Face Hub on this machine, for the real client: revisions, ranges, redirects, hashes, and faults.

Like the Hub, it keeps safetensors and pickles as large files: asked for one, it points to a signed address on another
host (here `localhost`, where the Hub itself is `127.0.0.1`) and states commit, length and SHA-256 beside it.
"""

import hashlib
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import parse_qs, unquote, urlsplit

from huggingface_hub import constants

if TYPE_CHECKING:
    import pytest

Files = dict[str, bytes]
LARGE = (".safetensors", ".bin")


@dataclass
class Fault:
    """Something that goes wrong with answers.

    Attributes:
        kind: a status to answer with; `reset` closes the connection half-way; `short` states and sends half of the
            range, `long` a byte more; `whole` ignores the range; `corrupt` changes the first byte; `drip` sends a few
            bytes at a time.
        path: what the path or the file's name ends in.
        times: how often, before all is well again.
        headers: beside the status.
        method: of the requests concerned.
    """

    kind: int | Literal["reset", "short", "long", "whole", "corrupt", "drip"]
    path: str
    times: int = 1_000_000
    headers: dict[str, str] = field(default_factory=dict)
    method: str = "GET"


class Hub:
    """Repositories by name, each a history of commits.

    Attributes:
        url: what `HF_ENDPOINT` is to be.
        refs: repository -> branch or tag -> commit.
        tags: names in `refs` that are tags.
        commits: commit -> files.
        gated: repositories that show their listing and refuse their files.
        faults: what goes wrong; the first that applies does.
        lifetime: how many requests a signed address serves.
        requests: method and path of everything that was asked, in order.
        authorised: the same, where a token came along.
        sent: file -> bytes of it that were sent.
        connections: how many were opened.
    """

    def __init__(self) -> None:
        self.refs: dict[str, dict[str, str]] = {}
        self.tags: set[str] = set()
        self.commits: dict[str, Files] = {}
        self.gated: set[str] = set()
        self.faults: list[Fault] = []
        self.lifetime = 1_000_000
        self.requests: list[str] = []
        self.authorised: list[str] = []
        self.sent: Counter[str] = Counter()
        self.connections = 0
        self.url = ""
        self.storage = ""
        self._served: Counter[str] = Counter()
        self._signatures = 0
        self.lock = threading.Lock()

    def put(self, name: str, files: Files | Path, revision: str = "main") -> str:
        """Makes `files`, or a folder's files, the state of a revision; returns its commit."""
        if isinstance(files, Path):
            files = {file.name: file.read_bytes() for file in files.iterdir()}
        listing = "".join(f"{path} {_sha256(data)}\n" for path, data in sorted(files.items()))
        commit = hashlib.sha1(f"{name} {revision}\n{listing}".encode()).hexdigest()
        self.commits[commit] = dict(files)
        self.refs.setdefault(name, {})[revision] = commit
        return commit

    @staticmethod
    def point_client(url: str, monkeypatch: "pytest.MonkeyPatch") -> None:
        """As `HF_ENDPOINT` does, which the client reads once, when it is imported."""
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")

    def fault(self, method: str, path: str, file: str) -> Fault | None:
        """What goes wrong with a request, counted."""
        with self.lock:
            for fault in self.faults:
                if fault.times and fault.method == method and (path.endswith(fault.path) or file.endswith(fault.path)):
                    fault.times -= 1
                    return fault
        return None

    def answer(self, path: str, query: str) -> tuple[HTTPStatus, dict[str, str], bytes, str]:
        """Status, headers and body of one request, and the name of the file that it is for."""
        parts = unquote(path).strip("/").split("/")
        if parts[0] == "storage":
            return self._stored(*parts[1:], parse_qs(query)["signature"][0])
        if parts[:2] == ["api", "models"]:
            parts = parts[2:]
        owner, name, verb, revision = (*parts, "revision", "main")[:4] if len(parts) > 1 else ("", "", "", "")
        repo = f"{owner}/{name}"
        if repo not in self.refs:
            return _refusal(HTTPStatus.UNAUTHORIZED, "RepoNotFound")
        refs = self.refs[repo]
        if verb == "refs":
            listed = [{"name": ref, "ref": f"refs/{ref}", "targetCommit": commit} for ref, commit in refs.items()]
            tags = [ref for ref in listed if ref["name"] in self.tags]
            return _json({"branches": [ref for ref in listed if ref not in tags], "tags": tags, "converts": []})
        commit = refs.get(revision, revision if revision in refs.values() else None)
        if commit is None:
            return _refusal(HTTPStatus.NOT_FOUND, "RevisionNotFound")
        files = self.commits[commit]
        if verb == "revision":
            siblings = [_sibling(file, data) for file, data in files.items()]
            return _json({"id": repo, "sha": commit, "private": False, "siblings": siblings})
        if verb == "tree":
            return _json([_entry(file, data) for file, data in files.items()])
        if repo in self.gated:
            return _refusal(HTTPStatus.UNAUTHORIZED, "GatedRepo")
        file = "/".join(parts[4:])
        if file not in files:
            return _refusal(HTTPStatus.NOT_FOUND, "EntryNotFound")
        data, headers = files[file], {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if not file.endswith(LARGE):
            return HTTPStatus.OK, headers | {"ETag": f'"{_blob(data)}"'}, data, file
        with self.lock:
            self._signatures += 1
            signed = f"{self.storage}/storage/{commit}/{file}?signature={self._signatures}"
        headers |= {"Location": signed, "X-Linked-ETag": f'"{_sha256(data)}"', "X-Linked-Size": str(len(data))}
        return HTTPStatus.FOUND, headers, b"", file

    def _stored(self, commit: str, file: str, signature: str) -> tuple[HTTPStatus, dict[str, str], bytes, str]:
        with self.lock:
            self._served[signature] += 1
            expired = self._served[signature] > self.lifetime
        if expired:
            return HTTPStatus.FORBIDDEN, {}, b"", file
        return HTTPStatus.OK, {"Accept-Ranges": "bytes", "ETag": '"storage"'}, self.commits[commit][file], file


def _refusal(status: HTTPStatus, code: str) -> tuple[HTTPStatus, dict[str, str], bytes, str]:
    return status, {"X-Error-Code": code, "X-Error-Message": code}, b"", ""


def _json(value: object) -> tuple[HTTPStatus, dict[str, str], bytes, str]:
    return HTTPStatus.OK, {"Content-Type": "application/json"}, json.dumps(value).encode(), ""


@cache
def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@cache
def _blob(data: bytes) -> str:
    """Git's name for the content of a file."""
    return hashlib.sha1(b"blob %d\0%b" % (len(data), data)).hexdigest()


def _large(path: str, data: bytes, name: str) -> dict[str, object]:
    if not path.endswith(LARGE):
        return {}
    return {"lfs": {name: _sha256(data), "size": len(data), "pointerSize": 130}}


def _sibling(path: str, data: bytes) -> dict[str, object]:
    return {"rfilename": path, "size": len(data), "blobId": _blob(data), **_large(path, data, "sha256")}


def _entry(path: str, data: bytes) -> dict[str, object]:
    return {"type": "file", "path": path, "size": len(data), "oid": _blob(data), **_large(path, data, "oid")}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or a body waits 40 ms for the receipt of its headers
    hub: Hub

    def setup(self) -> None:
        super().setup()
        with self.hub.lock:
            self.hub.connections += 1

    def do_HEAD(self) -> None:
        self._respond(with_body=False)

    def do_GET(self) -> None:
        self._respond(with_body=True)

    def _respond(self, with_body: bool) -> None:
        parts = urlsplit(self.path)
        line = f"{self.command} {parts.path}"
        self.hub.requests.append(line)
        if "Authorization" in self.headers:
            self.hub.authorised.append(line)
        status, headers, body, file = self.hub.answer(parts.path, parts.query)
        fault = self.hub.fault(self.command, parts.path, file) if status is HTTPStatus.OK or not with_body else None
        kind = fault.kind if fault else ""
        if isinstance(kind, int):
            status, headers, body = HTTPStatus(kind), fault.headers, b""
        span = self.headers.get("Range")
        if status is HTTPStatus.OK and span and kind != "whole":
            first, _, last = span.removeprefix("bytes=").partition("-")
            start, stop = int(first), int(last or len(body) - 1)
            headers = headers | {"Content-Range": f"bytes {start}-{stop}/{len(body)}"}
            status, body = HTTPStatus.PARTIAL_CONTENT, body[start : stop + 1]
        if kind == "corrupt":
            body = bytes([body[0] ^ 1]) + body[1:]
        elif kind == "short":
            body = body[: len(body) // 2]
        elif kind == "long":
            body += b"x"
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self._send(file, body, kind)

    def _send(self, file: str, body: bytes, kind: int | str) -> None:
        try:
            if kind == "reset":
                body = body[: len(body) // 2]
                self.wfile.write(body)
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
            elif kind == "drip":
                for place in range(0, len(body), 64):
                    self.wfile.write(body[place : place + 64])
                    threading.Event().wait(0.02)  # tests take `time.sleep` away from the client
            else:
                self.wfile.write(body)
        except OSError:  # the client has gone
            self.close_connection = True
        with self.hub.lock:
            self.hub.sent[file] += len(body)

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    request_queue_size = 64
    block_on_close = False

    def handle_error(self, *_: object) -> None:
        """A client that hangs up is part of the tests."""


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub that answers while the context lasts."""
    hub = Hub()
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url, hub.storage = (f"http://{host}:{server.server_address[1]}" for host in ("127.0.0.1", "localhost"))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
