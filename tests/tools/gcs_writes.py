"""Writes of Google Cloud Storage's XML interface, in front of fake-gcs-server, which knows those of the JSON one alone.

| request | what is done |
| --- | --- |
| `PUT /bucket/key` | the object is stored, under `x-goog-if-generation-match` if that is sent |
| `POST /bucket/key?uploads` | an upload begins |
| `PUT /bucket/key?partNumber=&uploadId=` | a part is kept |
| `POST /bucket/key?uploadId=` | the parts that the body names are stored as one object |
| `DELETE /bucket/key?uploadId=` | the parts are forgotten |

Everything else is passed on. As there, a part that is not the last has 5 MiB at least, an upload that ended is unknown,
and a part's tag is its MD5. Only the standard library.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import threading
import urllib.parse
import uuid
from xml.sax.saxutils import escape

from tools.serving import HOST, Handler, HttpService

__all__ = ["WritesService"]

LEAST_PART = 5 << 20
HOP = {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "content-length"}


class WritesService(HttpService):
    """The service; a context manager.

    Args:
        backend: The port of fake-gcs-server.
    """

    def __init__(self, backend: int) -> None:
        super().__init__(_Handler, self)
        self.backend = backend
        self.uploads: dict[str, dict[int, bytes]] = {}
        """Parts that wait for the end of their upload, by their numbers."""
        self.lock = threading.Lock()


class _Handler(Handler):
    server: WritesService

    def handle_any(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(parts.query, keep_blank_values=True)
        bucket, _, key = parts.path.lstrip("/").partition("/")
        upload = query.get("uploadId", [""])[0]
        body = self.body()
        if not key or bucket in ("storage", "upload", "download", "batch", "_internal"):
            self._pass_on(body)
        elif self.command == "POST" and "uploads" in query:
            upload = uuid.uuid4().hex
            self.server.uploads[upload] = {}
            self._xml("InitiateMultipartUploadResult", Bucket=bucket, Key=key, UploadId=upload)
        elif upload:
            self._of_upload(bucket, key, upload, query, body)
        elif self.command == "PUT":
            self._store(bucket, key, body)
        else:
            self._pass_on(body)

    def _of_upload(self, bucket: str, key: str, upload: str, query: dict[str, list[str]], body: bytes) -> None:
        with self.server.lock:
            parts = self.server.uploads.get(upload)
            if parts is None:
                self._refuse(404, "NoSuchUpload")
                return
            if self.command == "PUT":
                parts[int(query["partNumber"][0])] = body
                self.answer(200, [("ETag", _tag(body))])
                return
            if self.command == "DELETE":
                del self.server.uploads[upload]
                self.answer(204)
                return
            listed = re.findall(rb"<PartNumber>(\d+)</PartNumber>\s*<ETag>([^<]*)</ETag>", body)
            listed = listed or [found[::-1] for found in re.findall(rb"<ETag>([^<]*)</ETag>\s*<PartNumber>(\d+)", body)]
            wanted = [(int(number), tag.decode().replace("&quot;", '"').strip('"')) for number, tag in listed]
            if wanted != [(number, _tag(parts[number]).strip('"')) for number in sorted(parts)]:
                self._refuse(400, "InvalidPart")
                return
            whole = [parts[number] for number in sorted(parts)]
            if any(len(part) < LEAST_PART for part in whole[:-1]):
                self._refuse(400, "EntityTooSmall")
                return
            del self.server.uploads[upload]
        self._store(bucket, key, b"".join(whole), "CompleteMultipartUploadResult")

    def _store(self, bucket: str, key: str, body: bytes, result: str = "") -> None:
        """Stores an object, and answers with its tag and generation; as XML, if `result` names its element."""
        name = urllib.parse.quote(urllib.parse.unquote(key), safe="")
        target = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}"
        if (generation := self.headers.get("x-goog-if-generation-match")) is not None:
            target += f"&ifGenerationMatch={generation}"
        status, _, answer = self._call("POST", target, {"Content-Type": "application/octet-stream"}, body)
        if status >= 300:
            codes = {404: "NoSuchBucket", 412: "PreconditionFailed"}
            self._refuse(status, codes.get(status, "InvalidArgument"))
            return
        headers = self._call("HEAD", f"/{bucket}/{key}", {"Host": f"{HOST}:{self.server.backend}"}, b"")[1]
        tag = headers.get("ETag", "")
        told = [("ETag", tag), ("x-goog-generation", str(json.loads(answer)["generation"]))]
        if result:
            self._xml(result, told, Bucket=bucket, Key=key, ETag=tag)
        else:
            self.answer(200, told)

    def _pass_on(self, body: bytes) -> None:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
        status, found, answer = self._call(self.command, self.path, headers, body)
        told = [(name, value) for name, value in found.items() if name.lower() not in HOP]
        if self.command != "HEAD":
            self.answer(status, told, answer)
            return
        self.send_response_only(status)
        self._send_headers([*told, ("Content-Length", found.get("Content-Length") or "0")])

    def _call(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        connection = http.client.HTTPConnection(HOST, self.server.backend, timeout=60)
        try:
            names = {name.lower() for name in headers}
            connection.putrequest(method, target, skip_host="host" in names, skip_accept_encoding=True)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def _xml(self, element: str, headers: list[tuple[str, str]] | None = None, **fields: str) -> None:
        inner = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in fields.items())
        content = f"<?xml version='1.0' encoding='UTF-8'?><{element}>{inner}</{element}>"
        self.answer(200, [("Content-Type", "application/xml"), *(headers or [])], content.encode())

    def _refuse(self, status: int, code: str) -> None:
        content = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>refused</Message></Error>"
        self.answer(status, [("Content-Type", "application/xml")], content.encode())


def _tag(part: bytes) -> str:
    return f'"{hashlib.md5(part).hexdigest()}"'
