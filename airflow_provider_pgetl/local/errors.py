"""What can be in the way of a local stack.

LocalStackError
├── CheckFailed     found before anything was started; the command ends with exit code 2
└── StartFailed     a component was started and did not become healthy
"""

from __future__ import annotations


class LocalStackError(Exception):
    """The local stack can't do what was asked; the message is one line for a person."""


class CheckFailed(LocalStackError):
    """Something on this machine is in the way; nothing was started."""


class StartFailed(LocalStackError):
    """A component ended or stayed silent instead of becoming healthy."""
