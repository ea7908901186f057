"""bench-api.sh, inside the private host: bench_api.py BINARY MACHINES."""

import concurrent.futures
import ctypes
import sys
import time

from bench import Manager, Unix, calibration_ms, median, result, say

PAIRS = 21
WARM_UP = 3
MAKERS = 8
URI = b"qemu:///system"
STATES_ONLY = 1  # VIR_DOMAIN_STATS_STATE
EVERYTHING = 0


class Libvirt:
    """The bare C library, so that nothing but the call itself is timed."""

    def __init__(self):
        self.lib = ctypes.CDLL("libvirt.so.0")
        self.lib.virConnectOpen.restype = ctypes.c_void_p
        self.lib.virConnectGetAllDomainStats.argtypes = [
            ctypes.c_void_p, ctypes.c_uint, ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint]
        self.lib.virDomainStatsRecordListFree.argtypes = [ctypes.c_void_p]
        self.conn = self.lib.virConnectOpen(URI)
        if not self.conn:
            raise SystemExit("libvirt does not answer")

    def stats(self, groups, wanted):
        """Seconds that one call takes."""
        records = ctypes.c_void_p()
        begin = time.monotonic()
        count = self.lib.virConnectGetAllDomainStats(self.conn, groups, ctypes.byref(records), 0)
        took = time.monotonic() - begin
        self.lib.virDomainStatsRecordListFree(records)
        if count != wanted:
            raise SystemExit(f"libvirt lists {count} machines, not {wanted}")
        return took


def make_machines(count):
    """Defines machines that are off, several at a time."""
    profile = {"profile": "firmware", "is_stopped": True}

    def make(numbers):
        api = Unix()
        for number in numbers:
            api.call("POST", "/v1/vms", {"name": f"m{number}", **profile})

    with concurrent.futures.ThreadPoolExecutor(MAKERS) as pool:
        list(pool.map(make, [range(first, count, MAKERS) for first in range(MAKERS)]))
    api = Unix()
    end = time.monotonic() + 900
    while time.monotonic() < end:
        states = [vm["state"] for vm in api.json("GET", "/v1/vms")["vms"]]
        if states.count("stopped") == count:
            return
        time.sleep(1)
    raise SystemExit(f"of {count} machines {states.count('stopped')} are defined")


def listing(api, count):
    """Seconds for one listing, the last byte of its answer included."""
    begin = time.monotonic()
    text = api.call("GET", f"/v1/vms?limit={count}")
    took = time.monotonic() - begin
    return took, len(text)


def main(binary, count):
    manager = Manager(binary)
    begin = time.monotonic()
    make_machines(count)
    making_s = time.monotonic() - begin
    say(f"{count} machines are defined ({making_s:.0f} s)")
    manager.stop()
    ready_s = manager.start()
    say(f"a new manager answers after {ready_s:.2f} s")
    # Its first look at every machine is not part of a listing.
    manager.settle_accelerator()
    api, libvirt = Unix(), Libvirt()
    if len(api.json("GET", f"/v1/vms?limit={count}")["vms"]) != count:
        raise SystemExit("the manager does not list all machines")
    for _ in range(WARM_UP):
        listing(api, count), libvirt.stats(EVERYTHING, count), libvirt.stats(STATES_ONLY, count)

    before = calibration_ms()
    ours, all_stats, states = [], [], []
    for turn in range(PAIRS):
        # Neither side always has the other's wake.
        if turn % 2:
            ours.append(listing(api, count)[0])
        all_stats.append(libvirt.stats(EVERYTHING, count))
        states.append(libvirt.stats(STATES_ONLY, count))
        if not turn % 2:
            took, size = listing(api, count)
            ours.append(took)
    after = calibration_ms()
    rss_mib = manager.rss_mib()
    manager.stop()
    result(
        list_ratio=median([a / b for a, b in zip(ours, all_stats)]),
        rss_mib=rss_mib,
        ready_s=ready_s,
        list_ms=median(ours) * 1000,
        libvirt_ms=median(all_stats) * 1000,
        libvirt_states_ms=median(states) * 1000,
        list_ratio_states=median([a / b for a, b in zip(ours, states)]),
        machines=count,
        pairs=PAIRS,
        answer_kib=size // 1024,
        making_s=making_s,
        calibration_ms=[round(before), round(after)],
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
