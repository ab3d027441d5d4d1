"""folders: what a block writes -> a folder or a file that is there whole or not at all.

Example:
    >>> import tempfile
    >>> parent = Path(tempfile.mkdtemp())
    >>> with new_folder(parent / "model") as partial:
    ...     _ = (partial / "config.json").write_text("{}")
    >>> [path.name for path in parent.iterdir()]
    ['model']
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from igrpo_train.errors import DiskError


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Give a block a folder to fill, beside `target`, and rename it to `target` when the block ends well.

    Args:
        target: must not exist, or be an empty folder; parents are made.

    Raises:
        FileExistsError: something is there already; also when another process was faster.
        DiskError: the folder cannot be made.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"folder must be new or empty, got {str(target)!r}: name another one or remove it")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
    except OSError as error:
        reason = error.strerror or str(error)
        raise DiskError(f"folder must be one that can be made, got {str(target)!r} ({reason}): name another") from error
    try:
        # mkdtemp keeps others out; the finished folder has ordinary permissions.
        partial.chmod(0o777 & ~_umask())
        yield partial
        os.replace(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def new_file(target: Path) -> Iterator[BinaryIO]:
    """Give a block a file to fill, beside `target`, flush it to the disk and rename it when the block ends well.

    Raises:
        DiskError: the file cannot be written.
    """
    partial = target.with_name(f".{target.name}.partial")
    with writing(target):
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an operating system's error in a block into a `DiskError` that names `path`."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise DiskError(
            f"{path} must be writable, got {reason!r}: free space or mend its permissions, then give the same command "
            "again"
        ) from error


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
