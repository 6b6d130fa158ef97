//! A process of its own for formats whose readers were not made for hostile files: HDF5, and the
//! Parquet of references.
//!
//! The process has the file, or a socket over which it asks for its ranges ([`crate::asked`]), and
//! a pipe for the answer: no other descriptor, no environment, and once it has begun to read no
//! right to open, to connect, or to start anything. Its memory and its time are bounded. What it
//! answers is checked as if the file had said it.

#[cfg(feature = "apart")]
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
#[cfg(feature = "apart")]
use std::os::fd::AsRawFd;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::memory::{Meter, Metered};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use crate::asked;
use crate::data::{ArrayData, ChunkPlace};
#[cfg(feature = "apart")]
use crate::kerchunk::parquet;
use crate::kerchunk::records::{self, Rows};
use crate::plan::{MAX_CHUNKS, Plan};
#[cfg(feature = "apart")]
use crate::source::LocalFile;
use crate::source::Source;
use crate::texts;

/// Bytes of address space: the index of two million chunks takes half of it.
const MEMORY: u64 = 1 << 30;
/// Seconds of processor time: 100,000 chunks take 0.04.
const SECONDS: u64 = 60;
/// Time after which the process is ended: the disk may be slow.
const PATIENCE: Duration = Duration::from_mins(10);
/// Most bytes of the answer without the chunks of a plan.
const MAX_TEXT: u64 = 128 << 20;
/// Memory of the values that a byte of the answer may be: `0,` becomes one of 32 bytes.
const VALUES: u64 = 16;
/// Time that the process has to end after its answer.
const END: Duration = Duration::from_secs(5);

/// Program that reads a file apart: this one, with the words that make it do so.
#[derive(Clone, Debug)]
pub struct Reader {
    /// Path of the program.
    pub program: PathBuf,
    /// Its words.
    pub words: Vec<OsString>,
}

/// Answer of the process, without the chunks.
#[derive(Serialize, Deserialize)]
enum Answer {
    /// The plan. The chunks of its arrays follow.
    Plan(Plan),
    /// Rows of references.
    Rows(Rows),
    /// Fault of the file, for display.
    Wrong(String),
}

impl Reader {
    /// Returns the plan for `file`.
    ///
    /// Errors: [`ErrorKind::Corrupt`] if the file is damaged, or if its reader fails; others as for
    /// reading.
    pub fn plan(&self, file: &(dyn Source + Sync)) -> Result<Metered<Plan>> {
        let plan = self.ask(file, |pipe| read_answer(pipe, read_plan))?;
        plan.check(file.length()).context(|| "the plan for the file")?;
        Ok(plan)
    }

    /// Returns the rows of references in the Parquet file `file`.
    ///
    /// Errors: as for [`Reader::plan`].
    pub fn rows(&self, file: &(dyn Source + Sync)) -> Result<Metered<Rows>> {
        let not_one = || Error::corrupt("it is not a file of references in Parquet");
        if !records::is_parquet(file)? {
            return Err(not_one());
        }
        self.ask(file, |pipe| {
            read_answer(pipe, |answer, _, _| match answer {
                Answer::Rows(rows) => Ok(rows),
                _ => Err(not_one()),
            })
        })
    }

