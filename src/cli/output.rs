//! Standard output of commands: one value, or a list that is printed while it is made.
//!
//! A repository decides how many commits or nodes it has, and how long their texts are. Lists of
//! them are therefore printed item by item, and long texts piece by piece: nothing of them is kept.

use std::fmt::Write as _;
use std::io::{self, BufWriter, Stdout, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde::Serialize;
use serde::ser::{SerializeSeq, Serializer as _};
use serde_json::Serializer;
use serde_json::ser::{Compound, PrettyFormatter};

use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::printable::{self, JsonWriter, LineWriter};

/// Bytes that are printed at once.
const BUFFER: usize = 64 << 10;

/// Standard output. A closed pipe (`| head`) is no failure: the program then ends.
struct Out(BufWriter<Stdout>);

impl Out {
    fn new() -> Self {
        Out(BufWriter::with_capacity(BUFFER, io::stdout()))
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).inspect_err(end_if_closed)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().inspect_err(end_if_closed)
    }
}

fn end_if_closed(error: &io::Error) {
    if error.kind() == io::ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
}

fn failed(error: io::Error) -> Error {
    Error::io("standard output", error)
}

/// Writes bytes unchanged: of a file, of a picture, of escaped text.
pub(super) fn print_raw(bytes: &[u8]) -> Result<()> {
    let mut out = Out::new();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(failed)
}

/// Writes bytes to the file `path`: either all of them are there, or what was there before.
pub(super) fn write_file(bytes: &[u8], path: &Path) -> Result<()> {
    let failed = |e| Error::io(path.display(), e);
    // A device or a pipe is written to directly.
    if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return std::fs::write(path, bytes).map_err(failed);
    }
    let folder = folder_of(path);
    let permissions = std::fs::Permissions::from_mode(0o666);
    let made = tempfile::Builder::new().permissions(permissions).tempfile_in(folder);
    let mut file = made.map_err(failed)?;
    file.write_all(bytes).and_then(|()| file.as_file().sync_all()).map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    std::fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)
}

/// Returns the directory in which `path` is.
pub(super) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes `value` as JSON to the file `path`.
pub(super) fn write_json(value: &impl Serialize, path: &Path) -> Result<()> {
    let mut bytes = serde_json::to_vec_pretty(value).map_err(unwritable)?;
    bytes.push(b'\n');
    write_file(&bytes, path)
}

/// Prints a command's result as text, escaped for a terminal: see [`printable`]. Values in it that
/// may contain line breaks must have gone through [`printable::line`].
pub(super) fn print(text: &str) -> Result<()> {
    print_raw(printable::lines(text).as_bytes())
}

/// Prints `value` as indented JSON and a newline.
pub(super) fn print_json(value: &impl Serialize) -> Result<()> {
    let mut writer = JsonWriter(Out::new());
    serde_json::to_writer_pretty(&mut writer, value).map_err(unwritable)?;
    writer.write_all(b"\n").and_then(|()| writer.flush()).map_err(failed)
}

/// Prints a command's result: `value` as JSON, or `text`.
pub(super) fn print_result(json: bool, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<()> {
    if json { print_json(value) } else { print(&text()) }
}

fn unwritable(error: serde_json::Error) -> Error {
    match error.io_error_kind() {
        Some(_) => failed(error.into()),
        None => Error::with_source(ErrorKind::Io, "writing JSON", error),
    }
}

/// Lines of text, written piece by piece.
pub(super) struct Lines(Out);

impl Lines {
    /// Creates the lines of a command's result.
    pub(super) fn new() -> Self {
        Lines(Out::new())
    }

    /// Writes `text` escaped as one line, with its end.
    pub(super) fn line(&mut self, text: std::fmt::Arguments<'_>) -> Result<()> {
        // The writer keeps no error: the next write has it again.
        let written = LineWriter(&mut self.0).write_fmt(text);
        let ended = self.0.write_all(b"\n");
        written.map_err(|_| io::Error::other("it cannot be written")).and(ended).map_err(failed)
    }

    /// Writes `text` escaped except for its line breaks.
    pub(super) fn text(&mut self, text: std::fmt::Arguments<'_>) -> Result<()> {
        BrokenLines(&mut self.0).write_fmt(text).map_err(|_| failed(io::Error::other("it cannot be written")))
    }

    /// Writes what is left.
    pub(super) fn end(mut self) -> Result<()> {
        self.0.flush().map_err(failed)
    }
}

/// Writes text escaped except for its line breaks, piece by piece.
struct BrokenLines<'a>(&'a mut Out);

impl std::fmt::Write for BrokenLines<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        text.split_inclusive('\n').try_for_each(|line| match line.strip_suffix('\n') {
            Some(line) => {
                LineWriter(&mut *self.0).write_str(line)?;
                self.0.write_all(b"\n").map_err(|_| std::fmt::Error)
            }
            None => LineWriter(&mut *self.0).write_str(line),
        })
    }
}

/// Prints a list of values as indented JSON, each when `items` passes it to its argument. What was
/// passed before a failure is printed, as a whole list.
pub(super) async fn print_json_list<T: Serialize>(
    items: impl AsyncFnOnce(&mut dyn FnMut(&T) -> Result<()>) -> Result<()>,
) -> Result<()> {
    let mut writer = JsonWriter(Out::new());
    let mut serializer = Serializer::pretty(&mut writer);
    let mut list: Compound<'_, _, PrettyFormatter<'_>> = serializer.serialize_seq(None).map_err(unwritable)?;
    let done = items(&mut |item| list.serialize_element(item).map_err(unwritable)).await;
    list.end().map_err(unwritable)?;
    writer.write_all(b"\n").and_then(|()| writer.flush()).map_err(failed)?;
    done
}
