"""The asynchronous half: what runs in the triggerer."""

from __future__ import annotations
