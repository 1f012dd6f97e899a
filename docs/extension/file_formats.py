"""Table of file formats in formats.md."""

from calibrant.io.formats import FORMATS


def markdown_table() -> str:
    """Return the suffixes and contents of all formats."""
    lines = ["| format | suffix | contents | written | read in chunks |", "|---|---|---|---|---|"]
    for f in FORMATS:
        suffixes = " ".join(f"`{suffix}`" for suffix in f.suffixes)
        is_written, is_chunked = ("yes" if function else "" for function in (f.writer, f.chunk_opener))
        lines.append(f"| {f.title} | {suffixes} | {f.note} | {is_written} | {is_chunked} |")
    return "\n".join(lines) + "\n"
