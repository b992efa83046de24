"""`make stop`: end what `make demo` started, and nothing else."""

from __future__ import annotations

from demo.run import home
from demo.servers import stop_servers


def main() -> None:
    """Stop the servers of the demo's home."""
    ended = stop_servers(home())
    print(f"ended {ended} processes" if ended else "nothing of the demo is running")


if __name__ == "__main__":
    main()