    /// Starts the process for `file`, and returns its answer, which `read` reads.
    fn ask<T>(&self, file: &(dyn Source + Sync), read: impl FnOnce(&mut BufReader<Timed>) -> Result<T>) -> Result<T> {
        let mut command = Command::new(&self.program);
        command.args(&self.words).env_clear().current_dir("/").stdout(Stdio::piped()).stderr(Stdio::null());
        let asking = match file.local() {
            Some(local) => {
                command.stdin(Stdio::from(local.descriptor()?));
                None
            }
            None => {
                let (own, theirs) = UnixStream::pair().map_err(|e| Error::io("a socket", e))?;
                command.stdin(Stdio::from(OwnedFd::from(theirs)));
                Some(own)
            }
        };
        let mut child = command.spawn().map_err(|e| Error::io(format!("starting {}", self.program.display()), e))?;
        // The socket ends with the process, as nobody else has its other end.
        drop(command);
        let pipe = child.stdout.take().ok_or_else(|| Error::invalid("a process without a pipe"));
        let (answer, status, answered) = std::thread::scope(|scope| {
            let answering = asking.map(|socket| scope.spawn(move || asked::answer(socket, file)));
            let answer = pipe.and_then(|pipe| {
                let until = Instant::now().checked_add(PATIENCE);
                read(&mut BufReader::new(Timed { pipe, until }))
            });
            let status = end(&mut child);
            let failed = |_| Err(Error::invalid("reading the file ended early"));
            (answer, status, answering.map_or(Ok(()), |thread| thread.join().unwrap_or_else(failed)))
        });
        // The answer of a process that was not answered says less.
        answered?;
        let status = status?;
        let answer = match answer {
            Ok(answer) => answer,
            // The answer ends where the process has.
            Err(error) if matches!(error.kind(), ErrorKind::Io | ErrorKind::Corrupt) && !status.success() => {
                return Err(ended(status));
            }
            Err(error) if error.kind() == ErrorKind::Timeout => {
                let limit = PATIENCE.as_secs() / 60;
                let message =
                    format!("its parts were not found within {limit} minutes: copy it to a disk of this machine");
                return Err(Error::new(ErrorKind::Timeout, message));
            }
            Err(error) => return Err(error),
        };
        // Fails if the file has changed meanwhile.
        file.read(0, &mut [])?;
        Ok(answer)
    }
}

/// Returns the status of the process, which has answered or never will.
fn end(child: &mut Child) -> Result<ExitStatus> {
    /// Time between two looks.
    const LOOK: Duration = Duration::from_millis(5);
    let failed = |e| Error::io("the reader of the file", e);
    let mut waited = Duration::ZERO;
    while waited < END {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return Ok(status);
        }
        std::thread::sleep(LOOK);
        waited = waited.saturating_add(LOOK);
    }
    child.kill().and_then(|()| child.wait()).map_err(failed)
}

fn ended(status: ExitStatus) -> Error {
    let how = match status.signal() {
        Some(signal) => format!("signal {signal} ended it"),
        None => status.to_string(),
    };
    Error::corrupt(format!(
        "the process that reads the file failed ({how}): a file is read with at most {} MiB of memory, and {SECONDS} s \
         of processor time",
        MEMORY >> 20
    ))
}

/// Pipe of the process, until it has had its time.
struct Timed {
    pipe: ChildStdout,
    until: Option<Instant>,
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        let mut waiting = [PollFd::new(&self.pipe, PollFlags::IN)];
        match poll(&mut waiting, timeout.as_ref()) {
            Ok(0) => Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => self.pipe.read(into),
            Err(error) => Err(error.into()),
        }
    }
}

/// Reads an answer, and with `take` what follows it.
fn read_answer<P: Read, T>(
    pipe: &mut P,
    take: impl FnOnce(Answer, &mut P, &mut Meter) -> Result<T>,
) -> Result<Metered<T>> {
    let mut meter = Meter::new("the plan of an import");
    let length = number(pipe)?;
    if length > MAX_TEXT {
        return Err(Error::new(ErrorKind::Unsupported, "more attributes or references than one file may have"));
    }
    meter.count(length.saturating_mul(VALUES))?;
    let answer = serde_json::from_reader(pipe.by_ref().take(length));
    let answer = answer.map_err(|e| Error::with_source(ErrorKind::Corrupt, "the plan for the file", e))?;
    if let Answer::Wrong(message) = answer {
        return Err(Error::corrupt(message));
    }
    let taken = take(answer, pipe, &mut meter)?;
    Ok(meter.finish(taken))
}

/// Reads the chunks of the arrays of the plan.
fn read_plan(answer: Answer, pipe: &mut impl Read, meter: &mut Meter) -> Result<Plan> {
    let Answer::Plan(mut plan) = answer else { return Err(Error::corrupt("it is not a file with arrays")) };
    let mut left = MAX_CHUNKS;
    for array in &mut plan.arrays {
        if let ArrayData::Texts(texts) = &mut array.data {
            texts.all = read_texts(pipe, meter)?;
        }
        let ArrayData::Stored(stored) = &mut array.data else { continue };
        let count = number(pipe)?;
        left = left.checked_sub(count).ok_or_else(|| Error::corrupt(format!("more than {MAX_CHUNKS} chunks")))?;
        meter.count_items::<ChunkPlace>(usize::try_from(count).unwrap_or(usize::MAX))?;
        for _ in 0..count {
            let [position, offset, length, mask] = [number(pipe)?, number(pipe)?, number(pipe)?, number(pipe)?];
            stored.chunks.push(ChunkPlace { position, offset, length, mask });
        }
    }
    Ok(plan)
}

