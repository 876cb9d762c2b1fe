"""Zip files from outside: the errors of reading a damaged or hostile file."""

import lzma
import struct
import zipfile
import zlib

# The errors of reading a faulty zip file. RuntimeError: a file is encrypted. NotImplementedError:
# an unknown compression, or a later version of zip. ValueError: a name that is not text.
ZIP_FAULTS = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    OSError,
    RuntimeError,
    NotImplementedError,
    ValueError,
)
