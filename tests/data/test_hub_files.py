"""Files of the Hugging Face Hub, `hf://datasets/OWNER/NAME/…`, from a local stand-in server."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import fsspec
import pytest

from pretrax.corpora import text_files, vocabularies
from pretrax.data.finding import find_files, versions_of
from pretrax.data.reading import raw_documents
from tests.refusals import refuses

huggingface_hub = pytest.importorskip("huggingface_hub")
TREE, RAW = "/api/datasets/me/texts/tree/main", "/datasets/me/texts/resolve/main/"
FOLDER = {"type": "directory", "path": "data", "oid": "0" * 40}


@pytest.fixture
def repository(monkeypatch):
    """The files of the repository me/texts by name."""
    files = {}

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self):
            path = self.path.partition("?")[0]
            if path == TREE:
                body = json.dumps([FOLDER]).encode()
            elif path == f"{TREE}/data":
                body = json.dumps([self.described(name) for name in files]).encode()
            elif path.startswith(RAW):
                body = files[path.removeprefix(RAW)]
            else:  # a request for metadata
                body = json.dumps({"id": "me/texts", "sha": "0" * 40}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def described(self, name):
            oid = hashlib.sha1(files[name]).hexdigest()
            return {"type": "file", "path": name, "size": len(files[name]), "oid": oid}

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hub = {"endpoint": f"http://127.0.0.1:{server.server_port}"}
    monkeypatch.setitem(fsspec.config.conf, "hf", hub)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield files
    server.shutdown()
    server.server_close()


def test_hub_files_are_found_read_and_versioned(repository):
    repository["data/a.jsonl"] = b'{"text": "one"}\n{"text": "two"}\n'
    repository["data/b.txt"] = b"three"
    (path,) = find_files("hf://datasets/me/texts/data/*.jsonl")
    assert path == "hf://datasets/me/texts/data/a.jsonl"
    assert [record.text for record in raw_documents(path, "text")] == ["one", "two"]
    ((_, size, version),) = versions_of([path])
    repository["data/a.jsonl"] = repository["data/a.jsonl"].replace(b"one", b"six")
    huggingface_hub.HfFileSystem.clear_instance_cache()
    assert size == 32 and version and versions_of([path])[0][2] not in ("", version)


def test_corpus_detects_changed_hub_files(repository, tmp_path):
    lines = "".join(json.dumps({"text": f"document {i}"}) + "\n" for i in range(40))
    repository["data/a.jsonl"] = lines.encode()
    settings = dict(files="hf://datasets/me/texts/data/*.jsonl", vocabulary=vocabularies.utf8_bytes)
    corpus = text_files(str(tmp_path), **settings)
    assert "38 documents" in corpus.summary and "2 documents" in corpus.summary
    repository["data/a.jsonl"] = lines.replace("document 7", "document X").encode()
    huggingface_hub.HfFileSystem.clear_instance_cache()
    changed_corpus = text_files(str(tmp_path), **settings)
    assert changed_corpus.summary == corpus.summary  # the same number of tokens, but other data
    with refuses(ValueError, "position", "seed"):
        changed_corpus.open_shard(0, 1).restore(corpus.open_shard(0, 1).state())
