"""The folder that a container is built from: the Dockerfile and the files that it copies."""
import os
import shutil


def write_container(binary, root, out, seconds):
    """Writes the folder `container` into `out`; returns its path."""
    folder = out / "container"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.copyfile(binary.path, folder / "dipaco")
    (folder / "dipaco").chmod(0o755)
    for file in ["deploy/container/Dockerfile", "LICENSE-APACHE", "LICENSE-MIT"]:
        shutil.copy(root / file, folder)
    (folder / "THIRD-PARTY.txt").write_text(binary.output("licences"))
    for file in [*folder.iterdir(), folder]:
        os.utime(file, (seconds, seconds))
    return folder
