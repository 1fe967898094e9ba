"""Network namespaces that are joined by a bridge, for scripts that play several machines on one. Needs root and `ip`."""

import os
import subprocess


def sh(*words, check=True):
    return subprocess.run([str(word) for word in words], check=check, capture_output=True, text=True)


class Namespaces:
    """A bridge and a namespace for each end."""

    def __init__(self, ends):
        mark = os.getpid() % 10000
        self.names = [f"dipaco{mark}-{end}" for end in range(ends)]
        self.devices = [f"dpi{mark}-{end}" for end in range(ends)]
        self.bridge = f"dpb{mark}"
        sh("ip", "link", "add", self.bridge, "type", "bridge")
        sh("ip", "link", "set", self.bridge, "up")
        for end, name in enumerate(self.names):
            outer, inner = f"dpo{mark}-{end}", self.devices[end]
            sh("ip", "netns", "add", name)
            sh("ip", "link", "add", outer, "type", "veth", "peer", "name", inner)
            sh("ip", "link", "set", inner, "netns", name)
            sh("ip", "link", "set", outer, "master", self.bridge, "up")
            self.inside(end, "ip", "addr", "add", f"{self.address(end)}/24", "dev", inner)
            self.inside(end, "ip", "link", "set", inner, "up")
            self.inside(end, "ip", "link", "set", "lo", "up")

    def address(self, end):
        """The address of an end."""
        return f"10.77.0.{end + 1}"

    def inside(self, end, *words):
        return sh("ip", "netns", "exec", self.names[end], *words)

    def remove(self):
        for name in self.names:
            sh("ip", "netns", "del", name, check=False)
        sh("ip", "link", "del", self.bridge, check=False)
