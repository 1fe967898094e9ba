#!/usr/bin/env python3
"""Looks at a coordinator's page with Chromium: during a training, and after a restart of the coordinator.

    scripts/check-page.py --dipaco target/release/dipaco
    scripts/check-page.py --dipaco target/release/dipaco --pictures DIR     keeps the pictures of the page

A run of 2 x 2 paths trains with two workers. The script waits until losses of three rounds are known, and looks at the page.
It kills one worker and looks again when its lease has expired. Then it kills the coordinator, starts it again and looks
once more. Each time the page must show the rounds, the paths, the workers and the loss curves that the coordinator's
/status.json has. The log of the browser must show that the page makes no request beyond the coordinator's port, and that
nothing leaves the machine. A page that does ask elsewhere shows that the log tells. Prints a table; exits with 1 when
something is missing. Needs `chromium` (apt install chromium); without it it says so and ends with 0.
"""

import http.server
import ipaddress
import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

from runs import CORPUS, TINY, VALIDATION, Led, end, free_port, parser, settings, untrained

PATIENCE = 180
SETTINGS = {
    "train.rounds": 1000,
    "train.inner_steps": 150,
    "train.threads_per_worker": 1,
    "train.lease_seconds": 5,
    "train.validate_every": 1,
}
# Quiet where it can be. The rules keep the browser's own requests, which no flag stops, from leaving the machine: no
# name has an address.
BROWSER = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--window-size=1280,1080",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
ELSEWHERE = b"""<!doctype html><link rel=stylesheet href="http://elsewhere.invalid/a.css"><img src="http://elsewhere.invalid/a.png">"""


def is_loopback(host):
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class Look:
    """A page as a browser shows it: its document, and what the browser asked for."""

    def __init__(self, url, folder, picture=None):
        self.url, log = url, folder / "net.json"
        log.unlink(missing_ok=True)
        words = ["chromium", *BROWSER, f"--user-data-dir={tempfile.mkdtemp(dir=folder)}", f"--log-net-log={log}", "--dump-dom"]
        words += [f"--screenshot={picture}"] if picture else []
        done = subprocess.run([*words, url], capture_output=True, text=True, timeout=120)
        if done.returncode != 0 or not done.stdout:
            sys.exit(f"{' '.join(words)}: exit {done.returncode}\n{done.stderr}")
        self.document = done.stdout
        self.text = re.sub(r"\s+", " ", re.sub(r"<style.*?</style>|<[^>]*>", " ", self.document))
        log = json.loads(log.read_text())
        names = {number: name for name, number in log["constants"]["logEventTypes"].items()}
        self.events = [(names[event["type"]], event.get("params", {})) for event in log["events"]]

    def of_page(self):
        """The addresses that the page asked for, itself included. The browser's own requests have another key."""
        site = "http://" + urllib.parse.urlsplit(self.url).hostname
        requests = [params for name, params in self.events if name == "URL_REQUEST_START_JOB" and "url" in params]
        return [request["url"] for request in requests if site in request["network_isolation_key"].split()]

    def beyond(self):
        """Requests of the page to another host or port, and everything by which the browser left the machine."""
        place = urllib.parse.urlsplit(self.url).netloc
        found = [url for url in self.of_page() if urllib.parse.urlsplit(url).netloc != place]
        addresses = [params["address"] for name, params in self.events if name == "TCP_CONNECT_ATTEMPT" and "address" in params]
        found += [address for address in addresses if not is_loopback(address.rpartition(":")[0])]
        return found + [params["hostname"] for name, params in self.events if name == "DNS_TRANSACTION" and "hostname" in params]


def sees_requests_elsewhere(folder):
    """Shows that the browser's log tells of a page that asks elsewhere."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(ELSEWHERE)

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    beyond = Look(f"http://127.0.0.1:{server.server_port}/", folder).beyond()
    server.shutdown()
    if sorted(set(beyond)) != ["http://elsewhere.invalid/a.css", "http://elsewhere.invalid/a.png"]:
        sys.exit(f"the log of the browser does not tell what a page asks elsewhere: {beyond}")


def status(base):
    try:
        with urllib.request.urlopen(base + "/status.json", timeout=10) as reply:
            return json.load(reply)
    except OSError:
        return None


def until(led, base, what, happened):
    """Waits until the state of the run is as it should be; returns the state."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if led.leader.ended():
            sys.exit(f"the coordinator has ended: {led.leader.log}\n{led.leader.log.read_text(errors='replace')[-2000:]}")
        state = status(base)
        if state and state["live"] and happened(state):
            return state
        time.sleep(0.1)
    sys.exit(f"not within {PATIENCE} s: {what}")


