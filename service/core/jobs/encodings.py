"""What a file is that was taken for UTF-8 text and is none, and what to do with it: bytes in, a sentence out."""

LOOKED_AT = 4096  # bytes of a file's beginning
FORMATS = {  # by the first bytes
    b"PK\x03\x04": "an Excel workbook, or another zip file",
    b"\xd0\xcf\x11\xe0": "an Excel workbook or a Word document of the old kind (.xls, .doc)",
    b"%PDF-": "a PDF document",
    b"PAR1": "a Parquet file",
    b"\x1f\x8b": "a gzip file",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}
UNREADABLE = {"a PDF document", "a gzip file", "binary data, not text", FORMATS[b"\xd0\xcf\x11\xe0"]}
SAVE = "save its text as a text file (UTF-8) with one sentence a line, or a table of it as CSV"
POST = (
    "post the file as it is, its format, encoding and columns are then detected: curl --data-binary @FILE "
    "-H 'content-type: application/octet-stream' 'http://127.0.0.1:8000/calibrate?domain=NAME&column=COLUMN'"
)
CONVERT = "iconv -f {} -t UTF-8 FILE > NEW"


def format_of(begin: bytes) -> str | None:
    """What a file's first bytes say it is; None where it may be UTF-8 text.

    >>> format_of("Grüße".encode("utf-16-le"))
    'UTF-16 text'
    """
    for signature, name in FORMATS.items():
        if begin.startswith(signature):
            return name
    looked_at = begin[:LOOKED_AT]
    zeros = looked_at.count(0)
    if 100 * zeros <= len(looked_at):
        return None
    halves = looked_at[::2].count(0), looked_at[1::2].count(0)
    if zeros > len(looked_at) // 8 and min(halves) * 8 < max(halves):  # Latin letters: every other byte is 0
        return "UTF-16 text"
    return "binary data, not text"


def iconv(name: str) -> str:
    """The command that makes UTF-8 of a format; empty where there is none."""
    return CONVERT.format("UTF-16") if name == "UTF-16 text" else ""


def no_text(name: str) -> str:
    """The refusal of a posted body of this format."""
    convert = f"; or convert it: {iconv(name)}" if iconv(name) else ""
    remedy = SAVE if name in UNREADABLE else f"{POST}{convert}"
    return f"the body is {name}, and this content type stands for UTF-8 text; {remedy}"


def first_fault(line: bytes) -> int | None:
    """The first byte, counted from 0, that is not UTF-8; None where all are."""
    try:
        line.decode()
    except UnicodeDecodeError as error:
        return error.start
    return None


def no_utf8(line: bytes, at: int) -> str:
    """What is said of a line whose byte `at`, counted from 0, is not UTF-8.

    >>> no_utf8("Grüße".encode("cp1252"), 2)
    "is not UTF-8 (byte 3); it has another encoding, perhaps windows-1252, in which the byte is 'ü'"
    """
    if 0 in line:
        return f"is not UTF-8 (byte {at + 1}); the file holds binary data or has another encoding"
    try:
        letter = line[at : at + 1].decode("cp1252")
    except UnicodeDecodeError:
        return f"is not UTF-8 (byte {at + 1}); it has another encoding"
    return (
        f"is not UTF-8 (byte {at + 1}); it has another encoding, perhaps windows-1252, in which the byte is {letter!r}"
    )


def posted_line(number: int, line: bytes, at: int) -> str:
    """The refusal of a posted line."""
    return f"line {number} {no_utf8(line, at)}; {POST}; or convert it: {CONVERT.format('WINDOWS-1252')}"


def line_of_file(name: str, number: int, line: bytes, at: int) -> str:
    """The refusal of a line of a file on the command line."""
    return f"{name}, line {number}: {no_utf8(line, at)}; convert it: {CONVERT.format('WINDOWS-1252')}"


def file_of(name: str, kind: str) -> str:
    """The refusal of a file of this format on the command line."""
    remedy = f"convert it: {iconv(kind)}" if iconv(kind) else SAVE
    return f"{name} is {kind}, and UTF-8 text is wanted; {remedy}"
