"""A hub that speaks: the routes that huggingface_hub, transformers and datasets ask for, on a port of this machine.

``with Hub() as hub: hub.add("owner/name", files)``, and a process whose HF_ENDPOINT is ``hub.url`` and whose HF_HOME is
a fresh folder reads it as it would read the real one: large files by a redirect to another address, parts of them by
ranges, revisions as a branch, a tag, a commit or a pull request, and what is not there by the hub's own words.
"""

import hashlib
import json
import re
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

LARGE = (".safetensors", ".parquet", ".bin")
"""What the hub keeps elsewhere (git LFS), under its sha256."""
KINDS = {"heads": "branches", "tags": "tags", "pr": "pullRequests"}
"""Part of a reference's name to what the hub lists it among."""
API = re.compile(r"/api/(?P<kind>models|datasets)/(?P<id>[^/]+/[^/]+)(?:/(?P<what>\w[\w-]*)(?:/(?P<rest>.*))?)?")
FILE = re.compile(r"/(?:(?P<kind>datasets)/)?(?P<id>[^/]+/[^/]+)/resolve/(?P<rest>.+)")
Files = Mapping[str, bytes]


def files_of(folder: Path) -> dict[str, bytes]:
    """The files of a folder, to be put on a hub."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Hub(ThreadingHTTPServer):
    """Repositories of models and datasets, and what was asked of them."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.commits: dict[tuple[str, str], dict[str, Files]] = {}
        """Kind and name of a repository to its commits."""
        self.references: dict[tuple[str, str], dict[str, str]] = {}
        """The same to its references, as refs/heads/main, and their commits."""
        self.asked: list[tuple[str, str, int]] = []
        """Method, path and status of every request."""
        self.status = 0
        """What every request is answered with; 0: with its own."""
        self.is_silent = False
        self.cut = 0
        """Bytes after which the next large file ends, once."""
        self.ended = threading.Event()

    def __enter__(self) -> "Hub":
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.shutdown()
        self.server_close()

    def add(self, name: str, files: Files, reference: str = "refs/heads/main", kind: str = "models") -> str:
        """A commit of these files, which a reference leads to; its sha is returned."""
        content = b"".join(path.encode() + files[path] for path in sorted(files))
        sha = hashlib.sha1(name.encode() + content).hexdigest()
        self.commits.setdefault((kind, name), {})[sha] = files
        self.references.setdefault((kind, name), {})[reference] = sha
        return sha


