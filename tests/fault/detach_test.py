"""detach_test.py NANO_FAULT_TEST NANO: the disk of a running model disappears and comes back.

A small ext4 on a loop device holds the model. The file behind the device is cut off, so that every
read of the device fails, and filled again. Exit status 77 (skipped) where loop devices cannot be
made: that needs root.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

MIB = 1 << 20


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def make_image(image, mount, nano):
    """Returns the path of the model on a mounted file system, or None if mounting is not
    allowed."""
    bytes_needed = sum(f.stat().st_size for f in pathlib.Path(nano).rglob("*") if f.is_file())
    with open(image, "wb") as file:
        file.truncate((bytes_needed // MIB + 32) * MIB)
    run("mkfs.ext4", "-q", "-F", "-O", "^has_journal", image)
    os.mkdir(mount)
    try:
        run("mount", "-o", "loop", image, mount)
    except subprocess.CalledProcessError as error:
        print(error.stderr.strip())
        return None
    model = os.path.join(mount, "nano.fmoe")
    shutil.copytree(nano, model)
    run("sync", "-f", model)
    # The written data is in the device's own cache now; from here on it is only read.
    run("mount", "-o", "remount,ro", mount)
    return model


def main():
    test, nano = sys.argv[1:]
    if os.geteuid() != 0:
        skip("only root can make loop devices")
    for tool in ("mkfs.ext4", "mount"):
        if shutil.which(tool) is None:
            skip(f"{tool} is missing")
    with tempfile.TemporaryDirectory(dir=".") as folder:
        image, keep, mount = (os.path.join(os.path.abspath(folder), name)
                              for name in ("image", "keep", "mount"))
        model = make_image(image, mount, nano)
        if model is None:
            skip("no loop device can be mounted")
        try:
            shutil.copyfile(image, keep)
            # The head of the file system stays; only the experts are lost.
            detach = f"truncate -s {MIB} '{image}'"
            attach = f"cat '{keep}' > '{image}'"
            status = subprocess.run([test, model, "detach", detach, attach]).returncode
        finally:
            run("umount", mount)
    sys.exit(status)


if __name__ == "__main__":
    main()
