"""The daemon's JSON API over a Unix socket: its server and its client."""