class Answer(BaseHTTPRequestHandler):
    """To one request."""

    protocol_version = "HTTP/1.1"
    server: Hub

    def do_GET(self) -> None:
        hub, path = self.server, urlsplit(self.path).path
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if hub.is_silent or hub.ended.is_set():
            hub.asked.append((self.command, self.path, 0))
            hub.ended.wait()
            self.close_connection = True
        elif hub.status:
            self.say(hub.status)
        elif path.startswith("/large/"):
            self.send_large(path)
        elif match := API.fullmatch(path) or FILE.fullmatch(path):
            self.answer(match.groupdict())
        else:
            self.say(200 if path == "/" else 404)

    do_HEAD = do_POST = do_GET

    def answer(self, asked: dict[str, str | None]) -> None:
        """About one repository."""
        key = (asked["kind"] or "models", unquote(asked["id"] or ""))
        commits, references = self.server.commits.get(key), self.server.references.get(key, {})
        if commits is None:
            return self.say(404, {"X-Error-Code": "RepoNotFound"})
        if asked.get("what") == "refs":
            return self.say_json(listed(references, "include_prs" in self.path))
        revision, _, path = (asked["rest"] or "main").partition("/")
        revision, path = unquote(revision), unquote(path)
        sha = next((references[ref] for ref in named(revision) if ref in references), revision)
        if sha not in commits:
            return self.say(404, {"X-Error-Code": "RevisionNotFound"})
        files = commits[sha]
        if "what" not in asked:
            return self.send_file(files, path, sha)
        if asked["what"] in (None, "revision"):
            siblings = [{"rfilename": name} for name in files]
            return self.say_json({"id": key[1], "sha": sha, "siblings": siblings, "private": False, "tags": []})
        if asked["what"] == "tree":
            return self.say_json(tree(files, path, is_recursive="recursive=True" in self.path))
        if asked["what"] == "paths-info":
            wanted = parse_qs(self.body.decode())["paths"]
            return self.say_json([entry for entry in tree(files, "", is_recursive=True) if entry["path"] in wanted])
        return self.say(404)

    def send_file(self, files: Files, path: str, sha: str) -> None:
        facts = {"X-Repo-Commit": sha}
        if path not in files:
            return self.say(404, facts | {"X-Error-Code": "EntryNotFound"})
        oid = hashlib.sha256(files[path]).hexdigest()
        if not path.endswith(LARGE):
            return self.say(200, facts | {"ETag": f'"{oid}"'}, files[path])
        facts |= {"X-Linked-Etag": f'"{oid}"', "X-Linked-Size": str(len(files[path]))}
        # At another address: the library follows redirects to the hub itself before it looks at the facts.
        return self.say(302, facts | {"Location": f"http://localhost:{self.server.server_address[1]}/large/{oid}"})

    def send_large(self, path: str) -> None:
        known = chain.from_iterable(files.values() for own in self.server.commits.values() for files in own.values())
        content = next(each for each in known if hashlib.sha256(each).hexdigest() == path.rpartition("/")[2])
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked is None:
            return self.say(200, {}, content)
        first, last = int(asked[1]), int(asked[2] or len(content) - 1)
        facts = {"Content-Range": f"bytes {first}-{last}/{len(content)}"}
        return self.say(206, facts, content[first : last + 1])

    def say_json(self, content: Any) -> None:
        self.say(200, {"Content-Type": "application/json"}, json.dumps(content).encode())

    def say(self, status: int, facts: Mapping[str, str] | None = None, content: bytes = b"") -> None:
        self.server.asked.append((self.command, self.path, status))
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(facts or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        cut = self.server.cut if self.path.startswith("/large/") else 0
        if self.command != "HEAD":
            self.wfile.write(content[: cut or None])
        if cut:
            self.server.cut, self.close_connection = 0, True

    def log_message(self, *_: object) -> None:
        pass


def named(revision: str) -> tuple[str, ...]:
    """The references that a revision may stand for."""
    return (revision, f"refs/heads/{revision}", f"refs/tags/{revision}")


def listed(references: Mapping[str, str], has_pulls: bool) -> dict[str, list[dict[str, str]]]:
    """References, as the hub lists them."""
    found: dict[str, list[dict[str, str]]] = {"branches": [], "tags": [], "converts": [], "pullRequests": []}
    for ref, sha in references.items():
        _, kind, name = ref.split("/", 2)
        found[KINDS[kind]].append({"name": name, "ref": ref, "targetCommit": sha})
    return found if has_pulls else {kind: own for kind, own in found.items() if kind != "pullRequests"}


def tree(files: Files, below: str, *, is_recursive: bool) -> list[dict[str, Any]]:
    """The files and folders below a folder, as the hub lists them."""
    inside = {name: content for name, content in files.items() if not below or name.startswith(f"{below}/")}
    folders = {str(parent) for name in inside for parent in Path(name).parents if str(parent) not in (".", below)}
    found = [{"type": "directory", "path": name, "size": 0, "oid": "0" * 40} for name in sorted(folders)]
    for name, content in inside.items():
        oid = {"oid": hashlib.sha1(content).hexdigest()}
        large = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 128}
        lfs = {"lfs": large} if name.endswith(LARGE) else {}
        found.append({"type": "file", "path": name, "size": len(content), **oid, **lfs})
    return [entry for entry in found if is_recursive or str(Path(entry["path"]).parent) == (below or ".")]
