"""Where UCX is looked for, and what is said where it is not."""

import subprocess
import sys
from dataclasses import replace

import pytest

from monarch_async.bulk.endpoint import Endpoint
from monarch_async.bulk.region import Regions
from monarch_async.bulk.ucx import Ucx, open_worker
from monarch_async.bulk.ucx_library import (
    CONNECTION_RESET,
    IN_PROGRESS,
    UcxFailure,
    UcxLibrary,
    find_library,
    load_library,
)
from monarch_async.bulk.ucx_worker import UcxWorker

ENDPOINT = Endpoint(b"cluster", 1, "nobody", b"machine", 1, 0, b"nonce")


@pytest.fixture(scope="module")
def library() -> UcxLibrary:
    found = find_library()
    assert isinstance(found, UcxLibrary), found
    return found


def test_it_is_loaded_once(library: UcxLibrary) -> None:
    assert find_library() is library
    assert library.version >= (1, 13, 0)


def test_a_folder_without_it() -> None:
    why = load_library({"UCX_LIB_DIR": "/nowhere"})
    assert isinstance(why, str)
    assert "/nowhere" in why
    assert "monarch-async[ucx]" in why


@pytest.mark.parametrize("chosen", ["posix,cma", "self", "cma"])
def test_transports_that_notice_no_failure(chosen: str) -> None:
    why = load_library({"UCX_TLS": chosen})
    assert isinstance(why, str)
    assert "add tcp" in why


def test_without_cffi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cffi", None)
    why = load_library({})
    assert isinstance(why, str)
    assert "cffi is not installed" in why


def test_statuses_are_one_byte(library: UcxLibrary) -> None:
    """Declared as an int, -25 would be 231, and every failure a success."""
    assert library.ffi.sizeof("ucs_status_t") == 1
    with pytest.raises(UcxFailure, match=r"reading: connection reset.*\(status -25\)"):
        library.check(CONNECTION_RESET, "reading")
    library.check(IN_PROGRESS, "reading")
    cast = library.ffi.cast
    assert library.status_of(cast("void *", 0)) == 0
    assert library.status_of(cast("void *", CONNECTION_RESET)) == CONNECTION_RESET
    assert library.status_of(cast("void *", 0x7F0000001000)) == IN_PROGRESS


def test_who_has_no_worker(library: UcxLibrary) -> None:
    assert "no UCX worker" in (Ucx.probe(ENDPOINT) or "")
    assert Ucx.probe(replace(ENDPOINT, ucx=b"address")) is None


async def test_settings_of_the_environment(library: UcxLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours hold only where the user set none; nonsense is a reason, and leaves nothing open."""
    monkeypatch.setenv("UCX_TLS", "nonsense")
    monkeypatch.setenv("UCX_NET_DEVICES", "nonsense0")
    why = open_worker(Regions().beacon, is_loopback_only=True)
    assert isinstance(why, str)
    monkeypatch.setenv("UCX_TLS", "tcp")
    monkeypatch.delenv("UCX_NET_DEVICES")
    worker = open_worker(Regions().beacon, is_loopback_only=True)
    assert isinstance(worker, UcxWorker)
    await worker.aclose()


def test_nothing_of_it_is_loaded_before_its_first_use() -> None:
    code = "import sys, monarch_async.bulk.plane, monarch_async.bulk.ucx; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"cffi", "_cffi_backend", "libucx"} & set(done.stdout.split())
