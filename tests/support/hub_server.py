"""A Hugging Face hub on this machine: the parts of its protocol that huggingface_hub uses to read and write models."""

import base64
import dataclasses
import hashlib
import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_this_is_a_token"
Files = dict[str, bytes]


def sha1(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def is_large(path: str) -> bool:
    return path.endswith((".safetensors", ".bin"))


def digest(path: str, content: bytes) -> str:
    """Returns what the hub states of a file: the SHA-256 of a large one, the SHA-1 of Git of a small one."""
    return hashlib.sha256(content).hexdigest() if is_large(path) else sha1(b"blob %d\0" % len(content) + content)


def sibling(path: str, content: bytes) -> dict[str, Any]:
    file = {"rfilename": path, "size": len(content), "blobId": digest("", content)}
    if is_large(path):  # Git has a pointer to it
        file["blobId"] = digest("", b"a pointer")
        file["lfs"] = {"sha256": digest(path, content), "size": len(content), "pointerSize": 9}
    return file


@dataclasses.dataclass
class Repo:
    """A model: its commits, newest last, and who may read it."""

    private: bool = False
    gated: bool = False
    commits: dict[str, Files] = dataclasses.field(default_factory=dict)
    revisions: dict[str, str] = dataclasses.field(default_factory=dict)

    def commit(self, files: Files) -> str:
        sha = sha1(repr((len(self.commits), sorted(files.items()))).encode())
        self.commits[sha] = files
        self.revisions["main"] = sha
        return sha


class HubServer(ThreadingHTTPServer):
    """The server; `with HubServer() as hub` starts it at `hub.url`.

    Attributes:
        repos: Models by ORG/NAME.
        sent: Bytes that were sent of each file.
        breaks: The connection is broken once after so many bytes of a file.
        refuses: Status that answers every request, of a commit alone if it is negative.
        says: Answers of another hub by the start of a path: bytes, or what becomes JSON.
        contents: Bytes that are sent in the place of a file.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.repos: dict[str, Repo] = {}
        self.uploads: Files = {}
        self.sent: Counter[str] = Counter()
        self.breaks: dict[str, int] = {}
        self.refuses = 0
        self.says: dict[str, Any] = {}
        self.contents: Files = {}
        self.requests: list[str] = []

    def __enter__(self) -> "HubServer":
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def add(self, name: str, folder: Path, **rights: bool) -> str:
        """Adds a commit with the files of a folder; returns its SHA."""
        files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        return self.repos.setdefault(name, Repo(**rights)).commit(files)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HubServer

    def log_message(self, *_: object) -> None:
        """Prints nothing."""

    def do_HEAD(self) -> None:
        self.answer()

    do_GET = do_POST = do_PUT = do_HEAD

    def answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append(f"{self.command} {path}")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        commits = "/commit/" in path
        if self.server.refuses > 0 or (self.server.refuses < 0 and commits):
            return self.reply({"error": "out of order"}, abs(self.server.refuses))
        for start, document in self.server.says.items():
            if path.startswith(start):
                return self.reply(document)
        words = path.strip("/").split("/")
        if words[:2] == ["api", "models"]:
            return self.model("/".join(words[2:4]), words[4:], body)
        if words[0] == "api":
            return self.create(json.loads(body)) if words[1:] == ["repos", "create"] else self.reply({})
        if words[0] == "lfs":
            self.server.uploads[words[1]] = body
            return self.reply({})
        if words[-1] == "batch":
            objects = [
                item | {"actions": {"upload": {"href": f"{self.server.url}/lfs/{item['oid']}"}}}
                for item in json.loads(body)["objects"]
            ]
            return self.reply({"transfer": "basic", "objects": objects})
        return self.file("/".join(words[:2]), words[3], "/".join(words[4:]))

    # Reading ----------------------------------------------------------------------------------------------------------

    def found(self, name: str, revision: str, *, content: bool = False) -> tuple[str, Files] | None:
        """Returns commit and files, or answers as the hub does: a private repository is one that is not there."""
        repo, known = self.server.repos.get(name), self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if self.headers.get("Authorization") and not known:
            self.refuse(401, None, "Invalid credentials in Authorization header")
        elif repo is None or (repo.private and not known):
            self.refuse(404 if known else 401, "RepoNotFound" if known else None, "Repository not found")
        elif content and repo.gated and not known:
            self.refuse(403, "GatedRepo", f"Access to model {name} is restricted")
        elif (sha := repo.revisions.get(revision, revision)) not in repo.commits:
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            return sha, repo.commits[sha]
        return None

    def model(self, name: str, rest: list[str], body: bytes) -> None:
        kind, revision = (rest[0], "/".join(rest[1:])) if rest else ("revision", "main")
        if (found := self.found(name, revision)) is None:
            return None
        sha, files = found
        if kind == "preupload":
            modes = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if is_large(file["path"]) else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(body)["files"]
            ]
            return self.reply({"files": modes})
        if kind == "commit":
            return self.commit(name, dict(files), [json.loads(line) for line in body.splitlines()])
        if kind == "tree":
            tree = [{"type": "file", "path": path, "size": len(x), "oid": digest("", x)} for path, x in files.items()]
            return self.reply(tree)
        siblings = [sibling(path, x) for path, x in files.items()]
        private = self.server.repos[name].private
        return self.reply({"id": name, "modelId": name, "sha": sha, "private": private, "siblings": siblings})

    def file(self, name: str, revision: str, path: str) -> None:
        if (found := self.found(name, revision, content=True)) is None:
            return None
        sha, files = found
        if path not in files:
            return self.reply({"error": "Entry not found"}, 404)
        content, asked = self.server.contents.get(path, files[path]), self.headers.get("Range")
        start = int(asked.removeprefix("bytes=").partition("-")[0]) if asked else 0
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        stated = {"X-Repo-Commit": sha, "ETag": f'"{digest(path, files[path])}"', "Accept-Ranges": "bytes"}
        for header, value in stated.items():
            self.send_header(header, value)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if self.command == "HEAD":
            return None
        part = content[start:]
        if path in self.server.breaks:
            part = part[: self.server.breaks.pop(path)]
            self.close_connection = True
        self.wfile.write(part)
        self.server.sent[path] += len(part)
        return None

    # Writing ----------------------------------------------------------------------------------------------------------

    def create(self, asked: dict[str, Any]) -> None:
        name = f"{asked['organization']}/{asked['name']}"
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.refuse(401, None, "Invalid username or password.")
        if asked["organization"] == "others":
            return self.refuse(403, None, 'You don\'t have the rights to create a model under the namespace "others".')
        if name in self.server.repos:
            return self.reply({"error": "You already created this model repo", "url": name}, 409)
        private = asked.get("visibility") == "private" or bool(asked.get("private"))
        repo = self.server.repos[name] = Repo(private=private)
        repo.commit({".gitattributes": b"*.safetensors filter=lfs\n*.bin filter=lfs\n"})
        return self.reply({"url": f"{self.server.url}/{name}"})

    def commit(self, name: str, files: Files, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            kind, value = line["key"], line["value"]
            if kind == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif kind == "lfsFile":
                files[value["path"]] = self.server.uploads[value["oid"]]
                assert hashlib.sha256(files[value["path"]]).hexdigest() == value["oid"]
            elif kind == "deletedFile":
                del files[value["path"]]
        sha = self.server.repos[name].commit(files)
        self.reply({"commitUrl": f"{self.server.url}/{name}/commit/{sha}", "commitOid": sha, "success": True})

    # Answers ----------------------------------------------------------------------------------------------------------

    def refuse(self, status: int, code: str | None, message: str) -> None:
        self.reply({"error": message}, status, {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {}))

    def reply(self, document: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        content = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
