"""The status of hosts: parsed from what agents answer, and shown within 80 columns."""

import io
from typing import Any

from rich.console import Console

from monarch_async.control.placement_messages import pack_held
from monarch_async.mesh.status import CallStatus, ClientStatus, Status, parse_status
from monarch_async.scheduler.events import Held
from monarch_async.scheduler.resources import Resources


def answer(
    name: str, procs: list[dict[str, Any]], guests: list[list[Any]] | None = None, store: dict[str, int] | None = None
) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": name, "url": f"tcp://{name}:7700", "pid": 7, "load": 0.26, "cpus": 2}
    gauges = dict.fromkeys(("used", "objects", "waiting_puts", "waiting_reads", "spilled", "spilled_bytes", "pulls"), 0)
    gauges |= {"budget": 8_000_000_000, **(store or {})}
    holders = [["procs[0]", 10, 3, 5_000_000_000], ["beta", 20, 1, 2_000_000_000]] if store else []
    facts |= {"resources": Resources(cpus=2.0).pack(), "reservations": [], "leases": []}
    return {**facts, "guests": guests or [], "window": 30.0, "procs": procs, "store": gauges, "holders": holders}


def proc(mesh: str, rank: int, address: int, *running: list[Any], state: str = "up") -> dict[str, Any]:
    actors = [{"name": f"{mesh}[{rank}]", "state": "running", "queued": 3, "running": list(running)}] if running else []
    facts = {"mesh": mesh, "rank": rank, "address": address, "pid": 40 + rank, "state": state, "rss": 31_400_000}
    return {**facts, "actors": actors}


def shown(status: Status) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=80).print(status)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_callers_are_named_across_hosts() -> None:
    me = ["me", "client", True, 5]
    alpha = answer("alpha", [proc("buffers", 0, 10, ["put", 0.5, 21, ""], ["get", 2.0, 5, ""])], [me])
    beta = answer("beta", [proc("players", 1, 21, ["play", 9.0, 10, "buffers[0].put"], ["play", 1.0, 0xAB, ""])])
    status = parse_status([alpha, beta])
    (first,), (second,) = (host.procs[0].actors for host in status.hosts)
    assert first.calls == (CallStatus("get", 2.0, "me"), CallStatus("put", 0.5, "players[1]"))  # the oldest first
    assert second.calls == (CallStatus("play", 9.0, "buffers[0].put"), CallStatus("play", 1.0, "00000000:000000ab"))


def test_procs_come_in_order_and_only_clients_are_shown() -> None:
    others = [["beta", "agent", 0.0, 7], ["status", "observer", 0.0, 8]]
    guests = [["me", "client", 0.0, 5], ["you", "client", 2.5, 6], *others]
    (host,) = parse_status([answer("alpha", [proc("b", 10, 3), proc("b", 9, 2), proc("a", 0, 1)], guests)]).hosts
    assert [p.name for p in host.procs] == ["a[0]", "b[9]", "b[10]"]
    assert host.clients == (ClientStatus("me", 0.0, 30.0), ClientStatus("you", 2.5, 30.0))
    assert [str(client) for client in host.clients] == ["me", "you (not connected for 2.50 s, gone after 30 s)"]


def test_the_table_fits_80_columns() -> None:
    long = proc("generators", 127, 1, ["rollout", 31.0, 9, "controllers[0].improve_the_policy"])
    lines = shown(parse_status([answer("alpha", [long, proc("stuck", 0, 2, state="blocked")]), answer("beta", [])]))
    assert max(map(len, lines)) <= 80
    assert lines[0] == "alpha  tcp://alpha:7700  pid 7"
    assert lines[1] == "load 0.3 on 2 cpus  clients: none"
    assert [line.split() for line in lines if line.startswith("stuck")] == [["stuck[0]", "blocked", "40", "31", "MB"]]
    assert any(line.split()[:3] == ["rollout", "31", "s"] for line in lines if line)
    assert "no procs" in lines


def test_names_are_text_and_not_markup() -> None:
    lines = shown(parse_status([answer("[red]alpha", [proc("[bold]", 0, 1)], [["[i]me", "client", 0.0, 5]])]))
    assert lines[0].startswith("[red]alpha ")
    assert lines[1].endswith("[i]me")
    assert any(line.startswith("[bold][0]") for line in lines)