fn read_texts(pipe: &mut impl Read, meter: &mut Meter) -> Result<Vec<String>> {
    let count = number(pipe)?;
    let mut all = Vec::new();
    for _ in 0..count {
        let length = number(pipe)?;
        meter.count(texts::cost_of(length))?;
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
        pipe.read_exact(&mut bytes).map_err(|e| Error::io("the reader of the file", e))?;
        let text = String::from_utf8(bytes);
        all.push(text.map_err(|e| Error::with_source(ErrorKind::Corrupt, "the plan for the file", e))?);
    }
    Ok(all)
}

fn number(pipe: &mut impl Read) -> Result<u64> {
    asked::number(pipe).map_err(|e| Error::io("the reader of the file", e))
}

fn write_answer(pipe: &mut impl Write, answer: &Answer) -> Result<()> {
    let failed = |e| Error::io("the answer", e);
    let text = serde_json::to_vec(answer);
    let text = text.map_err(|e| Error::with_source(ErrorKind::InvalidInput, "the answer", e))?;
    pipe.write_all(&(text.len() as u64).to_le_bytes()).and_then(|()| pipe.write_all(&text)).map_err(failed)?;
    let Answer::Plan(plan) = answer else { return pipe.flush().map_err(failed) };
    // In the order of the arrays, what is long.
    for array in &plan.arrays {
        if let Some(texts) = array.data.texts() {
            pipe.write_all(&(texts.all.len() as u64).to_le_bytes()).map_err(failed)?;
            for text in &texts.all {
                pipe.write_all(&(text.len() as u64).to_le_bytes()).map_err(failed)?;
                pipe.write_all(text.as_bytes()).map_err(failed)?;
            }
        }
        let ArrayData::Stored(stored) = &array.data else { continue };
        pipe.write_all(&(stored.chunks.len() as u64).to_le_bytes()).map_err(failed)?;
        for ChunkPlace { position, offset, length, mask } in &stored.chunks {
            for number in [position, offset, length, mask] {
                pipe.write_all(&number.to_le_bytes()).map_err(failed)?;
            }
        }
    }
    pipe.flush().map_err(failed)
}

/// Reads the file on standard input, or asks for its ranges there, and writes the answer to
/// standard output: the other side of [`Reader::plan`]. The process cannot do anything else from
/// then on.
///
/// Errors: if the limits cannot be set, or the answer not be written.
pub fn serve() -> Result<()> {
    let input = io::stdin().as_fd().try_clone_to_owned().map_err(|e| Error::io("the file", e));
    let answer = match input.and_then(|input| read(input.into())) {
        Ok(answer) => answer,
        Err(error) => Answer::Wrong(error.to_string()),
    };
    write_answer(&mut BufWriter::new(io::stdout().lock()), &answer)
}

/// Returns the plan for an HDF5 file, made in this process: for the fuzzer alone, since a file may
/// make its reader abort.
///
/// Errors: as those of [`Reader::plan`].
#[cfg(feature = "apart")]
pub fn plan_unconfined(source: impl Source + Send + Sync + 'static) -> Result<Metered<Plan>> {
    crate::hdf5::plan(source)
}

#[cfg(not(feature = "apart"))]
fn read(_: File) -> Result<Answer> {
    Err(Error::new(
        ErrorKind::Unsupported,
        "this icechunkfs was built without the feature `import`, and reads neither HDF5 nor Parquet",
    ))
}

#[cfg(feature = "apart")]
fn read(input: File) -> Result<Answer> {
    use std::os::unix::fs::FileTypeExt;
    let number = input.as_raw_fd().cast_unsigned();
    let kind = input.metadata().map_err(|e| Error::io("the file", e))?.file_type();
    if kind.is_socket() {
        confine(number, &SOCKET_CALLS)?;
        return answer_to(asked::Asked::new(input)?);
    }
    let file = LocalFile::new(input)?;
    confine(number, &FILE_CALLS)?;
    answer_to(file)
}

#[cfg(feature = "apart")]
fn answer_to(file: impl Source + Send + Sync + 'static) -> Result<Answer> {
    if records::is_parquet(&file)? {
        return parquet::rows(&file).map(Answer::Rows);
    }
    crate::hdf5::plan(file).map(|plan| Answer::Plan(plan.into_inner()))
}

