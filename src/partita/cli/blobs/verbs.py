"""The verbs of `partita blobs`.

`sync` compares sizes and MD5; a blob without MD5 is compared by its size only. The names of blobs
come from others: one that is not the name of a file inside the folder is refused before anything
is changed. `keep` sets what the Azure service has in its service properties and management API.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import msgspec

from partita.cli.kit.commands import Given
from partita.cli.kit.companions import opened_blobs
from partita.cli.kit.facts import Facts, Line, Table
from partita.cli.kit.progress import Bar
from partita.cli.kit.text import count_text, size_text
from partita.clock import SystemClock
from partita.errors import ConfigurationError
from partita.service.formats.xml_text import parse_xml

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from azure.storage.blob import ContainerClient

SCHEME = "blob:"
PIECE_BYTES = 1024 * 1024
LISTED_MAX = 10_000


class Found(msgspec.Struct, frozen=True):
    """A container, blob or file."""

    name: str
    bytes: int
    md5: str = ""
    modified: str = ""


class BlobsListed(Facts, frozen=True):
    """Containers, or blobs below a prefix."""

    container: str
    found: list[Found]
    is_complete: bool

    def lines(self) -> Iterator[Line]:
        if not self.container:
            yield from (each.name for each in self.found)
            if not self.found:
                yield "There are no containers."
            return
        rows = [(each.name, size_text(each.bytes), each.modified) for each in self.found]
        if rows:
            yield Table(("BLOB", "SIZE", "MODIFIED"), rows)
        total = size_text(sum(each.bytes for each in self.found))
        more = "" if self.is_complete else " There are more: give a longer prefix."
        yield f"{count_text(len(rows), 'blob')}, {total}.{more}"


class BlobCopied(Facts, frozen=True):
    """A file or blob that was copied."""

    source: str
    target: str
    bytes: int

    def lines(self) -> Iterator[Line]:
        yield f"{self.source} copied to {self.target}, {size_text(self.bytes)}."


class BlobsSynced(Facts, frozen=True):
    """What was copied and deleted, or would be."""

    is_dry: bool
    copied: list[str]
    deleted: list[str]
    unchanged: int
    bytes: int

    def lines(self) -> Iterator[Line]:
        would = "would be " if self.is_dry else ""
        if self.is_dry:
            yield from (f"copy {name}" for name in self.copied)
            yield from (f"delete {name}" for name in self.deleted)
        yield (
            f"{len(self.copied):,} {would}copied ({size_text(self.bytes)}), "
            f"{len(self.deleted):,} {would}deleted, {self.unchanged:,} unchanged."
        )


class Kept(Facts, frozen=True):
    """What is kept of blobs and containers that are replaced or deleted."""

    versions: bool
    deleted_days: int
    """0: deleted blobs are not kept."""
    deleted_containers_days: int

    def lines(self) -> Iterator[Line]:
        yield f"Versions of blobs: {'kept' if self.versions else 'not kept'}."
        for name, days in (
            ("blobs", self.deleted_days),
            ("containers", self.deleted_containers_days),
        ):
            kept = f"kept for {count_text(days, 'day')}" if days else "not kept"
            yield f"Deleted {name}: {kept}."


def keep(given: Given) -> Kept:
    """Set what the flags name, and return what is set afterwards.

    The client has no parameters for versions and containers: the document is sent as it is.
    """
    document = _kept_document(given)

    def send(request: Any) -> None:
        request.http_request.set_text_body(document)

    found: list[bytes] = []
    with opened_blobs(given) as service:
        if document:
            # The client refuses a call without parameters; its body is replaced.
            service.set_service_properties(cors=[], raw_request_hook=send)
        service.get_service_properties(
            raw_response_hook=lambda answer: found.append(answer.http_response.body())
        )
    root = parse_xml(found[0], "StorageServiceProperties")
    return Kept(
        _text_of(root, "IsVersioningEnabled") == "true",
        int(_text_of(root, "DeleteRetentionPolicy/Days") or 0),
        int(_text_of(root, "ContainerDeleteRetentionPolicy/Days") or 0),
    )


def _kept_document(given: Given) -> str:
    """Return the service properties to set; elements that are left out stay unchanged."""
    parts: list[str] = []
    if given.versions is not None:
        is_on = "true" if given.versions == "on" else "false"
        parts.append(f"<IsVersioningEnabled>{is_on}</IsVersioningEnabled>")
    for name, days in (
        ("DeleteRetentionPolicy", given.deleted_days),
        ("ContainerDeleteRetentionPolicy", given.deleted_containers_days),
    ):
        if days is not None:
            is_on = str(days > 0).lower()
            shown = f"<Days>{days}</Days>" if days else ""
            parts.append(f"<{name}><Enabled>{is_on}</Enabled>{shown}</{name}>")
    body = "".join(parts)
    return body and f"<StorageServiceProperties>{body}</StorageServiceProperties>"


def _text_of(root: "Element", path: str) -> str:
    return root.findtext(path) or ""


def list_blobs(given: Given) -> BlobsListed:
    with opened_blobs(given) as service:
        container, prefix = _split(given.place or "")
        if not container:
            names = [Found(str(each.name), 0) for each in service.list_containers()]
            return BlobsListed("", names, is_complete=True)
        found: list[Found] = []
        for blob in service.get_container_client(container).list_blobs(prefix or None):
            if len(found) >= LISTED_MAX:
                return BlobsListed(container, found, is_complete=False)
            found.append(_found(blob, ""))
        return BlobsListed(container, found, is_complete=True)


def copy(given: Given) -> BlobCopied:
    is_upload = _is_one_remote(given)
    with opened_blobs(given) as service, Bar("Copy", is_hidden=given.quiet) as bar:
        if is_upload:
            path = Path(given.source)
            container, name = _split(given.target.removeprefix(SCHEME))
            name = name + _utf8(path.name) if not name or name.endswith("/") else name
            client = service.get_container_client(container)
            _ensure(client)
            size = _upload(client, name, path, bar)
            return BlobCopied(_shown(given.source), f"{SCHEME}{container}/{name}", size)
        container, name = _split(given.source.removeprefix(SCHEME))
        path = Path(given.target)
        if path.is_dir():
            path /= PurePosixPath(name).name
        size = _download(service.get_container_client(container), name, path, bar)
        return BlobCopied(given.source, str(path), size)


def sync(given: Given) -> BlobsSynced:
    is_upload = _is_one_remote(given)
    folder = Path(given.source if is_upload else given.target)
    place = (given.target if is_upload else given.source).removeprefix(SCHEME)
    container, prefix = _split(place)
    prefix = f"{prefix.rstrip('/')}/" if prefix else ""
    if is_upload and not folder.is_dir():
        raise ConfigurationError(
            "FileUnusable", f"{folder} is not a folder.", hint="Use `partita blobs cp` for a file."
        )
    with opened_blobs(given) as service, Bar("Sync", is_hidden=given.quiet) as bar:
        client = service.get_container_client(container)
        files = {each.name: each for each in _files(folder)}
        if is_upload and not given.dry_run:
            _ensure(client)
        is_new = is_upload and not client.exists()
        stored = {} if is_new else {each.name: each for each in _blobs(client, prefix)}
        folders = _take_folders(stored, folder, is_upload=is_upload)
        source, target = (files, stored) if is_upload else (stored, files)
        wanted = [
            name for name in sorted(source) if not _is_equal(source[name], target.get(name), folder)
        ]
        extra = sorted(set(target) - set(source)) if given.delete else []
        size = sum(source[name].bytes for name in wanted)
        if is_upload:
            _refuse_dots(extra)
        else:
            _check_names([*source], folders, folder)
        if not given.dry_run:
            for name in folders:
                _make_folder(folder / name)
            for name in wanted:
                if is_upload:
                    _upload(client, prefix + name, folder / name, bar)
                else:
                    _download(client, prefix + name, _inside(folder, name), bar)
            for name in extra:
                if is_upload:
                    client.delete_blob(prefix + name)
                else:
                    (folder / name).unlink()
    unchanged = len(source) - len(wanted)
    return BlobsSynced(bool(given.dry_run), wanted, extra, unchanged, size)


def _is_one_remote(given: Given) -> bool:
    """Return whether the target is remote; exactly one end must be."""
    is_upload: bool = given.target.startswith(SCHEME)
    if is_upload == given.source.startswith(SCHEME):
        raise ConfigurationError(
            "Configuration",
            "One end must be a file and the other one a blob.",
            hint="Write the blob as blob:CONTAINER/NAME.",
        )
    return is_upload


def _split(place: str) -> tuple[str, str]:
    container, _, name = place.strip("/" if place == "/" else "").partition("/")
    return container, name


def _ensure(client: "ContainerClient") -> None:
    from azure.core.exceptions import ResourceExistsError  # noqa: PLC0415 - an extra

    with contextlib.suppress(ResourceExistsError):
        client.create_container()


def _upload(client: "ContainerClient", name: str, path: Path, bar: Bar) -> int:
    from azure.storage.blob import ContentSettings  # noqa: PLC0415 - an extra

    try:
        size = path.stat().st_size
        settings = ContentSettings(content_md5=bytearray(_md5(path)))
        bar.begin(size, "B", name)
        with path.open("rb") as file:
            client.upload_blob(
                name,
                file,
                length=size,
                overwrite=True,
                content_settings=settings,
                progress_hook=lambda done, _total: bar.update(done),
            )
    except OSError as error:
        raise _unusable(path, error) from error
    return size


def _download(client: "ContainerClient", name: str, path: Path, bar: Bar) -> int:
    found = client.download_blob(name, decompress=False)  # the bytes as they are stored
    size = int(found.size)
    bar.begin(size, "B", name)
    unfinished = path.with_name(f".{SystemClock().new_id()}.partita-new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with unfinished.open("xb") as file:
                for piece in found.chunks():
                    file.write(piece)
                    bar.advance(len(piece))
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise _unusable(path, error) from error
    return size


def _files(folder: Path) -> Iterator[Found]:
    if folder.is_dir():
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                name = path.relative_to(folder).as_posix()
                yield Found(_utf8(name), path.stat().st_size)


def _take_folders(stored: dict[str, Found], folder: Path, *, is_upload: bool) -> list[str]:
    """Take blobs that stand for folders out of `stored`; return the folders to create.

    Other programs write an empty blob with a slash at the end of its name for an empty folder. An
    upload keeps it as long as the folder exists.
    """
    names = [name for name, each in stored.items() if name.endswith("/") and not each.bytes]
    if is_upload:
        names = [name for name in names if (folder / name).is_dir()]
    for name in names:
        del stored[name]
    return [] if is_upload else [name.rstrip("/") for name in names]


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(path, error) from error


def _blobs(client: "ContainerClient", prefix: str) -> Iterator[Found]:
    for blob in client.list_blobs(prefix or None):
        yield _found(blob, prefix)


def _found(blob: Any, prefix: str) -> Found:
    md5 = blob.content_settings.content_md5
    modified = blob.last_modified
    return Found(
        str(blob.name).removeprefix(prefix),
        int(blob.size),
        bytes(md5).hex() if md5 else "",
        "" if modified is None else modified.isoformat().replace("+00:00", "Z"),
    )


def _is_equal(one: Found, other: Found | None, folder: Path) -> bool:
    if other is None or one.bytes != other.bytes:
        return False
    md5 = one.md5 or other.md5
    return not md5 or _md5(_inside(folder, one.name)).hex() == md5


def _refuse_dots(names: Sequence[str]) -> None:
    """Refuse names with the parts `.` and `..`: clients remove them, and name another blob."""
    for name in names:
        if {".", ".."}.intersection(name.split("/")):
            raise ConfigurationError(
                "Configuration",
                f"The blob {name!r} cannot be deleted by its name in an address.",
                hint="Delete it with a client that encodes '/' as %2F, or leave out --delete.",
            )


def _utf8(name: str) -> str:
    """Return the name of a file; the name of a blob is UTF-8, that of a file may be any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError(
            "FileUnusable",
            f"The name of the file {_shown(name)} is not UTF-8.",
            hint="Rename the file, or move it out of the folder.",
        ) from error
    return name


