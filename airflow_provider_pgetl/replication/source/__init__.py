"""The only room that talks to the source server."""