/// System calls for the descriptor of a file, and of a socket.
#[cfg(feature = "apart")]
const FILE_CALLS: [libc::c_long; 2] = [libc::SYS_pread64, libc::SYS_statx];
#[cfg(feature = "apart")]
const SOCKET_CALLS: [libc::c_long; 2] = [libc::SYS_read, libc::SYS_write];

/// Bounds what the process takes, and forbids it to do anything but compute, the system calls `own`
/// with descriptor `input`, and write to standard output.
#[cfg(feature = "apart")]
fn confine(input: u32, own: &[libc::c_long]) -> Result<()> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let bound = |resource, most| {
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        setrlimit(resource, limit).map_err(|e| Error::io("a limit for the reader of a file", e.into()))
    };
    bound(Resource::As, MEMORY)?;
    bound(Resource::Cpu, SECONDS)?;
    bound(Resource::Core, 0)?;
    let forbidden = |error: seccompiler::Error| {
        Error::new(
            ErrorKind::Unsupported,
            format!("the system calls of the reader of a file cannot be bounded: {error}"),
        )
    };
    let program = calls(input, own).map_err(|error| forbidden(error.into()))?;
    seccompiler::apply_filter_all_threads(&program).map_err(forbidden)
}

/// Returns the filter of system calls: what an allocator and the library need, `own` with
/// descriptor `input`, and writing to standard output.
#[cfg(feature = "apart")]
fn calls(input: u32, own: &[libc::c_long]) -> std::result::Result<seccompiler::BpfProgram, seccompiler::BackendError> {
    use seccompiler::{SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule};
    const STANDARD_OUTPUT: u32 = 1;
    const ALLOWED: [libc::c_long; 18] = [
        libc::SYS_brk,
        libc::SYS_clock_gettime,
        libc::SYS_close,
        libc::SYS_exit,
        libc::SYS_exit_group,
        libc::SYS_fstat,
        libc::SYS_futex,
        libc::SYS_getrandom,
        libc::SYS_madvise,
        libc::SYS_mmap,
        libc::SYS_mprotect,
        libc::SYS_mremap,
        libc::SYS_munmap,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn,
        libc::SYS_sched_yield,
        libc::SYS_sigaltstack,
    ];
    let with = |descriptor: u32| {
        let is_it = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, descriptor.into())?;
        SeccompRule::new(vec![is_it])
    };
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED.into_iter().map(|call| (call, Vec::new())).collect();
    for call in own {
        rules.insert(*call, vec![with(input)?]);
    }
    rules.entry(libc::SYS_write).or_default().push(with(STANDARD_OUTPUT)?);
    // A call that is not allowed fails; a C library tries some that it can do without.
    let refused = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    SeccompFilter::new(rules, refused, SeccompAction::Allow, std::env::consts::ARCH.try_into()?)?.try_into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::data::Stored;
    use crate::element::{ByteOrder, Element};
    use crate::plan::Array;

    fn answer(chunks: u64) -> Vec<u8> {
        let place = |position| ChunkPlace { position, offset: 10 * position, length: 10, mask: 0 };
        let stored = Stored {
            shape: vec![chunks],
            chunk_shape: vec![1],
            fill: vec![0],
            filters: Vec::new(),
            converted: None,
            chunks: (0..chunks).map(place).collect(),
        };
        let array = Array {
            name: "a".to_owned(),
            chunk_shape: vec![1],
            dimension_names: vec!["x".to_owned()],
            attributes: serde_json::Map::new(),
            element: Element::UInt8,
            order: ByteOrder::Little,
            codecs: Vec::new(),
            data: ArrayData::Stored(stored),
            fill_value: (0.into(), vec![0]),
        };
        let plan = Plan { arrays: vec![array], ..Plan::default() };
        let mut out = Vec::new();
        write_answer(&mut out, &Answer::Plan(plan)).unwrap();
        out
    }

    /// Tries what no reader may do, with a descriptor that may be read by `read`. Returns what
    /// failed.
    #[cfg(feature = "apart")]
    fn tried<F: AsRawFd + Send + 'static>(
        file: F,
        own: &[libc::c_long],
        read: impl FnOnce(F) + Send + 'static,
    ) -> [bool; 8] {
        use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        let other = tempfile::tempfile().unwrap();
        let program = calls(file.as_raw_fd().cast_unsigned(), own).unwrap();
        // The rules are those of one thread.
        let refused = std::thread::spawn(move || {
            seccompiler::apply_filter(&program).unwrap();
            read(file);
            [
                (&other).write(b"x").is_err(),
                (&other).read(&mut [0]).is_err(),
                File::open("/etc/passwd").is_err(),
                std::fs::write("/tmp/icechunkfs-reader", "").is_err(),
                std::fs::remove_file("/tmp/icechunkfs-reader").is_err(),
                TcpStream::connect(address).is_err(),
                UdpSocket::bind("127.0.0.1:0").is_err(),
                Command::new("/bin/true").status().is_err(),
            ]
        });
        refused.join().unwrap()
    }

    #[cfg(feature = "apart")]
    #[test]
    fn a_reader_can_do_nothing_but_read_and_answer() {
        let file = tempfile::tempfile().unwrap();
        let read = |file: File| assert!(LocalFile::new(file).unwrap().read(0, &mut []).is_ok());
        assert_eq!(tried(file, &FILE_CALLS, read), [true; 8]);
        let (own, theirs) = UnixStream::pair().unwrap();
        let ask = |socket: File| {
            let mut read = [0; 3];
            asked::Asked::new(socket).unwrap().read(1, &mut read).unwrap();
            assert_eq!(read, [1, 2, 3]);
        };
        let file = crate::source::testing::Bytes((0..5).collect());
        let answering = std::thread::spawn(move || asked::answer(own, &file));
        assert_eq!(tried(File::from(OwnedFd::from(theirs)), &SOCKET_CALLS, ask), [true; 8]);
        answering.join().unwrap().unwrap();
        assert!(File::open("/etc/passwd").is_ok());
    }

    #[test]
    fn an_answer_is_read_as_it_was_written() {
        let plan = read_answer(&mut answer(3).as_slice(), read_plan).unwrap();
        let file = crate::source::testing::Bytes(vec![0; 30]);
        let chunks = plan.arrays.first().unwrap().stored_chunks(&file).unwrap().unwrap();
        assert_eq!(chunks.len(), 3);
        plan.check(30).unwrap();
        assert!(plan.check(29).is_err());
        let mut wrong = Vec::new();
        write_answer(&mut wrong, &Answer::Wrong("a fault".to_owned())).unwrap();
        assert_eq!(read_answer(&mut wrong.as_slice(), read_plan).unwrap_err().to_string(), "a fault");
    }

    /// A process that a file has taken over may answer anything.
    #[test]
    fn whatever_is_answered_nothing_is_read_outside_of_the_file() {
        let file = crate::source::testing::Bytes(vec![0; 40]);
        let whole = answer(3);
        let mut passed = 0;
        for at in 8..whole.len() {
            for other in [b'0', b'1', b'9', b'-', b'[', 0, 0xff] {
                let mut changed = whole.clone();
                changed.splice(at..=at, [other]);
                let Ok(plan) = read_answer(&mut changed.as_slice(), read_plan) else { continue };
                if plan.check(40).is_err() {
                    continue;
                }
                passed += 1;
                for array in &plan.arrays {
                    let _ = array.document();
                    for (coords, length) in array.stored_chunks(&file).ok().flatten().unwrap_or_default() {
                        let mut out = Vec::new();
                        let _ = array.read_stored(&file, &coords, 0..length, &mut out);
                        let _ = array.read_chunk(&file, &coords, &mut out);
                    }
                }
            }
        }
        // The answers are not refused for their form alone.
        assert!(passed > 100, "{passed}");
    }

    #[test]
    fn an_answer_that_is_cut_or_claims_too_much_is_refused() {
        let whole = answer(3);
        for length in 0..whole.len() {
            assert!(read_answer(&mut whole.get(..length).unwrap(), read_plan).is_err(), "{length}");
        }
        let mut long = u64::MAX.to_le_bytes().to_vec();
        long.extend(b"{}");
        assert!(read_answer(&mut long.as_slice(), read_plan).unwrap_err().to_string().contains("more attributes"));
        // The number of chunks is that of a larger file.
        let mut many = whole.clone();
        let at = many.len() - 3 * 32 - 8;
        many.splice(at..at + 8, (MAX_CHUNKS + 1).to_le_bytes());
        assert!(read_answer(&mut many.as_slice(), read_plan).unwrap_err().to_string().contains("chunks"));
    }
}