def check(look, before, after, workers):
    """What the page lacks of the states before and after it."""
    live, missing = before["live"], []
    rounds = re.search(r"round (\d+) of (\d+)", look.text)
    if not rounds or not live["rounds_done"] <= int(rounds[1]) <= after["live"]["rounds_done"] or int(rounds[2]) != live["rounds"]:
        missing.append(f"rounds {live['rounds_done']} to {after['live']['rounds_done']} of {live['rounds']}")
    for path in live["paths"]:
        modules = " ".join(f"{module['level']}/{module['index']}" for module in path["modules"])
        if not re.search(rf"<td>{path['path']}</td><td class=\"text\">{modules}</td>", look.document):
            missing.append(f"path {path['path']} of {modules}")
    for name, words in workers.items():
        if not re.search(rf"<td class=\"text\">{name}</td><td class=\"text\">{words}", look.document):
            missing.append(f"worker {name}: {words}")
    # A curve has a point for each value that is known.
    known = [len(before["history"][curve]) for curve in ("training", "validation")]
    drawn = [len(points.split()) for points in re.findall(r'<polyline points="([^"]*)"', look.document)]
    if len(drawn) != 2 or any(points < least for points, least in zip(drawn, known)):
        missing.append(f"curves of {known} points: {drawn}")
    for name in live["modules"]:
        if f"{name['module']['level']}/{name['module']['index']} ·" not in look.text:
            missing.append(f"module {name['module']}")
    return missing + [f"asks {address}" for address in look.beyond()]


def main():
    options = parser(__doc__)
    options.add_argument("--pictures", type=pathlib.Path, help="folder that keeps the pictures")
    options = options.parse_args()
    if shutil.which("chromium") is None:
        print("skipped: there is no chromium (apt install chromium)", file=sys.stderr)
        return
    folder = pathlib.Path(tempfile.mkdtemp(prefix="check-page-"))
    pictures = options.pictures or folder
    pictures.mkdir(parents=True, exist_ok=True)
    sees_requests_elsewhere(folder)
    made = folder / "run"
    untrained(options.dipaco, made, TINY, CORPUS, "--validation", VALIDATION)
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    led = Led(options.dipaco, folder, made, "--http", port, *settings(SETTINGS))
    workers = {name: led.worker(name) for name in ("first", "second")}
    failed = 0
    print(f"{'look':<24}{'rounds':>7}{'requests':>9}  of the page; missing", flush=True)

    def look(name, expected):
        nonlocal failed
        before = status(base)
        seen = Look(base + "/", folder, pictures / f"{name.replace(' ', '-')}.png")
        missing = check(seen, before, status(base), expected)
        failed += bool(missing)
        asked = " ".join(sorted({urllib.parse.urlsplit(url).path for url in seen.of_page()}))
        print(f"{name:<24}{before['live']['rounds_done']:>7}{len(seen.of_page()):>9}  {asked}; {', '.join(missing) or 'nothing'}", flush=True)
        return before

    try:
        until(led, base, "three rounds", lambda state: len(state["history"]["training"]) >= 3 and len(state["history"]["validation"]) >= 2)
        look("during a training", {"first": "connected", "second": "connected"})
        until(led, base, "a lease of the second worker", lambda state: any(
            path["lease"] and path["lease"]["worker"] == "second" for path in state["live"]["paths"]))
        workers["second"].send(signal.SIGKILL)
        until(led, base, "the end of a lease", lambda state: state["history"]["leases_lost"] > 0)
        seen = look("after a killed worker", {"first": "connected", "second": "(silent|left)"})
        led.leader.send(signal.SIGKILL)
        led.leader.child.wait()
        led.leader.start()
        until(led, base, "another round", lambda state: state["live"]["rounds_done"] > seen["live"]["rounds_done"])
        look("after a restart", {"first": "connected", "second": "left: the coordinator has started again"})
    finally:
        end(workers["first"], led.leader)
    shutil.rmtree(folder)
    if failed:
        sys.exit("the page lacks something")


if __name__ == "__main__":
    main()