def _shown(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _check_names(files: Sequence[str], folders: Sequence[str], folder: Path) -> None:
    """Refuse names that are not those of files, and a name that is a file and a folder."""
    for name in (*files, *folders):
        _inside(folder, name)
    parents = {str(parent) for name in files for parent in PurePosixPath(name).parents}
    both = sorted(parents.union(folders).intersection(files))
    if both:
        raise ConfigurationError(
            "Configuration",
            f"The blob {both[0]!r} has the name of a folder of other blobs.",
            hint="Copy it with `partita blobs cp` and a name of your own.",
        )


def _inside(folder: Path, name: str) -> Path:
    """Return the file of a blob; its name must be the one that `_files` lists it by."""
    path, plain = folder / name, PurePosixPath(name)
    is_usual = plain.as_posix() == name and not {"/", "..", "//"}.intersection(plain.parts)
    if not is_usual or not plain.name or not path.resolve().is_relative_to(folder.resolve()):
        raise ConfigurationError(
            "Configuration",
            f"The blob {name!r} does not have the name of a file in the folder.",
            hint="Copy it with `partita blobs cp` and a name of your own.",
        )
    return path


def _md5(path: Path) -> bytes:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
    return digest.digest()


def _unusable(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        "FileUnusable",
        f"The file {_shown(str(path))} cannot be used: {error.strerror or error}.",
        hint="Check the path and its permissions.",
    )
