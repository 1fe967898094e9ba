"""The wheel: the binary as a script with its manual pages, and the Python module (the binary distribution format of PyPA)."""
import base64
import hashlib
import sys
import time
import zipfile

from .binary import Extension

# The oldest glibc that wheels of today promise to run on (PEP 600). A smaller number in the tag would reach nobody.
OLDEST_GLIBC = (2, 28)
# The module's files besides its library.
SOURCES = ["__init__.py", "__init__.pyi", "py.typed"]

METADATA = """\
Metadata-Version: 2.4
Name: dipaco
Version: {version}
Summary: Trains and serves a modular language model the DiPaCo way: many small paths through shared modules.
License-Expression: MIT OR Apache-2.0
License-File: LICENSE-APACHE
License-File: LICENSE-MIT
License-File: THIRD-PARTY.txt
Requires-Python: >=3.9
Provides-Extra: numpy
Requires-Dist: numpy; extra == "numpy"
Classifier: Operating System :: POSIX :: Linux
Classifier: Topic :: Scientific/Engineering :: Artificial Intelligence
Description-Content-Type: text/markdown

"""


def write_wheel(binary, root, out, seconds):
    """Writes the wheel into the folder `out`; returns its path. Its tag names the glibc that binary and module need, and the
    stable interface of the oldest Python for which the module is built."""
    extension = Extension(binary)
    newest = max([binary, extension], key=lambda file: file.glibc)
    major, minor = max(newest.glibc, OLDEST_GLIBC)
    if newest.glibc > OLDEST_GLIBC:
        print(f"the wheel asks for glibc {major}.{minor}, because {newest.path.name} needs:\n"
              f"{newest.newer_than(OLDEST_GLIBC)}", end="", file=sys.stderr)
    tag = f"cp39-abi3-manylinux_{major}_{minor}_{binary.wheel_processor}"
    name = f"dipaco-{binary.version}"
    info = f"{name}.dist-info"
    sources = root / "crates/python/python/dipaco"
    files = [
        *((f"dipaco/{source}", 0o644, (sources / source).read_bytes()) for source in SOURCES),
        ("dipaco/_dipaco.abi3.so", 0o755, extension.path.read_bytes()),
        (f"{name}.data/scripts/dipaco", 0o755, binary.path.read_bytes()),
        *((f"{name}.data/data/share/man/man1/{page}", 0o644, text) for page, text in binary.manual().items()),
        (f"{info}/METADATA", 0o644, (METADATA.format(version=binary.version) + readme(root)).encode()),
        (f"{info}/WHEEL", 0o644,
         f"Wheel-Version: 1.0\nGenerator: scripts/package.py\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()),
        (f"{info}/licenses/LICENSE-APACHE", 0o644, (root / "LICENSE-APACHE").read_bytes()),
        (f"{info}/licenses/LICENSE-MIT", 0o644, (root / "LICENSE-MIT").read_bytes()),
        (f"{info}/licenses/THIRD-PARTY.txt", 0o644, binary.output("licences").encode()),
    ]
    record = [f"{name},sha256={digest(content)},{len(content)}\n" for name, _, content in files]
    files.append((f"{info}/RECORD", 0o644, "".join([*record, f"{info}/RECORD,,\n"]).encode()))
    path = out / f"{name}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, mode, content in files:
            entry = zipfile.ZipInfo(name, time.gmtime(seconds)[:6])
            entry.external_attr = (0o100000 | mode) << 16
            entry.create_system = 3  # Unix: pip reads the mode.
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, content)
    return path


def readme(root):
    """The first paragraphs of the README. The rest links to pages that the wheel does not have."""
    return (root / "README.md").read_text().split("```")[0]


def digest(content):
    """The hash of a file as RECORD has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
