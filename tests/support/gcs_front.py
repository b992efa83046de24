"""A front before fake-gcs-server that adds what GCS promises and the fake does not keep.

The fake ignores ``ifGenerationMatch`` on uploads, copies and deletes, and knows no XML PUT or XML multipart upload (which
Lance's object store uses), so that writers through it lose updates. Here every write takes one lock, checks its
precondition against the object's generation, and only then reaches the fake. POST /token hands out a token to anybody.

Nor does the fake keep what was replaced or deleted. For buckets that `Front.keeps` names the front does: noncurrent generations, as a bucket
with versioning, soft-deleted ones, or both; these are listed, noncurrent ones read and deleted by generation, soft-deleted ones not.
"""

from __future__ import annotations

import http.client
import http.server
import json
import threading
import uuid
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

Answer = tuple[int, dict[str, str], bytes]
HOP_HEADERS = {"transfer-encoding", "connection", "content-length", "host", "date", "keep-alive"}
JSON_PATHS = ("/storage/v1", "/upload/", "/download/", "/b/", "/batch", "/_internal", "/resumable")


@dataclass
class Former:
    """Bytes that an object had."""

    bucket: str
    key: str
    said: dict[str, Any]
    data: bytes
    soft: bool


class Front(http.server.ThreadingHTTPServer):
    """Serves one fake-gcs-server at `upstream`; counts the requests by (method, path kind)."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, port: int, upstream: tuple[str, int]) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.upstream = upstream
        self.lock = threading.Lock()
        self.multipart: dict[str, dict[int, bytes]] = {}
        self.resumable: dict[str, tuple[str, str, str]] = {}
        self.requests = 0
        self.keeps: dict[
            str, set[str]
        ] = {}  # bucket -> "noncurrent", "soft", "held": noncurrent ones may not be deleted
        self.formers: list[Former] = []

    def ask(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Answer:
        """One request to the fake."""
        connection = http.client.HTTPConnection(*self.upstream, timeout=120)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def generation(self, bucket: str, key: str) -> int:
        """The object's generation; 0 if there is none."""
        status, _, body = self.ask("GET", _object_path(bucket, key))
        return int(json.loads(body)["generation"]) if status == 200 else 0

    def remember(self, bucket: str, key: str) -> None:
        """To be called with the lock held, before an object is replaced or deleted."""
        kept = self.keeps.get(bucket, set())
        status, _, body = self.ask("GET", _object_path(bucket, key)) if kept else (404, {}, b"")
        if status == 200:
            data = self.ask("GET", _object_path(bucket, key) + "?alt=media")[2]
            self.formers.append(Former(bucket, key, json.loads(body), data, "noncurrent" not in kept))

    def former(self, bucket: str, key: str, generation: str) -> Former | None:
        """A noncurrent generation."""
        of = (each for each in self.formers if not each.soft and (each.bucket, each.key) == (bucket, key))
        return next((each for each in of if str(each.said["generation"]) == generation), None)

    def listed(self, bucket: str, prefix: str, soft: bool) -> list[dict[str, Any]]:
        """What a listing says of former generations."""
        when = "2026-01-01T00:00:00.000Z"
        times = (
            {"softDeleteTime": when, "hardDeleteTime": "2026-01-08T00:00:00.000Z"} if soft else {"timeDeleted": when}
        )
        some = (each for each in self.formers if (each.bucket, each.soft) == (bucket, soft))
        return [each.said | times for each in some if each.key.startswith(prefix)]

    def allows(self, bucket: str, key: str, wanted: str | None) -> bool:
        """Whether a precondition holds; to be called with the lock held."""
        return wanted is None or self.generation(bucket, key) == int(wanted)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Front

    def log_message(self, format: str, *args: Any) -> None:
        return None

    def handle_any(self) -> None:
        self.server.requests += 1
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        body = self._body()
        if parts.path == "/token":
            token = {"access_token": "fake", "expires_in": 3600, "token_type": "Bearer"}
            self._send(200, {"Content-Type": "application/json"}, json.dumps(token).encode())
        elif parts.path.startswith(JSON_PATHS):
            self._send(*self._json_api(parts.path, query, body))
        else:
            self._send(*self._xml_api(parts, query, body))

    do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = handle_any

    def _json_api(self, path: str, query: dict[str, str], body: bytes) -> Answer:
        if path.startswith("/upload/") and self.command in ("POST", "PUT"):
            return self._upload(path, query, body)
        if "/b/" in path and (found := self._former(path, query)) is not None:
            return found
        if self.command == "POST" and "/rewriteTo/" in path:
            target = path.split("/rewriteTo/b/")[1]
            bucket, _, key = target.partition("/o/")
            return self._guarded(bucket, unquote(key), query.get("ifGenerationMatch"), body)
        if self.command == "DELETE" and "/o/" in path:
            bucket, _, key = path.split("/b/")[1].partition("/o/")
            return self._guarded(bucket, unquote(key), query.get("ifGenerationMatch"), body)
        return self._pass(body)

    def _former(self, path: str, query: dict[str, str]) -> Answer | None:
        """Answers what is asked of former generations."""
        bucket, _, key = path.split("/b/")[1].partition("/o")
        key, server = unquote(key.removeprefix("/")), self.server
        kept = server.keeps.get(bucket, set())
        if (
            self.command == "GET"
            and not key
            and "true" in (query.get("versions", "").lower(), query.get("softDeleted", "").lower())
        ):
            soft, prefix = query.get("softDeleted", "").lower() == "true", query.get("prefix", "")
            now = f"/storage/v1/b/{bucket}/o?prefix={quote(prefix, safe='')}"
            items = [] if soft else json.loads(server.ask("GET", now)[2]).get("items", [])
            return 200, _JSON, json.dumps({"items": [*items, *server.listed(bucket, prefix, soft)]}).encode()
        former = server.former(bucket, key, query.get("generation", ""))
        if former is None:
            return None
        if self.command == "DELETE" and "held" in kept:
            return 403, _JSON, json.dumps({"error": {"code": 403, "message": "under a retention policy"}}).encode()
        if self.command == "DELETE":
            former.soft = True
            server.formers = [each for each in server.formers if "soft" in kept or each is not former]
            return 204, {}, b""
        if query.get("alt") == "media":
            return (
                200,
                {"Content-Type": "application/octet-stream", "x-goog-generation": query["generation"]},
                former.data,
            )
        return 200, _JSON, json.dumps(former.said).encode()

    def _upload(self, path: str, query: dict[str, str], body: bytes) -> Answer:
        bucket = path.split("/b/")[1].split("/")[0] if "/b/" in path else ""
        wanted = query.get("ifGenerationMatch")
        if query.get("uploadType") == "resumable" and self.command == "POST":
            status, headers, answer = self._pass(body)
            location = next((v for k, v in headers.items() if k.lower() == "location"), None)
            if wanted is not None and location:
                upload = dict(parse_qsl(urlsplit(location).query))["upload_id"]
                name = query.get("name") or json.loads(body or b"{}").get("name")
                self.server.resumable[upload] = (bucket, name, wanted)
            return status, headers, answer
        if query.get("upload_id") in self.server.resumable:
            bucket, name, wanted = self.server.resumable[query["upload_id"]]
            last = not (self.headers.get("Content-Range") or "").endswith("/*")
            return self._guarded(bucket, name, wanted if last else None, body)
        name = query.get("name") or (_multipart_name(body) if query.get("uploadType") == "multipart" else "")
        return self._guarded(bucket, name, wanted, body)

    def _guarded(self, bucket: str, key: str, wanted: str | None, body: bytes) -> Answer:
        with self.server.lock:
            if not self.server.allows(bucket, key, wanted):
                return _failed(xml=False)
            self.server.remember(bucket, key)
            return self._pass(body)

    def _xml_api(self, parts: Any, query: dict[str, str], body: bytes) -> Answer:
        bucket, _, key = (unquote(x) for x in parts.path.lstrip("/").partition("/"))
        if key and self.command == "POST" and "uploads" in query:
            upload = uuid.uuid4().hex
            self.server.multipart[upload] = {}
            return 200, _XML, _xml("InitiateMultipartUploadResult", Bucket=bucket, Key=key, UploadId=upload)
        if key and self.command == "PUT" and "uploadId" in query:
            self.server.multipart[query["uploadId"]][int(query["partNumber"])] = body
            return 200, {"ETag": f'"{uuid.uuid4().hex}"'}, b""
        if key and self.command == "DELETE":
            if "uploadId" in query:
                self.server.multipart.pop(query["uploadId"], None)
                return 204, {}, b""
            with self.server.lock:
                self.server.remember(bucket, key)
                status, _, answer = self.server.ask("DELETE", _object_path(bucket, key))
            return (204, {}, b"") if status in (200, 204) else (status, {}, answer)
        if key and self.command in ("PUT", "POST"):
            return self._xml_put(bucket, key, query, body)
        return self._pass(body)

    def _xml_put(self, bucket: str, key: str, query: dict[str, str], body: bytes) -> Answer:
        if "uploadId" in query:
            pieces = self.server.multipart[query["uploadId"]]
            body = b"".join(pieces[number] for number in sorted(pieces))
        source = self.headers.get("x-goog-copy-source")
        with self.server.lock:
            if not self.server.allows(bucket, key, self.headers.get("x-goog-if-generation-match")):
                return _failed(xml=True)
            if source:
                from_bucket, _, from_key = unquote(source).lstrip("/").partition("/")
                status, _, body = self.server.ask("GET", _object_path(from_bucket, from_key) + "?alt=media")
                if status != 200:
                    return status, {}, body
            self.server.remember(bucket, key)
            kind = {"Content-Type": self.headers.get("Content-Type") or "application/octet-stream"}
            path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(key, safe='')}"
            status, headers, answer = self.server.ask("POST", path, body, kind)
        if status != 200:
            return status, headers, answer
        made = json.loads(answer)
        etag = f'"{made["generation"]}"'
        facts = {
            "ETag": etag,
            "x-goog-generation": str(made["generation"]),
            "x-goog-hash": f"md5={made.get('md5Hash', '')}",
        }
        if "uploadId" not in query:
            return 200, facts, b""
        self.server.multipart.pop(query["uploadId"], None)
        return (
            200,
            facts | _XML,
            _xml("CompleteMultipartUploadResult", Bucket=bucket, Key=key, ETag=etag.replace('"', "&quot;")),
        )

    def _pass(self, body: bytes) -> Answer:
        headers = {k: v for k, v in self.headers.items() if k.lower() not in HOP_HEADERS}
        return self.server.ask(self.command, self.path, body, headers)

    def _body(self) -> bytes:
        if "chunked" not in (self.headers.get("Transfer-Encoding") or ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        pieces = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        head = self.command == "HEAD"
        for key, value in headers.items():
            if key.lower() == "location":
                value = value.replace(f":{self.server.upstream[1]}/", f":{self.server.server_port}/")
            if key.lower() not in HOP_HEADERS or (head and key.lower() == "content-length"):
                self.send_header(key, value)
        if not head:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not head:
            self.wfile.write(body)


_XML = {"Content-Type": "application/xml"}
_JSON = {"Content-Type": "application/json"}


def _xml(root: str, **fields: str) -> bytes:
    inner = "".join(f"<{k}>{v}</{k}>" for k, v in fields.items())
    return f'<?xml version="1.0" encoding="UTF-8"?><{root}>{inner}</{root}>'.encode()


def _failed(*, xml: bool) -> Answer:
    if xml:
        return 412, _XML, _xml("Error", Code="PreconditionFailed")
    error = {"code": 412, "message": "conditionNotMet", "errors": [{"reason": "conditionNotMet"}]}
    return 412, {"Content-Type": "application/json"}, json.dumps({"error": error}).encode()


def _object_path(bucket: str, key: str) -> str:
    return f"/storage/v1/b/{bucket}/o/{quote(key, safe='')}"


def _multipart_name(body: bytes) -> str:
    """The object's name in the JSON part of a multipart/related upload."""
    start = body.index(b"{")
    return str(json.JSONDecoder().raw_decode(body[start:].decode("utf-8", "replace"))[0]["name"])
