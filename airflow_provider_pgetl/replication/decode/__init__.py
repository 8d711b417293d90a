"""Bytes to Arrow, pure and vectorised: ``frames`` -> ``messages`` -> ``columns`` -> ``casts``, led by ``decoder``."""
