"""The Debian package: the binary, its units for systemd, completions, manual pages and licences."""
import gzip
import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile

from .binary import LIBRARIES, PackageError

CONTROL = """\
Package: dipaco
Version: {version}
Architecture: {processor}
Maintainer: the authors of dipaco <authors@dipaco.invalid>
Depends: {depends}
Suggests: systemd
Section: science
Priority: optional
Homepage: https://github.com/dipaco/dipaco
Installed-Size: {kilobytes}
Description: trains and serves a modular language model the DiPaCo way
 The model consists of many small paths through shared modules. Workers on any
 machines train one path at a time, and an infrequent outer step keeps the
 shared modules in sync. The program prepares text, trains, evaluates and serves.
"""
EXECUTABLE = ["usr/bin/dipaco", "DEBIAN/postinst", "DEBIAN/prerm"]
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/dipaco",
    "zsh": "usr/share/zsh/vendor-completions/_dipaco",
    "fish": "usr/share/fish/vendor_completions.d/dipaco.fish",
}


def write_deb(binary, root, out, seconds):
    """Writes the package into the folder `out`; returns its path."""
    if shutil.which("dpkg-deb") is None:
        raise PackageError("there is no dpkg-deb: install the package dpkg")
    path = out / f"dipaco_{binary.version}_{binary.debian_processor}.deb"
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder) / "tree"
        fill(tree, binary, root)
        control(tree, binary, root)
        for file in [tree, *tree.rglob("*")]:
            executable = file.is_dir() or str(file.relative_to(tree)) in EXECUTABLE
            file.chmod(0o755 if executable else 0o644)
            os.utime(file, (seconds, seconds))
        # gzip: the bytes of xz depend on the number of threads.
        subprocess.run(
            ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z6", "--build", str(tree), str(path)],
            env={**os.environ, "SOURCE_DATE_EPOCH": str(seconds)}, check=True, stdout=subprocess.DEVNULL)
    return path


def fill(tree, binary, root):
    """The files that the package installs."""
    units, configs, documents = root / "deploy/systemd", root / "configs", tree / "usr/share/doc/dipaco"
    for name, content in {
        "usr/bin/dipaco": binary.path.read_bytes(),
        **{f"usr/lib/systemd/system/{unit.name}": unit.read_bytes() for unit in sorted(units.glob("*.service"))},
        "usr/lib/sysusers.d/dipaco.conf": (units / "sysusers.conf").read_bytes(),
        "usr/lib/tmpfiles.d/dipaco.conf": (units / "tmpfiles.conf").read_bytes(),
        # Not among the documents: images of containers leave those out.
        **{f"usr/share/dipaco/configs/{file.relative_to(configs)}": file.read_bytes() for file in sorted(configs.rglob("*.toml"))},
        **{place: binary.output("completions", shell).encode() for shell, place in COMPLETIONS.items()},
        **{f"usr/share/man/man1/{name}.gz": gzip.compress(page, mtime=0) for name, page in binary.manual().items()},
    }.items():
        write(tree / name, content)
    write(documents / "copyright", (root / "deploy/debian/copyright").read_bytes() + (root / "LICENSE-MIT").read_bytes())
    write(documents / "LICENSE-APACHE.gz", gzip.compress((root / "LICENSE-APACHE").read_bytes(), mtime=0))
    write(documents / "THIRD-PARTY.txt.gz", gzip.compress(binary.output("licences").encode(), mtime=0))
    write(documents / "changelog.gz", gzip.compress((root / "CHANGELOG.md").read_bytes(), mtime=0))


def control(tree, binary, root):
    """The files that dpkg reads."""
    files = [file for file in sorted(tree.rglob("*")) if file.is_file()]
    sums = [f"{hashlib.md5(file.read_bytes()).hexdigest()}  {file.relative_to(tree)}\n" for file in files]
    major, minor = binary.glibc
    depends = {f"libc6 (>= {major}.{minor})", *(LIBRARIES[library] for library in binary.libraries)} - {"libc6"}
    write(tree / "DEBIAN/control", CONTROL.format(
        version=binary.version, processor=binary.debian_processor, depends=", ".join(sorted(depends)),
        kilobytes=sum(-(-file.stat().st_size // 1024) for file in files)).encode())
    write(tree / "DEBIAN/md5sums", "".join(sums).encode())
    for script in ["postinst", "prerm"]:
        write(tree / "DEBIAN" / script, (root / "deploy/debian" / script).read_bytes())


def write(path, content):
    """Writes a file into a folder that need not exist."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