def test_as_text_it_is_the_same_table() -> None:
    status = parse_status([answer("alpha", [proc("procs", 0, 1, ["step", 0.0, 9, "x"])])])
    assert str(status).splitlines()[0] == "alpha  tcp://alpha:7700  pid 7"
    assert "    step" in str(status)
    assert all(line == line.rstrip() for line in str(status).splitlines())


def test_each_host_has_a_line_for_its_store() -> None:
    full = {"used": 7_900_000_000, "objects": 31, "spilled": 4, "spilled_bytes": 1_200_000_000, "waiting_puts": 2}
    lines = shown(parse_status([answer("alpha", []), answer("beta", [], store={**full, "pulls": 1})]))
    assert lines[3] == "store 0.0 of 8.0 GB, objects: 0"
    assert "store 7.9 of 8.0 GB, objects: 31, on disk: 4 (1.2 GB), arriving: 1, waiting for" in lines  # 80 columns
    assert "room: 2; held by procs[0] (3, 5.0 GB), beta (1, 2.0 GB)" in lines


def test_the_table_says_what_is_free_and_who_holds_the_rest() -> None:
    there = Resources(8, ("0", "1"), 64 << 30, {"zone": "a"}, {"tokens": 3.0})
    rows = [
        ["trainers", 11, "me", pack_held(Held(20_000, (("0", 10_000), ("1", 2_500)), 16 << 30)), False],
        ["service", 12, "nightly", pack_held(Held(10_000, (), 0, (("tokens", 5_000),))), True],
        ["tasks of me", 13, "me", pack_held(Held(0, (), 1 << 30, ())), False],
    ]
    lines = shown(parse_status([{**answer("alpha", []), "resources": there.pack(), "reservations": rows}]))
    assert lines[2:6] == [
        "free 6 of 8 cpus, 0.75 of 2 gpus, 47 GiB of 64 GiB, 2.5 of 3 tokens  zone=a",
        "  trainers of me: 2 cpus, 1.25 gpus, 16 GiB of memory (0, 0.25 of 1)",
        "  service of nightly: 1 cpu, 0.5 tokens, its cpus lent",
        "  tasks of me: 1 GiB of memory",
    ]


def test_of_very_many_reservations_the_others_are_counted() -> None:
    rows = [[f"task {number}", number, "me", pack_held(Held(1_000)), False] for number in range(20)]
    (host,) = parse_status([{**answer("alpha", []), "reservations": rows}]).hosts
    assert str(host.placed).splitlines()[-1] == "  and 4 more"
    assert host.placed.held == Held(20_000)


def test_detached_leases_are_put_together_from_what_each_host_knows() -> None:
    row = {
        "id": 5, "name": "train", "made_by": "client 7", "age": 100.0, "owner": 0, "owner_name": "", "away": 0.0,
        "previous_owner": "client 7", "unowned_for": 31.0, "left_why": "not heard", "actors": ["trainers"],
        "hosts": [[1, "alpha", "tcp://alpha:7700", [0, 1]], [2, "beta", "tcp://beta:7700", [2, 3]]],
        "living": [0, 1], "dead": [],
    }  # fmt: skip
    alpha = {**answer("alpha", []), "leases": [row]}
    beta = {**answer("beta", []), "leases": [{**row, "living": [3], "dead": [2]}]}
    first, second = parse_status([alpha, beta]).hosts
    [lease] = first.detached
    assert second.detached == first.detached and (lease.living, lease.gone) == ((0, 1, 3), (2,))
    text = "train: 3 of 4 procs on alpha, beta with trainers, 1m 40s old, unowned for 31 s, was of client 7"
    assert str(lease) == text and f"detached {text}" in " ".join(shown(parse_status([alpha, beta])))
    held = {**row, "owner": 9, "owner_name": "client 9", "away": 3.0}
    [alone] = parse_status([{**alpha, "leases": [held]}]).hosts
    said = str(alone.detached[0])
    assert "2 of 4 procs" in said and "held by client 9, not connected for 3.00 s" in said
