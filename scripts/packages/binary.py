"""The binary of dipaco and the library of its Python module, and what they need from a machine."""
import functools
import os
import pathlib
import re
import subprocess
import tempfile

# Names of a processor: in readelf's output, in tags of wheels, in Debian.
PROCESSORS = {"Advanced Micro Devices X86-64": ("x86_64", "amd64"), "AArch64": ("aarch64", "arm64")}
# Libraries that the manylinux policies (PEP 600) expect on every machine, with their packages in Debian.
LIBRARIES = {
    "libc.so.6": "libc6", "libm.so.6": "libc6", "libdl.so.2": "libc6", "libpthread.so.0": "libc6", "librt.so.1": "libc6",
    "ld-linux-x86-64.so.2": "libc6", "ld-linux-aarch64.so.1": "libc6", "libgcc_s.so.1": "libgcc-s1",
    "libstdc++.so.6": "libstdc++6",
}
IMPORTED = re.compile(r"\bUND (\S+?)@(GLIBC_\d\S*)")


class PackageError(Exception):
    """Why a package can't be made, and what to do."""


class ElfFile:
    """A program or library for Linux."""

    def __init__(self, path, built_by):
        if not path.is_file():
            raise PackageError(f"there is no {path}: build it with {built_by}")
        self.path = path.resolve()
        header = self._readelf("--file-header")
        machine = re.search(r"Machine:\s*(.*)", header)
        if machine is None or machine[1] not in PROCESSORS:
            raise PackageError(f"{path} is no ELF file for one of: {', '.join(PROCESSORS)}")
        self.wheel_processor, self.debian_processor = PROCESSORS[machine[1]]
        self.libraries = re.findall(r"\(NEEDED\)\s+Shared library: \[(.*)\]", self._readelf("--dynamic"))
        unusual = sorted(set(self.libraries) - set(LIBRARIES))
        if unusual:
            raise PackageError(f"{path} needs libraries that not every machine has: {', '.join(unusual)}")

    def _readelf(self, *options):
        done = subprocess.run(["readelf", "--wide", *options, str(self.path)], capture_output=True, text=True,
                              env={**os.environ, "LC_ALL": "C"})
        if done.returncode != 0:
            raise PackageError(f"readelf can't read {self.path}: {done.stderr.strip()}")
        return done.stdout

    @functools.cached_property
    def symbols(self):
        """The symbols of glibc that the binary imports: version of glibc -> sorted names."""
        found = {}
        for name, version in IMPORTED.findall(self._readelf("--dyn-syms")):
            numbers = version.removeprefix("GLIBC_").split(".")
            if not all(number.isdigit() for number in numbers):
                raise PackageError(f"{self.path} needs {name}@{version}, which no other machine has")
            found.setdefault((int(numbers[0]), int(numbers[1])), set()).add(name)
        return {version: sorted(names) for version, names in sorted(found.items())}

    @property
    def glibc(self):
        """The oldest glibc that has every imported symbol."""
        return max(self.symbols, default=(2, 0))

    def newer_than(self, glibc):
        """One line for each version of glibc above this one: its symbols in the binary."""
        newer = {version: names for version, names in self.symbols.items() if version > glibc}
        return "".join(f"  glibc {major}.{minor}: {', '.join(names)}\n" for (major, minor), names in newer.items())

    def runs_on_glibc(self, glibc):
        """Raises an error if the binary needs a newer glibc than this one."""
        newer = self.newer_than(glibc)
        if newer:
            raise PackageError(
                f"{self.path} needs a newer glibc than {glibc[0]}.{glibc[1]}:\n{newer}"
                "build it on a system with that glibc, or leave out --glibc for a package that asks for a newer one")


class Binary(ElfFile):
    """The program, which has been run once to ask for its version."""

    def __init__(self, path):
        super().__init__(path, "cargo build --release --locked --bin dipaco")
        name, _, self.version = self.output("--version").strip().partition(" ")
        if name != "dipaco" or not re.fullmatch(r"\d+\.\d+\.\d+", self.version):
            raise PackageError(f"{path} --version does not say dipaco and a version")

    def output(self, *words):
        """Standard output of the program, called with these words."""
        done = subprocess.run([str(self.path), *words], capture_output=True, text=True, check=True)
        return done.stdout

    def manual(self):
        """The manual pages: name -> content."""
        with tempfile.TemporaryDirectory() as folder:
            self.output("man", folder)
            return {page.name: page.read_bytes() for page in sorted(pathlib.Path(folder).iterdir())}


class Extension(ElfFile):
    """The library of the Python module. It is built beside the binary."""

    def __init__(self, binary):
        super().__init__(binary.path.with_name("lib_dipaco.so"), "cargo build --release --locked --package dipaco-python")
        if self.wheel_processor != binary.wheel_processor:
            raise PackageError(f"{self.path} and {binary.path} are for different processors: build both again")
