"""The command's entry: refuses a wrong Python before anything newer than it is imported."""

import sys


def main() -> None:
    """Run the command and exit with its status."""
    if sys.version_info[:2] != (3, 13):
        found = ".".join(map(str, sys.version_info[:2]))
        sys.exit(f"error: wakala needs Python 3.13, and this is {found}: run `make run` once")
    from wakala.main import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
