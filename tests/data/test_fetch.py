import hashlib
import io
import tarfile
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from longtail.data.fetch import Archive, fetch, unpack
from longtail.errors import LongtailError

CONTENT = bytes(range(256)) * 20_000


class Handler(BaseHTTPRequestHandler):
    """A file server that knows ranges, unless told not to, and can break off."""

    ranges, breaks_after, asked = True, None, []

    def do_GET(self):
        self.asked.append(self.headers.get("Range"))
        if self.path != "/x.bin":
            return self.send_error(404)
        start = int((self.headers.get("Range") or "bytes=0-")[6:-1]) if self.ranges else 0
        if start >= len(CONTENT):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        self.wfile.write(CONTENT[start : self.breaks_after])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    class Own(Handler):
        asked: list = []  # noqa: RUF012

    server = ThreadingHTTPServer(("127.0.0.1", 0), Own)
    server.handle_error = lambda *_: None  # a client that hangs up is part of the tests
    Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def archive(server, name="x.bin", checksum=None):
    checksum = checksum or f"md5:{hashlib.md5(CONTENT).hexdigest()}"
    return Archive(f"http://127.0.0.1:{server.server_port}/{name}", checksum, "5 MB", "x")


def test_fetch_and_fetch_again(server, tmp_path):
    path = fetch(archive(server), tmp_path / "new")
    assert path.read_bytes() == CONTENT
    assert fetch(archive(server), tmp_path / "new") == path
    assert server.RequestHandlerClass.asked == [None], "what is there was fetched again"
    assert [p.name for p in path.parent.iterdir()] == ["x.bin"]


@pytest.mark.parametrize("ranges", [True, False], ids=["resumes", "server starts over"])
def test_an_interrupted_download_carries_on(server, tmp_path, ranges):
    handler = server.RequestHandlerClass
    handler.breaks_after = 3_000_000
    with pytest.raises(LongtailError, match=r"broke off after 3,000,000 of 5,120,000 bytes; the same command"):
        fetch(archive(server), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["x.bin.part"]
    handler.breaks_after, handler.ranges = None, ranges
    assert fetch(archive(server), tmp_path).read_bytes() == CONTENT
    assert handler.asked == [None, "bytes=3000000-"]


def test_a_complete_part_is_only_verified(server, tmp_path):
    (tmp_path / "x.bin.part").write_bytes(CONTENT)
    assert fetch(archive(server), tmp_path).read_bytes() == CONTENT


def test_an_archive_put_there_by_hand_is_verified_and_left_alone(server, tmp_path):
    (tmp_path / "x.bin").write_bytes(CONTENT)
    assert fetch(archive(server), tmp_path).read_bytes() == CONTENT
    assert server.RequestHandlerClass.asked == []
    (tmp_path / "x.bin").write_bytes(CONTENT[:-1])
    with pytest.raises(LongtailError, match=r"x\.bin has the md5 .* and not md5:.*: remove it"):
        fetch(archive(server), tmp_path)
    assert (tmp_path / "x.bin").exists()


def test_a_wrong_checksum_leaves_nothing(server, tmp_path):
    with pytest.raises(LongtailError, match=r"has the sha1 .* and not 00: it was removed"):
        fetch(archive(server, checksum="sha1:00"), tmp_path)
    assert not list(tmp_path.iterdir())


def test_no_file_no_server_no_space(server, tmp_path, monkeypatch):
    with pytest.raises(LongtailError, match="cannot be fetched: 404"):
        fetch(archive(server, "y.bin"), tmp_path)
    with pytest.raises(LongtailError, match="the same command carries on later"):
        fetch(Archive("http://127.0.0.1:9/x.bin", "md5:0", "", "x"), tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 9_000_000}))
    with pytest.raises(LongtailError, match=r"needs 0.0 GB .*; 0.0 are free"):
        fetch(archive(server), tmp_path)


def tar(path, members):
    with tarfile.open(path, "w:gz") as file:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))


def test_unpack(tmp_path):
    tar(tmp_path / "a.tar.gz", {"a/1.txt": b"one", "a/b/2.txt": b"two"})
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as file:
        file.writestr("z/3.txt", "three")
    for name in ("a.tar.gz", "z.zip"):
        unpack(tmp_path / name, tmp_path)
    found = {p.relative_to(tmp_path).as_posix(): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert found == {"a/1.txt": b"one", "a/b/2.txt": b"two", "z/3.txt": b"three"}


def test_an_archive_cannot_write_outside(tmp_path):
    (tmp_path / "in").mkdir()
    tar(tmp_path / "evil.tar.gz", {"a/1.txt": b"one", "../out.txt": b"two"})
    with pytest.raises(LongtailError, match="cannot be unpacked"):
        unpack(tmp_path / "evil.tar.gz", tmp_path / "in")
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as file:
        file.writestr("../../out.txt", "two")
    unpack(tmp_path / "evil.zip", tmp_path / "in")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["evil.tar.gz", "in"]


def test_a_damaged_archive_leaves_nothing_half_unpacked(tmp_path):
    tar(tmp_path / "a.tar.gz", {f"a/{i}.txt": bytes(99) + str(i).encode() for i in range(500)})
    whole = (tmp_path / "a.tar.gz").read_bytes()
    (tmp_path / "a.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LongtailError, match="cannot be unpacked"):
        unpack(tmp_path / "a.tar.gz", tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["a.tar.gz"]
