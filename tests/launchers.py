"""Stand-ins for the commands of clusters."""


def stand_in(folder, name: str, body: str) -> None:
    """Writes a program that logs its arguments, one per line, and continues with `body`."""
    path = folder / name
    noting = f'printf "{name}" >> "$NOTES"; printf " <%s>" "$@" >> "$NOTES"; echo >> "$NOTES"'
    path.write_text(f"#!/usr/bin/env bash\n{noting}\n{body}\n")
    path.chmod(0o755)
